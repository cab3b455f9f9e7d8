"""The folder of a run belongs to one process at a time."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import ROOT, environment, train, without_times, write_settings
from waiting import until

from trainers.programs.imitate import main as imitate
from trainers.run.lock import NAME, hold_folder
from trainers.train import main

HOLDER = """
import pathlib, sys, time
from trainers.run.lock import hold_folder

with hold_folder(pathlib.Path(sys.argv[1]), "trainers.train", "--name"):
    print("held", flush=True)
    time.sleep(600)
"""


@contextmanager
def _holder(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process, which holds ``folder``."""
    command = [sys.executable, "-c", HOLDER, str(folder)]
    with subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


@pytest.mark.seconds
def test_a_second_start_is_refused_in_one_line_until_the_first_process_is_killed(
    place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config, folder = str(write_settings(place, iterations=0)), place / "runs" / "tiny"
    with _holder(folder) as holder:
        who = f"in use by trainers.train (pid {holder.pid} on {socket.gethostname()}, since "
        for program, words, other in (
            (main, ["--config", config], "--name"),
            (main, ["--config", config, "--resume"], "--name"),
            (imitate, ["--output", str(folder)], "--output"),
        ):
            assert program(words) == 2
            (line,) = capfd.readouterr().err.splitlines()
            assert line.startswith(f"error: {folder} is {who}") and line.endswith(f"choose another {other}")
        assert [file.name for file in folder.iterdir()] == [NAME], "nothing was written"
        holder.kill()
        holder.wait()
        assert main(["--config", config]) == 0
    assert not (folder / NAME).exists() and (folder / "metrics.jsonl").exists()


def test_where_there_are_no_locks_a_warning_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def flock(*_: Any) -> None:  # the system's call alone is replaced
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    with hold_folder(tmp_path, "x", "--y"), hold_folder(tmp_path, "x", "--y"):
        pass
    assert (
        caplog.messages
        == [f"{tmp_path}: its file system has no locks (No locks available); start no other run there"] * 2
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_living_run_loses_nothing_to_a_second_start_beside_it(place: Path) -> None:
    config = str(write_settings(place, iterations=4000))
    metrics = place / "runs" / "tiny" / "metrics.jsonl"
    words = [sys.executable, "-m", "trainers.train", "--config", config]
    with subprocess.Popen(words, cwd=ROOT, env=environment(), stdout=subprocess.DEVNULL) as first:
        try:
            until(lambda: first.poll() is not None or (metrics.exists() and metrics.read_bytes().count(b"\n") > 4))
            for more in ([], ["--resume"]):
                (line,) = train("--config", config, *more, status=2).stderr.splitlines()
                assert f"(pid {first.pid} on " in line
        finally:
            first.kill()
    train("--config", str(write_settings(place, iterations=6)), "--resume", status=0)
    done = [record["iteration"] for record in without_times(place / "runs" / "tiny")]
    assert done == sorted(done) and set(done) == set(range(max(done) + 1))
