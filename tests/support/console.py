"""Commands in the process of a test: what is typed, how it ends, and what is written."""

from __future__ import annotations

import io
import shlex
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from envsuite.cli import main as envsuite

Main = Callable[[Sequence[str] | None], Any]


class Terminal(io.StringIO):
    """What is written to a terminal."""

    def isatty(self) -> bool:
        return True


class Console:
    """Runs commands one after another."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, line: str, status: int = 0, main: Main = envsuite) -> tuple[str, str]:
        """Runs a line as a shell would, which ends with ``status``; returns what was written to out and err."""
        assert main(shlex.split(line)) == status
        return self._capsys.readouterr()
