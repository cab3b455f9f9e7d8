"""Results of episodes, by what they have in common: one group for each policy on each split."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envsuite.core.errors import DataError
from envsuite.evaluation.results import Conditions, EpisodeResult, read_results

ALL = "all"
"""Name of the stratum that has every task."""


@dataclass(frozen=True)
class ResultGroup:
    """The episodes of one policy on one split, all of the same conditions."""

    conditions: Conditions
    name: str
    """Name of the policy, with the conditions by which it differs from others of its name."""
    results: tuple[EpisodeResult, ...]
    """One for each episode, those that the infrastructure broke included."""
    expected: Mapping[str, str]
    """Stratum of each task that any policy has played of the same tasks."""

    @property
    def finished_results(self) -> list[EpisodeResult]:
        """Returns the episodes that say something of the policy."""
        return [result for result in self.results if result.broken is None]

    @property
    def broken_results(self) -> list[EpisodeResult]:
        """Returns the episodes that the infrastructure broke."""
        return [result for result in self.results if result.broken is not None]

    @property
    def successes(self) -> TaskSums:
        """Returns the successes of the finished episodes, by task."""
        results = self.finished_results
        return task_sums(results, (result.success for result in results))

    @property
    def scores(self) -> TaskSums:
        """Returns the scores of the finished episodes, by task."""
        results = self.finished_results
        return task_sums(results, (result.score for result in results))

    @property
    def seeds(self) -> list[int]:
        """Returns the seeds that were asked for or begun; one that was left out between two of them counts."""
        return list(range(max((max(result.seed + 1, result.seeds or 0) for result in self.results), default=0)))

    @property
    def size(self) -> int:
        """Returns the number of tasks that are to be played."""
        conditions = self.conditions
        return conditions.panel_size if conditions.sample is None else conditions.sample

    @property
    def complete(self) -> bool:
        """Returns whether every task was played with every seed that was asked for, and none broke."""
        return not self.broken_results and len(self.results) >= self.size * len(self.seeds)

    def only(self, results: Iterable[EpisodeResult], strata: Mapping[str, str]) -> ResultGroup:
        """Returns a group of some of the episodes."""
        return replace(self, results=tuple(results), expected=strata)


@dataclass(frozen=True)
class TaskSums:
    """Sums of a quantity over the finished episodes of each task."""

    tasks: tuple[str, ...]
    totals: NDArray[np.float64]
    """``(T,)``"""
    episodes: NDArray[np.int64]
    """``(T,)``, at least 1"""

    @property
    def means(self) -> NDArray[np.float64]:
        """Returns the mean on each task, ``(T,)``."""
        return self.totals / self.episodes

    def pairs(self) -> list[tuple[int, int]]:
        """Returns successes and episodes of each task."""
        return [(round(total), int(n)) for total, n in zip(self.totals, self.episodes, strict=True)]

    def of(self, tasks: Sequence[str]) -> TaskSums:
        """Returns the sums of these tasks, in their order."""
        at = {task: index for index, task in enumerate(self.tasks)}
        indices = [at[task] for task in tasks]
        return TaskSums(tuple(tasks), self.totals[indices], self.episodes[indices])


def task_sums(results: Iterable[EpisodeResult], values: Iterable[float]) -> TaskSums:
    """Returns the sums of ``values``, one for each result, by task, in the order of the tasks' ids."""
    by_task: dict[str, list[float]] = defaultdict(list)
    for result, value in zip(results, values, strict=True):
        by_task[result.task_id].append(value)
    tasks = tuple(sorted(by_task))
    totals = [math.fsum(by_task[task]) for task in tasks]  # exact, so that the order of the episodes changes no digit
    return TaskSums(tasks, np.array(totals, float), np.array([len(by_task[task]) for task in tasks], int))


def load_groups(paths: Sequence[Path]) -> list[ResultGroup]:
    """Returns the results of files and folders in groups, in the order in which they are found.

    Raises:
        DataError: As :func:`~envsuite.evaluation.results.read_results`; or there is no episode.
    """
    evaluations: dict[bytes, list[EpisodeResult]] = defaultdict(list)
    for result in read_results(*paths):
        evaluations[result.conditions.canonical].append(result)
    if not evaluations:
        raise DataError(f"no episode in {', '.join(map(str, paths))}")
    return groups_of(list(evaluations.values()))


def groups_of(evaluations: Sequence[Sequence[EpisodeResult]]) -> list[ResultGroup]:
    """Returns groups of the episodes of single evaluations, each of which has the same conditions throughout."""
    strata: dict[tuple[Any, ...], dict[str, str]] = defaultdict(dict)
    for results in evaluations:
        for result in results:
            strata[_tasks_of(result.conditions)][result.task_id] = result.stratum
    names = _names([results[0].conditions for results in evaluations])
    return [
        ResultGroup(results[0].conditions, name, tuple(results), strata[_tasks_of(results[0].conditions)])
        for results, name in zip(evaluations, names, strict=True)
    ]


def _tasks_of(conditions: Conditions) -> tuple[Any, ...]:
    return conditions.env_id, conditions.source, conditions.split, conditions.panel, conditions.sample


def _names(all_conditions: Sequence[Conditions]) -> list[str]:
    """Returns the policies' names; those that appear twice on a split have what tells them apart."""
    same: dict[tuple[str, str, str, str], list[int]] = defaultdict(list)
    for place, conditions in enumerate(all_conditions):
        same[conditions.env_id, conditions.source, conditions.split, conditions.policy].append(place)
    names = [conditions.policy for conditions in all_conditions]
    for places in same.values():
        for place, name in zip(places, _distinct([all_conditions[place] for place in places]), strict=True):
            names[place] = name
    return names


def _distinct(all_conditions: Sequence[Conditions]) -> list[str]:
    """Returns different names for policies of one name: with short values where these tell them apart."""
    flat = [_flat(conditions) for conditions in all_conditions]
    for most in (16, None):
        marks = [
            [f"{name} {_short(value, most)}" for name, value in own.items() if any(o.get(name) != value for o in flat)]
            for own in flat
        ]
        names = [
            f"{conditions.policy} ({', '.join(own)})" if own else conditions.policy
            for conditions, own in zip(all_conditions, marks, strict=True)
        ]
        if len(set(names)) == len(names):
            return names
    return [f"{name} #{number}" for number, name in enumerate(names, 1)]


def _flat(conditions: Conditions) -> dict[str, Any]:
    """Returns the conditions with the entries of mappings as fields of their own."""
    flat: dict[str, Any] = {}
    for field in fields(conditions):
        value = getattr(conditions, field.name)
        if isinstance(value, Mapping):
            flat.update({f"{field.name}.{key}": entry for key, entry in value.items()})
        else:
            flat[field.name] = value
    return flat


def _short(value: object, most: int | None) -> str:
    text = str(value)
    return text if most is None or len(text) <= most else f"{text[: most - 4]}…"


def natural(name: str) -> list[tuple[int, str]]:
    """Returns a sort key that puts ``depth-2`` before ``depth-10``."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]
