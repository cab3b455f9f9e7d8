"""Task sets: the goals of a book, and their splits."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from functools import cache
from pathlib import Path

from envsuite.core.caches import made_once
from envsuite.core.errors import DataError
from envsuite.core.tasks import TaskSet
from envsuite.textcraft.generate import generated_book
from envsuite.textcraft.planning import plan
from envsuite.textcraft.source import builtin_book, folder_book, official_folder
from envsuite.textcraft.world import NAMESPACE, RecipeBook

ENV_ID = "TextCraft-v0"
HORIZON = 50
"""Maximum number of steps of an episode; a goal that the expert cannot reach in these is not a task."""
SHARES = {"builtin": (40, 10), "official": (40, 10), "generated": (80, 10)}
"""Percentage of train and of validation in each stratum of depth, by source; the rest is test."""


def load(source: str, book_seed: int = 0, goals: int = 1000) -> tuple[RecipeBook, TaskSet]:
    """Returns the recipe book of a source and its task set; read or generated once per process.

    Args:
        source: ``"builtin"``, ``"generated"``, ``"official"``, or the path of a folder of recipe files.
        book_seed: Seed of a generated book.
        goals: Number of goals of a generated book.

    Raises:
        DataError: The folder has no recipe files, or one of them is corrupt.
        MissingExtra: The package with Minecraft's recipes and words is not installed.
    """
    if source == "generated":
        return _generate_book(book_seed, goals)
    if source == "builtin":
        return _builtin()
    return _folder(official_folder() if source == "official" else Path(source).resolve())


@cache
def _builtin() -> tuple[RecipeBook, TaskSet]:
    return builtin_book(), task_set(builtin_book(), "builtin")


@made_once(8)
def _generate_book(book_seed: int, goals: int) -> tuple[RecipeBook, TaskSet]:
    book = generated_book(book_seed, goals)
    return book, task_set(book, "generated")


@cache
def _folder(folder: Path) -> tuple[RecipeBook, TaskSet]:
    book = folder_book(folder)
    tasks = task_set(book, "official")
    if not tasks.types:
        raise DataError(f"{folder}: no goal, which is an item that needs another one, and {HORIZON} steps or less")
    return book, tasks


def task_set(book: RecipeBook, source: str) -> TaskSet:
    """Returns all goals of depth 2 and more that can be reached in :data:`HORIZON` steps, split within each depth.

    A hash of its name decides a goal's split and its position there, so both are the same everywhere.
    """
    strata: dict[int, list[str]] = defaultdict(list)
    for item, depth in book.depth.items():
        if depth >= 2 and 0 < len(plan(book, item)) <= HORIZON:
            strata[depth].append(item.removeprefix(NAMESPACE))
    splits: dict[str, list[str]] = {"train": [], "validation": [], "test": []}
    train, validation = SHARES[source]
    for _, names in sorted(strata.items()):
        names.sort(key=_place)
        first = round(len(names) * train / 100)
        second = first + round(len(names) * validation / 100)
        for split, part in zip(splits.values(), (names[:first], names[first:second], names[second:]), strict=True):
            split.extend(part)
    types = {name: f"depth-{depth}" for depth, names in strata.items() for name in names}
    task_ids = {name: tuple(sorted(ids, key=_place)) for name, ids in splits.items()}
    return TaskSet(ENV_ID, source, book.version, task_ids, types)


def _place(name: str) -> str:
    return hashlib.sha256(f"{ENV_ID} {name}".encode()).hexdigest()
