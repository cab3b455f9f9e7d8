"""OpenEnv's task API for one environment: its splits and tasks, over HTTP, without an episode."""

from __future__ import annotations

from typing import Any

from envsuite.core import TaskSet
from envsuite.core.errors import UnknownTask

KINDS = ("train", "validation", "test")
"""Types of splits that the contract knows; any other split is a ``validation``."""


def splits(tasks: TaskSet) -> list[dict[str, Any]]:
    """Returns name and type of each split."""
    return [{"name": name, "type": name if name in KINDS else "validation"} for name in tasks.splits]


def list_tasks(tasks: TaskSet, split: str, start: int | None = None, stop: int | None = None) -> list[dict[str, Any]]:
    """Returns the tasks of a split from ``start`` to before ``stop``, as a slice of Python has them.

    Raises:
        UnknownTask: There is no such split.
    """
    ids = tasks.ids(split)
    return [_describe_task(tasks, split, index) for index in range(len(ids))[start:stop]]


def describe_task_at(tasks: TaskSet, split: str, index: int) -> dict[str, Any]:
    """Returns the task at ``index`` of a split.

    Raises:
        UnknownTask: There is no such split or index.
    """
    count = len(tasks.ids(split))
    if not 0 <= index < count:
        raise UnknownTask(f"{tasks.env_id} has no task {index} in split {split!r}: it has {count}, counted from 0")
    return _describe_task(tasks, split, index)


def _describe_task(tasks: TaskSet, split: str, index: int) -> dict[str, Any]:
    task_id = tasks.ids(split)[index]
    return {"id": task_id, "index": index, "split": split, "type": tasks.types[task_id]}
