from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import psutil
import pytest
from waiting import ended, until

from envsuite.core.processes import Child


@pytest.fixture
def start() -> Iterator[Callable[..., Child]]:
    """Starts children, and ends those that the test leaves."""
    started: list[Child] = []

    def make(function: str, **environment: str) -> Child:
        started.append(Child(f"children:{function}", environment))
        return started[-1]

    yield make
    for child in started:
        child.stop()


@pytest.mark.parametrize(
    ("function", "ending"),
    [
        ("leave_with_three", "exited with code 3"),
        ("kill_itself", "was killed by SIGTERM"),
        ("end_when_closed", "exited with code 0"),
    ],
)
def test_a_child_that_ends_by_itself_says_how(start: Callable[..., Child], function: str, ending: str) -> None:
    assert start(function).stop(60.0) == ending


def test_a_child_that_hangs_is_killed_after_the_grace_and_not_before(start: Callable[..., Child]) -> None:
    child = start("hang")
    began = time.monotonic()
    assert child.stop(0.5) == "was killed"
    assert 0.5 <= time.monotonic() - began < 10
    assert child.process.returncode == -9


def test_what_a_child_has_started_ends_with_it(start: Callable[..., Child]) -> None:
    child = start("start_another")
    other = int(child.socket.recv(100))
    assert psutil.pid_exists(other)
    child.stop()
    until(lambda: ended(other), 30.0)


def test_a_child_computes_in_one_thread_unless_the_user_says_otherwise(
    start: Callable[..., Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert start("tell_variable").socket.recv(100) == b"1 None\n"
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert start("tell_variable", COLOUR="blue").socket.recv(100) == b"3 blue\n"


@pytest.mark.seconds
def test_a_child_says_and_reads_nothing_where_its_program_does_and_ends_with_it_in_the_middle_of_a_call() -> None:
    program = (
        "import os; from envsuite.core.processes import Child\n"
        "child = Child('children:say_and_listen')\n"
        "print(child.process.pid, child.socket.recv(100).decode(), flush=True)\n"
        "os._exit(0)"
    )
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    began = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-c", program], input="typed", capture_output=True, text=True, env=paths, timeout=50
    )
    assert time.monotonic() - began < 30, "the child would have gone on for a minute"
    pid, heard = ended.stdout.split()
    assert heard == "''" and ended.stderr == "words of a world\n"
    until(lambda: not psutil.pid_exists(int(pid)), 10.0)
