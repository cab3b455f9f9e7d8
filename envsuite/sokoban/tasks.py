"""Task sets: levels and their splits."""

from __future__ import annotations

from pathlib import Path

from envsuite.core.caches import made_once
from envsuite.core.draws import Draw
from envsuite.core.tasks import TaskSet
from envsuite.sokoban.generate import KIND, LevelKind, generate
from envsuite.sokoban.level import Level
from envsuite.sokoban.solver import solve
from envsuite.sokoban.source import BUILTIN, GENERATOR, SHARES, GeneratedLevels, LevelFolder, LevelSet, official_folder

ENV_ID = "Sokoban-v0"
HORIZON = 15
"""Maximum number of steps of an episode; every built-in level has a solution of at most as many moves."""
COUNTS = {"train": 400, "validation": 100, "test": 200}
"""Number of built-in levels with one box, and as many with two."""
PUSHES = {1: (2, 3), 2: (2, 3, 4, 5)}
"""Fewest pushes of the built-in levels with one and two boxes, in turn."""


def load(source: str, kind: LevelKind = KIND, level_seed: int = 0, count: int = 1000) -> tuple[LevelSet, TaskSet]:
    """Returns the levels of a source and its task set; listed once per process.

    Args:
        source: ``"builtin"``, ``"generated"``, ``"official"``, or the path of a folder of level files.
        kind: Size and difficulty of generated levels.
        level_seed: Seed of generated levels.
        count: Number of generated levels.

    Raises:
        DataError: The folder has no level files.
    """
    if source == "generated":
        return _generate_levels(kind, level_seed, count)
    if source == "builtin":
        return _folder(BUILTIN, "builtin")
    return _folder(official_folder() if source == "official" else Path(source).resolve(), "official")


@made_once(8)
def _generate_levels(kind: LevelKind, level_seed: int, count: int) -> tuple[LevelSet, TaskSet]:
    levels = GeneratedLevels(kind, level_seed, count)
    return levels, task_set(levels, "generated")


@made_once(8)
def _folder(folder: Path, source: str) -> tuple[LevelSet, TaskSet]:
    levels = LevelFolder(folder)
    return levels, task_set(levels, source)


def task_set(levels: LevelSet, source: str) -> TaskSet:
    """Returns all levels, by split."""
    splits: dict[str, list[str]] = {"train": [], "validation": [], "test": []}
    for task_id, (split, _) in levels.listed.items():
        splits[split].append(task_id)
    types = {task_id: kind for task_id, (_, kind) in levels.listed.items()}
    return TaskSet(ENV_ID, source, levels.version, {name: tuple(ids) for name, ids in splits.items()}, types)


def builtin_files() -> dict[str, str]:
    """Returns the text of each built-in level file, by its path in :data:`BUILTIN`.

    No two levels are equal, and those of different splits differ in room or targets, even if turned and mirrored; so
    do these and the generated levels of other splits.
    """
    boards: set[tuple[str, ...]] = set()
    files = {}
    for boxes, pushes in PUSHES.items():
        draw = Draw(f"{GENERATOR} builtin {boxes}")
        for split, count in COUNTS.items():
            texts: list[str] = []
            while len(texts) < count:
                least = pushes[len(texts) % len(pushes)]
                level, best = generate(LevelKind(boxes=boxes, pushes=(least, 30)), draw, SHARES[split])
                if level.canonical() not in boards and (moves := _moves(level)) <= HORIZON:
                    boards.add(level.canonical())
                    texts.append(f"; {len(texts)}: {best} pushes, {moves} moves\n{level.text()}\n")
            files[f"boxes-{boxes}/{split}.txt"] = "\n".join(texts)
    return files


def _moves(level: Level) -> int:
    return len(solve(level).moves or ())
