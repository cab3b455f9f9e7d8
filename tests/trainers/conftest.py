from __future__ import annotations

from pathlib import Path

import pytest
from tiny_runs import save_model


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a tiny model in ``model``."""
    save_model(tmp_path / "model")
    return tmp_path
