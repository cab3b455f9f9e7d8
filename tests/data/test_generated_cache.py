"""However many seeds are asked for, generated data take no more than their share of the disk, and stay while used."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

from envsuite.alfworld import tasks as alfworld
from envsuite.alfworld.env import ALFWorld
from envsuite.core import ToolEnv
from envsuite.data import room
from envsuite.papersearch.env import PaperSearchEnv
from envsuite.searchqa.env import SearchQAEnv
from envsuite.webshop import catalogue
from envsuite.webshop import tasks as shops
from envsuite.webshop.env import WebShop

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
def test_the_cache_has_one_limit_and_what_is_played_stays(kind: Any, cache: Path) -> None:
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


def test_a_folder_in_use_stays_until_its_user_is_gone(tmp_path: Path) -> None:
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
