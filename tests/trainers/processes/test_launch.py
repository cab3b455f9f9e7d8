"""The files in configs/accelerate start the processes that they say, with settings that training follows.

Processes that are started again meet each other, and nobody whom an earlier attempt left in the store.

How a node of several finds its place, its port, and the interface that leads to the others.
"""

from __future__ import annotations

import itertools
import json
import socket
import threading
import time
from datetime import timedelta
from types import SimpleNamespace

import psutil
import pytest
from accelerate.commands.config.config_args import load_config_from_file
from hypothesis import given
from hypothesis import strategies as st
from tiny_runs import LAUNCH, ROOT, begin
from torch.distributed import HashStore

from trainers.processes import interface
from trainers.processes.distributed import check_launch
from trainers.processes.interface import VARIABLE, choose_interface, interface_to
from trainers.processes.meeting import meet, own_part
from trainers.programs import nodes, train
from trainers.programs.nodes import FIRST_PORT, PORTS, place_of
from trainers.settings import ConfigError

FOLDER = ROOT / "configs/accelerate"
PROCESSES = {"cpu1": [1], "cpu2": [2], "gpu1": [1], "gpu2": [2], "gpu8": [8], "gpu2x8": [8, 8]}
"""Processes of each machine, by the name of the file."""
SAY = "import json, os, sys; open(os.path.join(sys.argv[1], str(os.getpid())), 'w').write(json.dumps(dict(os.environ)))"


def test_every_file_is_tested():
    assert {file.stem for file in FOLDER.iterdir()} == PROCESSES.keys()


@pytest.mark.parametrize("name", PROCESSES)
def test_accelerate_knows_every_key(name):
    config = load_config_from_file(str(FOLDER / f"{name}.yaml"))
    assert config.num_processes == sum(PROCESSES[name]) and config.num_machines == len(PROCESSES[name])
    assert config.use_cpu == name.startswith("cpu")


@pytest.mark.slow
@pytest.mark.parametrize("name", PROCESSES)
def test_so_many_processes_start_that_know_of_each_other(name, tmp_path):
    """On this machine, whatever it has; the script that they run computes nothing."""
    (tmp_path / "say.py").write_text(SAY)
    (tmp_path / "said").mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    machines = len(PROCESSES[name])
    launchers = []
    for rank in range(machines):
        where = ["--machine_rank", str(rank), "--main_process_port", port] if machines > 1 else []
        command = [*LAUNCH, "--config_file", str(FOLDER / f"{name}.yaml"), *where]
        launchers.append(begin(*command, str(tmp_path / "say.py"), str(tmp_path / "said")))
    for launcher in launchers:
        said = launcher.communicate(timeout=240)[0]
        assert launcher.returncode == 0, said
    found = [json.loads(file.read_text()) for file in (tmp_path / "said").iterdir()]
    count = sum(PROCESSES[name])
    assert sorted(int(each.get("RANK", 0)) for each in found) == list(range(count))
    for each in found:
        assert int(each.get("WORLD_SIZE", 1)) == count
        assert int(each.get("LOCAL_WORLD_SIZE", 1)) == PROCESSES[name][0], "what model.shard: hybrid goes by"
        check_launch(each)


def _come(store: HashStore, ranks: list[int], size: int, names: dict[int, str]) -> list[threading.Thread]:
    def come(rank: int) -> None:
        names[rank] = meet(store, rank, size, timedelta(seconds=20))

    threads = [threading.Thread(target=come, args=(rank,), daemon=True) for rank in ranks]
    for thread in threads:
        thread.start()
    return threads


def _all(store: HashStore, size: int, first: list[int]) -> dict[int, str]:
    names: dict[int, str] = {}
    threads = _come(store, first, size, names)
    time.sleep(0.2)
    assert not names, "nobody goes on before all are there"
    threads += _come(store, [rank for rank in range(size) if rank not in first], size, names)
    for thread in threads:
        thread.join(20)
    return names


@pytest.mark.parametrize("first", [[0], [1], [2, 1]])
def test_all_get_one_name_and_those_of_the_next_attempt_another(first):
    store = HashStore()
    found = [_all(store, 3, first) for _ in range(3)]
    assert [sorted(names) for names in found] == [[0, 1, 2]] * 3
    assert [len({*names.values()}) for names in found] == [1, 1, 1]
    assert len({names[0] for names in found}) == 3


def test_who_was_killed_before_all_were_there_is_not_waited_for():
    store = HashStore()
    store.set("trainers/meeting/here/1", "of a process that was killed")
    assert len({*_all(store, 2, [0]).values()}) == 1


def test_what_one_meeting_wrote_no_other_reads(monkeypatch):
    store = HashStore()
    for name in ("one", "two"):
        monkeypatch.setattr("trainers.processes.meeting._MET", name)
        assert not own_part(store, "peers").check(["sign"])
        own_part(store, "peers").set("sign", "of life")


def test_who_does_not_come_is_named():
    with pytest.raises(TimeoutError, match=r"ranks \[1\]"):
        meet(HashStore(), 0, 2, timedelta(seconds=0.2))


TYPED = {"nodes": "2", "node": "1", "rendezvous": "127.0.0.1", "job": "77"}


def test_one_node_has_no_place():
    assert place_of({}, {}) is None and place_of({"nodes": "1"}, {"SLURM_NODEID": "0"}) is None


@given(st.text(min_size=1))
def test_the_port_follows_from_the_job_and_is_none_that_linux_gives_away(job):
    one, two = (place_of({**TYPED, "node": node, "job": job}, {}) for node in "01")
    assert one is not None and two is not None and one.port == two.port
    assert FIRST_PORT <= one.port < FIRST_PORT + PORTS <= 32768


