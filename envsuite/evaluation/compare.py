"""Paired comparisons of policies on the same tasks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from envsuite.core.errors import DataError, UsageError, unknown
from envsuite.evaluation.groups import ResultGroup, TaskSums
from envsuite.evaluation.sheets import MARK, Cell, Name, Sheet, percent
from envsuite.evaluation.statistics import (
    benjamini_hochberg,
    holm,
    paired_permutation,
    paired_rates_interval,
    paired_scores_bounds,
)

SAME = ("source", "panel", "sample", "budget", "env_options")
"""Conditions that must be equal, since a difference in them is no difference of the policies."""
CORRECTIONS: Mapping[str, Callable[[Sequence[float]], list[float]]] = {"holm": holm, "bh": benjamini_hochberg}


@dataclass(frozen=True)
class ResultComparison:
    """Two policies on the tasks that both have played. Each task counts once, with the mean of its episodes."""

    env_id: str
    split: str
    first: str
    second: str
    tasks: int
    """Number of tasks with finished episodes of both."""
    alone: int
    """Number of tasks with finished episodes of one only; they are left out."""
    complete: bool
    """Whether both policies finished every task with every seed that was asked for."""
    first_success: float
    second_success: float
    better: int
    """Number of tasks that the second policy solves more often."""
    worse: int
    difference: float
    """Difference of the success rates, second less first."""
    low: float
    high: float
    """95 % interval (Newcombe, from intervals clustered by task; Tango where few tasks differ)."""
    p: float
    """P-value of the exact permutation by task, which is McNemar's exact test where each task was played once."""
    first_score: float
    second_score: float
    score_difference: float
    score_low: float
    score_high: float
    """95 % interval (paired bootstrap by task; that of rates where few tasks differ)."""
    score_p: float
    adjusted_p: float = 1.0
    """``p``, corrected for the number of comparisons."""
    adjusted_score_p: float = 1.0


def compare(
    groups: Sequence[ResultGroup], baseline: str | None = None, correction: str = "holm"
) -> list[ResultComparison]:
    """Returns the comparisons of policies that played the same split: with a baseline, or of each with each.

    Args:
        groups: As :func:`~envsuite.evaluation.groups.load_groups` returns them.
        baseline: Name of a policy; the first one of each comparison.
        correction: One of :data:`CORRECTIONS`, over all comparisons that are returned.

    Raises:
        UnknownName: No policy has the name of the baseline, or there is no such correction.
        UsageError: Policies of one split were evaluated in different ways; the message names how.
        DataError: A policy finished no episode, or no two policies played one split.
    """
    if correction not in CORRECTIONS:
        raise unknown("correction", correction, CORRECTIONS)
    if baseline is not None and not any(_has_name(group, baseline) for group in groups):
        raise unknown("policy", baseline, {group.name for group in groups})
    splits: dict[tuple[str, str], list[ResultGroup]] = defaultdict(list)
    for group in groups:
        _check_finished(group)
        splits[group.conditions.env_id, group.conditions.split].append(group)
    comparisons: list[ResultComparison] = []
    for own in splits.values():
        _check_same(own)
        comparisons += [_compare_pair(first, second) for first, second in _pairs(own, baseline)]
    if not comparisons:
        raise DataError(f"no two policies played the same split; there are {_list_groups(groups)}")
    adjust = CORRECTIONS[correction]
    ps = adjust([comparison.p for comparison in comparisons])
    score_ps = adjust([comparison.score_p for comparison in comparisons])
    return [
        replace(comparison, adjusted_p=p, adjusted_score_p=score_p)
        for comparison, p, score_p in zip(comparisons, ps, score_ps, strict=True)
    ]


def _has_name(group: ResultGroup, name: str) -> bool:
    return name in (group.name, group.conditions.policy)


def _pairs(groups: Sequence[ResultGroup], baseline: str | None) -> Iterable[tuple[ResultGroup, ResultGroup]]:
    if baseline is None:
        return combinations(groups, 2)
    firsts = [group for group in groups if _has_name(group, baseline)]
    if len(firsts) > 1:
        raise UsageError(f"{baseline!r} is the name of {len(firsts)} policies: {', '.join(g.name for g in firsts)}")
    return [(first, group) for first in firsts for group in groups if group is not first]


def _list_groups(groups: Sequence[ResultGroup]) -> str:
    return "; ".join(f"{group.name} on {group.conditions.env_id}, {group.conditions.split}" for group in groups)


def _check_finished(group: ResultGroup) -> None:
    if group.finished_results:
        return
    reason, count = Counter(result.broken for result in group.broken_results).most_common(1)[0]
    raise DataError(
        f"{group.name} finished no episode of {group.conditions.env_id}, {group.conditions.split}: "
        f"{len(group.broken_results)} broke, {count} of them by: {reason}. Play them again with: "
        "envsuite eval run retry FOLDER"
    )


def _check_same(groups: Sequence[ResultGroup]) -> None:
    first = groups[0]
    for group in groups[1:]:
        differing = [
            f"{name} ({_value(first, name)} and {_value(group, name)})"
            for name in SAME
            if getattr(first.conditions, name) != getattr(group.conditions, name)
        ]
        if differing:
            raise UsageError(
                f"{first.name} and {group.name} cannot be compared on {first.conditions.env_id}, "
                f"{first.conditions.split}: they differ in {', '.join(differing)}"
            )


