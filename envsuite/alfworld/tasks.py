"""Task sets: the games of a source, by split and family."""

from __future__ import annotations

import hashlib
import logging
from functools import lru_cache
from pathlib import Path

from envsuite.alfworld.scenes import SceneDifficulty
from envsuite.alfworld.source import Games, find_root, games_of, has_official, official_folder, read_games
from envsuite.core.tasks import TaskSet
from envsuite.data.places import cache_root
from envsuite.data.room import bound_generated, hold

ENV_ID = "ALFWorld-v0"
PUBLISHED = {"train": 3553, "valid_seen": 140, "valid_unseen": 134}
"""Number of games of each published split."""

DEFAULT = SceneDifficulty()

OPEN = 2
"""Generated sets of games that a process keeps when no environment plays them."""
_log = logging.getLogger(__name__)


def load(
    source: str | Path | None = None, scene_seed: int = 0, games: int = 600, difficulty: SceneDifficulty = DEFAULT
) -> tuple[Games, TaskSet]:
    """Loads the games of a source and its task set.

    Args:
        source: ``"official"``, ``"builtin"`` or ``"generated"``, which are the same, or the path of a folder in the
            official layout. ``None`` is ``"official"`` where the official games are there, else ``"builtin"``.
        scene_seed: Seed of the built-in games.
        games: Number of built-in games, of all splits together.
        difficulty: Difficulty of the built-in games.

    Raises:
        DataError: The folder has no games, or one of them is corrupt.
        UsageError: ``games`` is too small to fill the splits.
    """
    if source is None:
        source = "official" if has_official() else "builtin"
    if source in ("builtin", "generated"):
        return _builtin(scene_seed, games, difficulty)
    folder_games = games_of(find_root(official_folder() if source == "official" else Path(source)))
    task_set = _task_set(folder_games, "official")
    if source == "official":
        counts = task_set.summary()["splits"]
        if any(counts.get(split, 0) != count for split, count in PUBLISHED.items()):
            _log.warning(
                "%s has %s games, the published splits have %s; look with `envsuite data verify alfworld`",
                official_folder(), counts, PUBLISHED,
            )  # fmt: skip
    return folder_games, task_set


@lru_cache(maxsize=OPEN)
def _builtin(scene_seed: int, games: int, difficulty: SceneDifficulty) -> tuple[Games, TaskSet]:
    from envsuite.alfworld.generate import ensure

    root = cache_root() / "alfworld" / "builtin"
    before = {*root.glob("alfworld-*")}
    folder = ensure(root, scene_seed, games, difficulty)
    folder_games = read_games(find_root(folder))
    hold(folder, folder_games)
    if folder not in before:
        bound_generated(folder)
    return folder_games, _make_task_set(folder_games, "builtin")


def _make_task_set(games: Games, source: str) -> TaskSet:
    """Builds the task set, in the order of a hash of the ids: mixed, and the same everywhere."""
    splits = {name: tuple(sorted(ids, key=_shuffle_key)) for name, ids in games.splits.items()}
    return TaskSet(ENV_ID, source, games.version, splits, games.families)


_task_set = lru_cache(maxsize=8)(_make_task_set)


def _shuffle_key(task_id: str) -> str:
    return hashlib.sha256(f"{ENV_ID} {task_id}".encode()).hexdigest()
