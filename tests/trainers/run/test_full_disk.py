"""A disk that is full when a command starts: one line."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from tiny_runs import write_settings

from envsuite.cli import main as envsuite
from envsuite.exits import is_full, status_of
from trainers.processes.distributed import run_guarded
from trainers.programs.imitate import main as imitate
from trainers.train import main


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


def test_every_command_says_in_one_line_that_the_disk_is_full(
    full: Path, place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
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
def test_a_full_disk_anywhere_in_a_program_is_one_line(
    full: Path, program: Callable[[Callable[[], int]], int], status: int, capfd: pytest.CaptureFixture[str]
) -> None:
    def saving() -> int:
        save_file({"weights": torch.zeros(100_000)}, full / "model.safetensors")
        return 0

    assert program(saving) == status
    (line,) = capfd.readouterr().err.splitlines()
    assert "No space left on device" in line and line.endswith("make room and run it again")


def test_a_log_that_cannot_be_written_warns_once(full: Path, caplog: pytest.LogCaptureFixture) -> None:
    from trainers.run.log import _LOG, run_log

    with run_log(full / "run.log"):
        for _ in range(3):
            _LOG.warning("a line that has no room")
    assert sum("run.log cannot be written" in record.getMessage() for record in caplog.records) == 1


def test_other_errors_are_no_full_disk() -> None:
    assert is_full(OSError(errno.EDQUOT, "x")) and is_full(SafetensorError("I/O: No space left on device (28)"))
    assert not is_full(OSError(errno.EACCES, "x")) and not is_full(ValueError("x"))
    with pytest.raises(ValueError, match="x"):
        status_of(lambda: int("x"))