def _value(group: ResultGroup, name: str) -> str:
    value = getattr(group.conditions, name)
    if isinstance(value, Mapping):
        return str(dict(value))
    return "all tasks" if value is None else f"{value[:12]}…" if name == "panel" else str(value)


def _compare_pair(first: ResultGroup, second: ResultGroup) -> ResultComparison:
    first_tasks, second_tasks = set(first.successes.tasks), set(second.successes.tasks)
    common = sorted(first_tasks & second_tasks)
    if not common:
        raise DataError(
            f"{first.name} and {second.name} have no finished task in common: {_list_groups([first, second])}"
        )
    first_successes, second_successes = first.successes.of(common), second.successes.of(common)
    first_scores, second_scores = first.scores.of(common), second.scores.of(common)
    gaps, score_gaps = second_successes.means - first_successes.means, second_scores.means - first_scores.means
    bounds = paired_rates_interval(_weight_evenly(first_successes), _weight_evenly(second_successes))
    often = min(float(side.episodes.mean()) for side in (first_scores, second_scores))
    least, most = paired_scores_bounds(first_scores.means[None], second_scores.means[None], often)
    return ResultComparison(
        env_id=first.conditions.env_id,
        split=first.conditions.split,
        first=first.name,
        second=second.name,
        tasks=len(common),
        alone=len(first_tasks ^ second_tasks),
        complete=first.complete and second.complete,
        first_success=float(first_successes.means.mean()),
        second_success=float(second_successes.means.mean()),
        better=int((gaps > 0).sum()),
        worse=int((gaps < 0).sum()),
        difference=float(gaps.mean()),
        low=float(bounds[0]),
        high=float(bounds[1]),
        p=paired_permutation(gaps),
        first_score=float(first_scores.means.mean()),
        second_score=float(second_scores.means.mean()),
        score_difference=float(score_gaps.mean()),
        score_low=float(least[0]),
        score_high=float(most[0]),
        score_p=paired_permutation(score_gaps),
    )


def _weight_evenly(sums: TaskSums) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns totals and numbers of episodes as if each task had been played as often as the others."""
    often = float(sums.episodes.mean())
    return sums.means * often, np.full(len(sums.tasks), often)


def comparison_sheets(comparisons: Sequence[ResultComparison], correction: str) -> list[Sheet]:
    """Returns a table for each split."""
    splits: dict[tuple[str, str], list[ResultComparison]] = defaultdict(list)
    for comparison in comparisons:
        splits[comparison.env_id, comparison.split].append(comparison)
    return [_sheet(f"{env_id}, {split}", own, correction) for (env_id, split), own in splits.items()]


def _sheet(title: str, comparisons: Sequence[ResultComparison], correction: str) -> Sheet:
    has_scores = any((c.first_score, c.second_score) != (c.first_success, c.second_success) for c in comparisons)
    heads: tuple[Cell, ...] = ("A", "B", "tasks", "success A", "B", "A - B", "+/-", "p", "adjusted")
    if has_scores:
        heads += ("score A", "B", "A - B", "p", "adjusted")
    rows = [_row(comparison, has_scores) for comparison in comparisons]
    method = {"holm": "Holm", "bh": "Benjamini and Hochberg"}[correction]
    legend = (
        "success and score in %, differences in points with 95 % intervals; +/-: tasks that A solves more and less "
        f"often; p: exact permutation by task; adjusted for all comparisons of the command ({method})"
    )
    notes: list[tuple[Cell, ...]] = [(legend,)]
    for comparison in comparisons:
        if comparison.complete and not comparison.alone:
            continue
        text = f": an evaluation is incomplete; {comparison.alone} tasks that only one of them finished are left out"
        notes.append((f"{MARK} ", Name(comparison.second), " against ", Name(comparison.first), text))
    return Sheet(Name(title), heads, (tuple(rows),), 2, tuple(notes))


def _row(comparison: ResultComparison, has_scores: bool) -> tuple[Cell, ...]:
    mark = "" if comparison.complete and not comparison.alone else f" {MARK}"
    cells: list[Cell] = [
        Name(comparison.second), Name(comparison.first), f"{comparison.tasks}{mark}",
        percent(comparison.second_success), percent(comparison.first_success),
        _points(comparison.difference, comparison.low, comparison.high), f"{comparison.better}/{comparison.worse}",
        probability(comparison.p), probability(comparison.adjusted_p),
    ]  # fmt: skip
    if has_scores:
        cells += [
            percent(comparison.second_score), percent(comparison.first_score),
            _points(comparison.score_difference, comparison.score_low, comparison.score_high),
            probability(comparison.score_p), probability(comparison.adjusted_score_p),
        ]  # fmt: skip
    return tuple(cells)


def _points(value: float, low: float, high: float) -> str:
    return f"{100 * value:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"


def probability(value: float) -> str:
    """Formats a p-value with two digits, and what is below 0.0001 as that."""
    if value < 0.0001:
        return "< 0.0001"
    return f"{value:.2f}" if value >= 0.1 else f"{value:.3f}" if value >= 0.01 else f"{value:.4f}"