def test_jobs_of_one_cluster_rarely_meet_at_one_port():
    places = [place_of({**TYPED, "job": str(job)}, {}) for job in range(4_000_000, 4_000_100)]
    assert len({place.port for place in places if place}) > 95


@pytest.mark.parametrize("variable", ["SLURM_NODEID", "JOB_COMPLETION_INDEX"])
def test_a_scheduler_says_which_node_this_is_unless_it_is_typed(variable):
    scheduled = {variable: "3", "SLURM_JOB_ID": "815"}
    place = place_of({"nodes": "4", "rendezvous": "head"}, scheduled)
    assert place is not None and (place.node, place.job) == (3, "815")
    typed = place_of({**TYPED, "nodes": "4"}, scheduled)
    assert typed is not None and (typed.node, typed.job) == (1, "77") and typed.port != place.port


def test_a_port_that_is_typed_is_taken_and_needs_no_job():
    place = place_of({"nodes": "2", "node": "0", "rendezvous": "head:1234"}, {})
    assert place is not None and (place.host, place.port) == ("head", 1234)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"nodes": "0"}, "--nodes 0: it must be a whole number of at least 1"),
        ({"node": ""}, "--node : it must be a whole number"),
        ({"node": "2"}, "--node 2: --nodes 2 are numbered from 0 to 1"),
        ({"rendezvous": ""}, "--rendezvous HOST"),
        ({"rendezvous": "head:x"}, "port of --rendezvous x"),
        ({"job": ""}, "--job ID, or a port"),
    ],
)
def test_a_place_that_cannot_be_is_refused_by_its_option(changes, words):
    with pytest.raises(ConfigError, match=words):
        place_of({**TYPED, **changes}, {})


def test_the_command_of_a_node_starts_the_processes_of_all_nodes(monkeypatch):
    words: list[str] = []
    monkeypatch.setattr(train, "launch", lambda given: words.extend(given) or 0)
    monkeypatch.setattr(train.os, "environ", dict(train.os.environ))
    options = [part for name, value in TYPED.items() for part in (f"--{name}", value)]
    assert train.main([*options, "--processes", "3", "--seed", "4"]) == 0
    after = dict(itertools.pairwise(words))
    assert after["--num_processes"] == "6" and after["--num_machines"] == "2" and after["--rdzv_backend"] == "c10d"
    assert after["--main_process_ip"] == "127.0.0.1" and after["--rdzv_conf"] == "is_host=False"
    assert words[-3:] == ["trainers.train", "--seed", "4"]
    assert train.os.environ["PET_RDZV_ID"] == "77" and train.os.environ["PET_LOCAL_ADDR"] == "127.0.0.1"


def test_a_node_waits_for_node_0_to_have_an_address(monkeypatch, capsys):
    found = iter([ConfigError("Name or service not known"), ConfigError("not yet"), "10.0.0.2"])

    def towards(host: str) -> str:
        if isinstance(one := next(found), str):
            return one
        raise one

    monkeypatch.setattr(nodes, "address_towards", towards)
    monkeypatch.setattr(nodes.time, "sleep", lambda seconds: None)
    place = place_of({**TYPED, "rendezvous": "run-trainer-0.run-trainer"}, {})
    assert place is not None and place.variables["PET_LOCAL_ADDR"] == "10.0.0.2"
    assert capsys.readouterr().err == "waiting for node 0: Name or service not known\n"


def test_a_node_0_that_never_comes_is_no_wrong_setting(monkeypatch, capsys):
    monkeypatch.setattr(nodes, "WAIT_SECONDS", 0.0)
    options = [part for name, value in TYPED.items() if name != "rendezvous" for part in (f"--{name}", value)]
    assert train.main([*options, "--rendezvous", "nowhere.invalid"]) == 1
    assert "finds no way to nowhere.invalid" in capsys.readouterr().err


# -- the interface -----------------------------------------------------------------------------------------------------


@pytest.fixture
def interfaces(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Addresses by the names of interfaces, of which ``down`` is not up; a test adds its own."""
    found = {"lo": "127.0.0.1", "down": "10.9.9.9"}
    monkeypatch.setattr(
        psutil, "net_if_addrs",
        lambda: {name: [SimpleNamespace(family=socket.AF_INET, address=value)] for name, value in found.items()},
    )  # fmt: skip
    monkeypatch.setattr(psutil, "net_if_stats", lambda: {name: SimpleNamespace(isup=name != "down") for name in found})
    return found


def test_the_interface_is_the_one_with_the_address_that_leads_there(interfaces, monkeypatch):
    interfaces |= {"eth0": "10.0.0.2", "ib0": "10.1.0.2"}
    monkeypatch.setattr(interface, "address_towards", lambda host: "10.1.0.2")
    assert interface_to("head") == "ib0"


def test_a_name_with_a_loopback_address_leads_to_the_one_interface_that_leads_out(interfaces):
    interfaces["eth0"] = "10.0.0.2"
    assert interface_to("127.0.1.1") == "eth0"


@pytest.mark.parametrize(
    "more, words", [({}, "no interface leads"), ({"a": "10.0.0.2", "b": "10.1.0.2"}, "one of a, b")]
)
def test_where_it_is_not_clear_the_variable_is_asked_for(more, words, interfaces):
    interfaces |= more
    with pytest.raises(ConfigError, match=f"{words}.*set {VARIABLE} to its name"):
        interface_to("127.0.0.1")


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "nowhere.invalid"},
        {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "nowhere.invalid", VARIABLE: "ib0"},
    ],
)
def test_one_machine_and_a_choice_of_ones_own_are_left_alone(environment):
    before = dict(environment)
    choose_interface(environment)
    assert environment == before
