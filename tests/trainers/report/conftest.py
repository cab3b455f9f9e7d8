"""A small run folder, made once."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic_run import make_run


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "craft", iterations=6, groups=3, size=4, steps=5)
