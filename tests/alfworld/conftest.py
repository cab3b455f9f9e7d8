from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from envsuite.alfworld.source import games_of


@pytest.fixture(scope="session")
def games_root(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that holds ``json_2.1.1`` with real games of ALFWorld: all of valid_seen, 200 of valid_train."""
    archive = shared / "data" / "alfworld" / "games.tar.xz"
    if not archive.is_file():
        pytest.skip(f"needs the games in {archive}")
    root = tmp_path_factory.mktemp("alfworld")
    with tarfile.open(archive) as games:
        games.extractall(root, filter="data")
    return root


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A data folder of this test's own; nothing that was read before is remembered."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("ENVSUITE_DATA", str(folder))
    games_of.cache_clear()
    yield folder
    games_of.cache_clear()
