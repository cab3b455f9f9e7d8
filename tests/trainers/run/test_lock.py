"""The folder of a run belongs to one process at a time.

A disk that is full when a command starts: one line.
"""

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
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from tiny_runs import ROOT, environment, write_settings

from envsuite.cli import main as envsuite
from envsuite.exits import is_full, status_of
from trainers.processes.distributed import run_guarded
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
def test_a_second_start_is_refused_in_one_line_until_the_first_process_is_killed(place, capfd):
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


def test_where_there_are_no_locks_a_warning_says_so(tmp_path, monkeypatch, caplog):
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


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk without room."""
    folder = tmp_path / "full"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if sys.platform != "linux" or os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a file system of 64 KiB cannot be mounted here, which only root may")
    try:
        with (folder / "fill").open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
            while True:
                file.write(bytes(4096))
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_every_command_says_in_one_line_that_the_disk_is_full(full, place, capfd):
    config = str(write_settings(place, output=str(full / "runs")))
    assert main(["--config", config]) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"error: {full}/runs/tiny: cannot be written (No space left on device)")
    assert imitate(["--output", str(full / "model")]) == 2
    assert capfd.readouterr().err.splitlines()[0].startswith(f"error: {full}/model: cannot be written (No space")
    words = "eval run TextCraft-v0 --policy expert --workers 0 --out".split()
    assert envsuite([*words, str(full / "out")]) == 2
    *_, line = capfd.readouterr().err.splitlines()
    assert line.startswith("envsuite: a file could not be written ([Errno 28] No space left on device: ")
    assert f"{full}/out/TextCraft-v0" in line and line.endswith("make room and run it again")


@pytest.mark.parametrize(("program", "status"), [(run_guarded, 1), (status_of, 2)])
def test_a_full_disk_anywhere_in_a_program_is_one_line(full, program, status, capfd):
    def saving() -> int:
        save_file({"weights": torch.zeros(100_000)}, full / "model.safetensors")
        return 0

    assert program(saving) == status
    (line,) = capfd.readouterr().err.splitlines()
    assert "No space left on device" in line and line.endswith("make room and run it again")


def test_a_log_that_cannot_be_written_warns_once(full, caplog):
    from trainers.run.log import _LOG, run_log

    with run_log(full / "run.log"):
        for _ in range(3):
            _LOG.warning("a line that has no room")
    assert sum("run.log cannot be written" in record.getMessage() for record in caplog.records) == 1


def test_other_errors_are_no_full_disk():
    assert is_full(OSError(errno.EDQUOT, "x")) and is_full(SafetensorError("I/O: No space left on device (28)"))
    assert not is_full(OSError(errno.EACCES, "x")) and not is_full(ValueError("x"))
    with pytest.raises(ValueError, match="x"):
        status_of(lambda: int("x"))
