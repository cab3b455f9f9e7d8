"""The roles of a run as processes of this machine: what is tested here is what is written for a cluster."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from torch.distributed.launcher.api import LaunchConfig
from waiting import ended, until

from trainers.programs.launching.local import ServerEnded, ServerNotReady, commands, free_ports, run, wait_for
from trainers.programs.launching.roles import ClusterJob, ServerRole
from trainers.programs.train import _status

SERVER = f"exec {sys.executable} -m http.server --bind $HOST $PORT"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def job(trainer: str, *servers: str) -> ClusterJob:
    """A job with roles of these commands; two servers of each."""
    roles = [ServerRole(f"role{number}", command, "/", "/", 2, 1) for number, command in enumerate(servers)]
    return ClusterJob("tiny", "launch/tiny", "", trainer, 1, 1, 0, 0, 0, roles)


def ports(*names: str) -> dict[str, list[int]]:
    return {name: free_ports(2) for name in names}


def answers(port: int) -> bool:
    try:
        wait_for([f"http://127.0.0.1:{port}/"], 0.0)
    except ServerNotReady:
        return False
    return True


def test_the_status_is_that_of_the_trainer():
    assert [run(job(f"exit {status}"), {}) for status in range(4)] == [0, 1, 2, 3]
    assert run(job("kill -TERM $$"), {}) == 128 + signal.SIGTERM


def test_servers_answer_before_the_trainer_starts_and_end_after_it():
    found = ports("role0")
    asking = "; ".join(
        f"{sys.executable} -c 'import urllib.request as u; u.urlopen(\"http://127.0.0.1:{port}/\")'"
        for port in found["role0"]
    )
    assert run(job(f"set -e; {asking}", f"sleep 0.5; {SERVER}"), found) == 0
    assert not any(map(answers, found["role0"]))
    assert "GET / HTTP" in Path("launch/tiny/logs/role0-1.log").read_text()


def test_a_server_that_ends_is_said_with_its_log_and_nothing_is_left():
    found = ports("role0", "role1")
    with pytest.raises(ServerEnded, match=r"status 7; launch/tiny/logs/role1-[01].log says why") as ended:
        run(job("touch trained", SERVER, "echo no such model; exit 7"), found)
    assert not Path("trained").exists() and not any(map(answers, found["role0"]))
    # The server that ended first: the other may have been stopped before it wrote a line.
    (log,) = re.findall(r"launch/tiny/logs/\S+\.log", str(ended.value))
    assert Path(log).read_text() == "no such model\n"


def test_what_a_server_has_started_ends_with_it():
    found = ports("role0")
    assert run(job("exit 0", f"sleep 600 & echo $! > child$PORT; {SERVER}"), found) == 0
    for port in found["role0"]:
        child = int(Path(f"child{port}").read_text())
        until(lambda child=child: ended(child), 10)


def test_what_is_started_is_written_down():
    written = commands(job("train", "serve $PORT"), {"role0": [1, 2]})
    assert written.splitlines() == [
        "( export HOST=127.0.0.1 PORT=1; serve $PORT )", "( export HOST=127.0.0.1 PORT=2; serve $PORT )", "( train )",
    ]  # fmt: skip
    typed = commands(job("exec true", "exec echo --host $HOST --port $PORT"), {"role0": [1, 2]})
    said = subprocess.run(
        ["bash", "-c", f"{typed}echo still here"], capture_output=True, text=True, env={"PATH": os.defpath}
    )
    assert said.stdout == "--host 127.0.0.1 --port 1\n--host 127.0.0.1 --port 2\nstill here\n"


def test_processes_find_the_programs_of_this_interpreter(monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert run(job('[ "$(command -v python)" = "$EXPECTED" ]'), {}) == 1
    monkeypatch.setenv("EXPECTED", str(Path(sys.executable).with_name("python")))
    assert run(job('[ "$(command -v python)" = "$EXPECTED" ]'), {}) == 0


def test_processes_have_five_minutes_for_a_checkpoint_after_sigterm(monkeypatch):
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "")  # so that its absence is restored
    monkeypatch.delenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT")
    found = list[int | None]()
    assert _status(lambda: found.append(LaunchConfig(1, 1, 1).shutdown_timeout)) == 0
    assert found == [280]


def test_a_server_that_does_not_answer_in_time_is_named():
    (port,) = free_ports(1)
    with pytest.raises(ServerNotReady, match=f"http://127.0.0.1:{port}/readyz does not answer after 0.1 s"):
        wait_for([f"http://127.0.0.1:{port}/readyz"], 0.1)


TRAINER = "trap 'touch checkpoint; exit 143' TERM; touch started; while true; do sleep 0.1; done"
PROGRAM = """
import sys; sys.path[:0] = sys.argv[1:]
from test_launch_local import SERVER, TRAINER, job, ports, run
sys.exit(run(job(TRAINER, SERVER), ports("role0")))
"""


@pytest.mark.seconds
def test_sigterm_is_the_trainers_whose_status_ends_all():
    started = subprocess.Popen([sys.executable, "-c", PROGRAM, *map(str, Path(__file__).parents[:3])])
    until(Path("started").exists, 60)
    os.kill(started.pid, signal.SIGTERM)
    assert started.wait(30) == 143 and Path("checkpoint").exists()


@pytest.mark.slow
def test_the_local_form_trains_to_the_last_bit_what_envsuite_train_does(tmp_path):
    from tiny_runs import environment, save_model, weights, without_times, write_settings

    save_model(tmp_path / "model")
    records, bits = [], []
    for name, words in {
        "here": ["train", "--processes", "2"],
        "launched": ["launch", "--local", "2", "--servers", "2", "--max-restarts", "0"],
    }.items():
        config = write_settings(tmp_path, name=name)
        command = [sys.executable, "-m", "envsuite.cli", *words, "--config", str(config)]
        ended = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=1200)
        assert ended.returncode == 0, ended.stderr
        records.append(without_times(tmp_path / "runs" / name))
        bits.append(weights(sorted((tmp_path / "runs" / name / "checkpoints").glob("iteration-*"))[-1]))
    assert records[0] == records[1] and bits[0] == bits[1]
    assert len(records[0]) == 7
    logs = {file.name for file in (tmp_path / "launch/launched/logs").iterdir()}
    assert logs == {"textcraft-0.log", "textcraft-1.log"}
    assert (tmp_path / "runs/launched/run.rank1.log").exists()
