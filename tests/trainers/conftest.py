from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from tiny_runs import save_model


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a tiny model in ``model``."""
    save_model(tmp_path / "model")
    return tmp_path
