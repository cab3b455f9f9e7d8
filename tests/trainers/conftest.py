from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from third_party import files_of_new, install
from tiny_runs import save_model


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a tiny model in ``model``."""
    save_model(tmp_path / "model")
    return tmp_path


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder on Python's path, with the package that ``envsuite new`` writes for the module's words ``NEW``."""
    folder = tmp_path_factory.mktemp("site")
    install(folder, files_of_new(tmp_path_factory.mktemp("new"), *request.module.NEW))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        importlib.invalidate_caches()
        yield folder
