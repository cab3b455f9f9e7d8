"""Task sets: task ids by split and type, with a hash of all."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import orjson

from envsuite.core.errors import DataError, UnknownTask, nearest, unknown

MOST_NUMBERED = 1_000_000
"""Most generated tasks of a level; as many numbers belong to each seed, and as many are left to the built-in tasks."""


@dataclass(frozen=True)
class TaskSet:
    """Task ids per split, in a fixed order, with the type of each task.

    The order and the hash are the same on every machine and under every Python version.
    """

    env_id: str
    """The environment, e.g. ``"TextCraft-v0"``."""
    source: str
    """Source of the tasks, e.g. ``"builtin"``."""
    version: str
    """Version of the data, e.g. ``"minecraft-1.16.2"``."""
    splits: Mapping[str, tuple[str, ...]]
    """Task ids of each split; no id is in two of them."""
    types: Mapping[str, str] = field(repr=False)
    """Task id -> task type (family, depth, …): the strata of evaluation."""

    def __post_init__(self) -> None:
        splits: dict[str, str] = {}
        for split, ids in self.splits.items():
            for task_id in ids:
                if task_id in splits:
                    raise DataError(f"{self.env_id}: task {task_id!r} is in split {splits[task_id]!r} and in {split!r}")
                splits[task_id] = split
        object.__setattr__(self, "_split_of", splits)

    @cached_property
    def hash(self) -> str:
        """Returns the SHA-256 (hex) of environment, source, version, splits and types, as sorted and indented JSON."""
        body = {
            "env_id": self.env_id,
            "source": self.source,
            "version": self.version,
            "splits": {name: list(ids) for name, ids in self.splits.items()},
            "types": dict(self.types),
        }
        return hashlib.sha256(orjson.dumps(body, option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2)).hexdigest()

    def ids(self, split: str) -> tuple[str, ...]:
        """Returns the task ids of ``split``.

        Raises:
            UnknownTask: The split does not exist.
        """
        if split not in self.splits:
            raise unknown(f"split of {self.env_id} (source {self.source})", split, self.splits, UnknownTask)
        return self.splits[split]

    def split_of(self, task_id: str) -> str:
        """Returns the split of ``task_id``.

        Raises:
            UnknownTask: No split has it; the message names similar ids.
        """
        owner: dict[str, str] = self._split_of  # type: ignore[attr-defined]
        if task_id not in owner:
            near = "".join(f'\n  "{name}" ({owner[name]})' for name in nearest(task_id, owner))
            raise UnknownTask(
                f"{self.env_id} (source {self.source}, {len(owner)} tasks, manifest {self.hash[:8]}) has no task "
                f"{task_id!r}.{' Nearest:' + near if near else ''}\n"
                f"List them with: envsuite envs tasks {self.env_id}"
            )
        return owner[task_id]

    def where(self, keep: Callable[[str, str], bool]) -> TaskSet:
        """Returns the tasks for which ``keep(task_id, task_type)`` is true, in the same order."""
        splits = {s: tuple(i for i in ids if keep(i, self.types[i])) for s, ids in self.splits.items()}
        selection = {i for ids in splits.values() for i in ids}
        types = {i: t for i, t in self.types.items() if i in selection}
        return TaskSet(self.env_id, self.source, self.version, splits, types)

    def select(self, tasks: Iterable[str] | None) -> TaskSet:
        """Returns the tasks named by ``tasks``: ids, or task types (``"depth-2"``), or both; all of them for ``None``.

        Raises:
            UnknownTask: A name is neither an id nor a type.
        """
        if tasks is None:
            return self
        names = {tasks} if isinstance(tasks, str) else set(tasks)
        all_types = set(self.types.values())
        for name in sorted(names - all_types):
            if name not in self.types:
                if nearest(name, all_types):
                    raise unknown(f"task or task type of {self.env_id}", name, all_types, UnknownTask)
                self.split_of(name)  # raises, with similar ids
        return self.where(lambda task_id, task_type: task_id in names or task_type in names)

    def summary(self) -> dict[str, Any]:
        """Returns counts, hash, source and version, as written into every result."""
        return {
            "env_id": self.env_id,
            "source": self.source,
            "version": self.version,
            "hash": self.hash,
            "splits": {name: len(ids) for name, ids in self.splits.items()},
        }


def number_tasks(
    env_id: str, version: str, level: str, builtin: Mapping[str, range], generated: tuple[int, int] | None
) -> TaskSet:
    """Returns the tasks of a level, each a number; of generated ones 80 % are in train and 10 % in validation.

    Args:
        env_id: The environment.
        version: Version of what makes a task of its number.
        level: The level, which is the type of all its tasks.
        builtin: Numbers of the built-in tasks by split: train, validation and test.
        generated: Seed and count of generated tasks; ``None``: the built-in ones.
    """
    version, numbers = f"{version}-{level}", builtin
    if generated is not None:
        seed, count = generated
        version, first = f"{version}-{seed}", (seed + 1) * MOST_NUMBERED
        ends = [first, first + count * 80 // 100, first + count * 90 // 100, first + count]
        numbers = {split: range(*pair) for split, pair in zip(builtin, pairwise(ends), strict=True)}
    splits = {split: tuple(f"{level}/{number}" for number in part) for split, part in numbers.items()}
    types = {task_id: level for ids in splits.values() for task_id in ids}
    return TaskSet(env_id, "builtin" if generated is None else "generated", version, splits, types)
