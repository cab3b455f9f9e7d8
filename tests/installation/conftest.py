from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Makes a broken module of a name, which shadows the installed one in the processes that are started."""

    def make(name: str, body: str) -> None:
        folder = tmp_path / "shadow"
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(body)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))

    return make


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Makes a program of a name, first on the path, from a script of the shell."""

    def make(name: str, script: str) -> None:
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
        monkeypatch.setenv("PATH", os.pathsep.join([str(tmp_path), os.environ["PATH"]]))

    return make
