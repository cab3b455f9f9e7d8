"""Commands whose output nobody reads, or that were started without one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from envsuite.cli import available

PRINTING = (
    "--version",
    "envs list",
    "envs options",
    "envs panels list",
    "data list",
    "eval power --rate 0.5 --tasks 9",
)
HELPS = [pytest.param(f"{name} --help", marks=pytest.mark.slow) for name in ("", *available())]


@pytest.mark.seconds
@pytest.mark.parametrize("stdout", ["without a reader", "closed"])
@pytest.mark.parametrize("words", [*PRINTING, *HELPS])
def test_a_command_ends_as_usual_where_its_output_goes_nowhere(words: str, stdout: str, root: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    program = [sys.executable, "-m", "envsuite.cli", *words.split()]
    shell = ["sh", "-c", 'exec "$@" >&-', "sh", *program] if stdout == "closed" else program
    ended = subprocess.run(shell, stdout=writer, stderr=subprocess.PIPE, text=True, cwd=root, check=False)
    os.close(writer)
    assert ended.returncode == 0 and "Traceback" not in ended.stderr and "Exception" not in ended.stderr, ended.stderr
