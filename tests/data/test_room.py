"""Folders of files that can be made again are kept within a limit, whoever reads them meanwhile.

However many seeds are asked for, generated data take no more than their share of the disk, and stay while used.
"""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsuite.alfworld import tasks as alfworld
from envsuite.alfworld.env import ALFWorld
from envsuite.core import ToolEnv
from envsuite.data import room
from envsuite.data.locks import hold_lock, try_locked
from envsuite.data.room import make_room
from envsuite.papersearch.env import PaperSearchEnv
from envsuite.searchqa.env import SearchQAEnv
from envsuite.webshop import catalogue
from envsuite.webshop import tasks as shops
from envsuite.webshop.env import WebShop


def _file(folder: Path, name: str, size: int, used: int) -> Path:
    path = folder / name
    path.write_bytes(bytes(size))
    os.utime(path, ns=(used, used))
    return path


@given(sizes=st.lists(st.integers(0, 50), min_size=1, max_size=8), limit=st.integers(0, 200), data=st.data())
def test_what_was_used_last_stays(sizes, limit, data):
    kept = data.draw(st.integers(0, len(sizes) - 1))
    with TemporaryDirectory() as made:
        folder = Path(made)
        for number, size in enumerate(sizes):
            _file(folder, f"{number}.corpus", size, used=number + 1)
        make_room(folder, limit, folder / f"{kept}.corpus")
        left = sorted(int(path.stem) for path in folder.iterdir())
    assert kept in left and (sum(sizes[number] for number in left) <= limit or left == [kept])
    removed = [number for number in range(len(sizes)) if number not in left]
    if removed:
        before = sum(sizes[number] for number in {*left, max(removed)})
        assert before > limit, "none was removed that there was room for"
        assert max(removed) < min((number for number in left if number != kept), default=len(sizes))


def test_a_killed_build_takes_room_and_is_removed_with_its_lock(tmp_path):
    kept = _file(tmp_path, "b.corpus", 10, used=2)
    building = tmp_path / ".a.corpus.building"
    building.mkdir()
    _file(building, "texts", 10, used=1)
    with hold_lock(tmp_path / ".a.corpus.lock"):
        pass
    make_room(tmp_path, 20, kept)
    assert building.is_dir()
    with hold_lock(tmp_path / ".c.corpus.lock"):  # of a build that failed
        pass
    make_room(tmp_path, 20, kept)
    assert building.is_dir() and not (tmp_path / ".c.corpus.lock").exists()
    make_room(tmp_path, 19, kept)
    assert [path.name for path in tmp_path.iterdir()] == ["b.corpus"]


def test_what_is_being_built_stays(tmp_path):
    old, new = _file(tmp_path, "a.corpus", 10, used=1), _file(tmp_path, "b.corpus", 10, used=2)
    kept = _file(tmp_path, "c.corpus", 10, used=3)
    with hold_lock(tmp_path / ".a.corpus.lock"):
        make_room(tmp_path, 20, kept)
    assert old.is_file() and not new.exists()


def test_what_cannot_be_removed_stays_and_the_next_is_removed(tmp_path):
    stuck = tmp_path / "a.corpus"
    stuck.mkdir()
    os.utime(stuck, ns=(1, 1))
    old, kept = _file(tmp_path, "b.corpus", 10, used=2), _file(tmp_path, "c.corpus", 10, used=3)
    make_room(tmp_path, 15, kept)
    assert stuck.is_dir() and kept.is_file() and not old.exists()


def test_a_folder_that_is_not_there_has_room(tmp_path):
    make_room(tmp_path / "none", 0, tmp_path / "none" / "a.corpus")
    assert not any(tmp_path.iterdir())


def test_a_lock_whose_file_its_holder_removes_goes_on_excluding(tmp_path):
    path, inside, leave = tmp_path / "lock", threading.Event(), threading.Event()

    def wait() -> None:
        with hold_lock(path):
            inside.set()
            leave.wait(20)

    waiting = threading.Thread(target=wait)
    with hold_lock(path):
        waiting.start()
        assert not inside.wait(0.2)
        path.unlink()
    assert inside.wait(20)
    assert path.is_file() and try_locked(path) is None
    leave.set()
    waiting.join()
    held = try_locked(path)
    assert held is not None
    held.close()


KINDS: dict[type[ToolEnv], tuple[str, dict[str, Any]]] = {
    ALFWorld: ("scene_seed", {"source": "builtin", "games": 18}),
    WebShop: ("shop_seed", {"source": "builtin", "products": 60}),
    PaperSearchEnv: ("corpus_seed", {"papers": 200}),
    SearchQAEnv: ("corpus_seed", {"entities": 300, "questions": 20}),
}
LIMIT = 3_000_000


def taken(cache: Path) -> int:
    """Bytes of all files that are in a cache."""
    return sum(file.stat().st_size for file in cache.rglob("*") if file.is_file())


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache with a small limit."""
    monkeypatch.setenv("ENVSUITE_DATA", str(tmp_path))
    monkeypatch.setattr(room.bound_generated, "__defaults__", (LIMIT,))
    monkeypatch.setattr("envsuite.retrieval.corpus_build.GENERATED", LIMIT)
    for known in (alfworld._builtin, catalogue._open, shops.task_set, shops.published_order):
        known.cache_clear()
    return tmp_path / "cache"


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_cache_has_one_limit_and_what_is_played_stays(kind, cache):
    seed, options = KINDS[kind]
    played = kind(**{seed: 0}, **options)
    played.reset(seed=0)
    for number in range(1, 16):
        for other, (name, small) in KINDS.items():
            other(**{name: number}, **small)
        gc.collect()
    catalogue._open.cache_clear()
    shops.task_set.cache_clear()
    kind(**{seed: 99}, **options)
    assert taken(cache) < 2 * LIMIT, "the limit, and what the last environments use"
    for episode in range(5):
        played.reset(seed=episode)
        played.action_space.seed(0)
        played.step(played.action_space.sample())


def test_a_folder_in_use_stays_until_its_user_is_gone(tmp_path):
    class User:
        """Somebody."""

    for name in ("a", "b"):
        (tmp_path / name / "deep").mkdir(parents=True)
        (tmp_path / name / "deep" / "file").write_bytes(bytes(100))
    user, gone = User(), User()
    room.hold(tmp_path / "a", user)
    room.hold(tmp_path / "b", gone)
    del gone
    gc.collect()
    room.make_room(tmp_path, 50, tmp_path / "c")
    assert [path.name for path in sorted(tmp_path.glob("[!.]*"))] == ["a"]
    del user
    gc.collect()
    room.make_room(tmp_path, 50, tmp_path / "c")
    assert not any(tmp_path.iterdir())
