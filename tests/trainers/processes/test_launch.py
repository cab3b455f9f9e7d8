"""The files in configs/accelerate start the processes that they say, with settings that training follows."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from accelerate.commands.config.config_args import load_config_from_file
from tiny_runs import LAUNCH, ROOT, begin

from trainers.processes.distributed import check_launch

FOLDER = ROOT / "configs/accelerate"
PROCESSES = {"cpu1": [1], "cpu2": [2], "gpu1": [1], "gpu2": [2], "gpu8": [8], "gpu2x8": [8, 8]}
"""Processes of each machine, by the name of the file."""
SAY = "import json, os, sys; open(os.path.join(sys.argv[1], str(os.getpid())), 'w').write(json.dumps(dict(os.environ)))"


def test_every_file_is_tested() -> None:
    assert {file.stem for file in FOLDER.iterdir()} == PROCESSES.keys()


@pytest.mark.parametrize("name", PROCESSES)
def test_accelerate_knows_every_key(name: str) -> None:
    config = load_config_from_file(str(FOLDER / f"{name}.yaml"))
    assert config.num_processes == sum(PROCESSES[name]) and config.num_machines == len(PROCESSES[name])
    assert config.use_cpu == name.startswith("cpu")


@pytest.mark.slow
@pytest.mark.parametrize("name", PROCESSES)
def test_so_many_processes_start_that_know_of_each_other(name: str, tmp_path: Path) -> None:
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
