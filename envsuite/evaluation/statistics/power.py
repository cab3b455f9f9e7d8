"""How many tasks and seeds show a difference, and which difference given ones can show."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from envsuite.core.errors import UsageError

_NORMAL = NormalDist()


@dataclass(frozen=True)
class Correlations:
    """Correlation between the outcomes (0 or 1) of two episodes of one task, over tasks."""

    within: float
    """Both of the same policy, with different seeds: 0 if all tasks are equally hard, 1 if each is always or never
    solved (the intra-class correlation)."""
    between: float = 0.0
    """One of each policy: how far both find the same tasks hard. At most ``within``, where policies are compared that
    are equally consistent."""

    def __post_init__(self) -> None:
        if not 0 <= self.within <= 1 or not 0 <= self.between <= 1:
            raise UsageError(f"correlations are from 0 to 1; these are {self.within:g} and {self.between:g}")
        if self.between > self.within:
            raise UsageError(
                f"the correlation between policies ({self.between:g}) cannot exceed that within one ({self.within:g})"
            )


def variance_per_task(first_rate: float, second_rate: float, seeds: int, correlations: Correlations) -> float:
    """Returns the variance over tasks of the difference of two policies' mean success on a task.

    Each mean of S seeds has p (1 - p) (1 + (S - 1) r) / S, with the correlation r within a policy (Killip, Mahfoud and
    Pearce 2004), and both together a
    covariance of the correlation between policies times their standard deviations.
    """
    first_variance, second_variance = first_rate * (1 - first_rate), second_rate * (1 - second_rate)
    spread = (1 + (seeds - 1) * correlations.within) / seeds
    return (first_variance + second_variance) * spread - 2 * correlations.between * math.sqrt(
        first_variance * second_variance
    )


def tasks_needed(
    rate: float,
    difference: float,
    seeds: int = 1,
    correlations: Correlations | None = None,
    *,
    paired: bool = False,
    power: float = 0.8,
    level: float = 0.05,
) -> int:
    """Returns the number of tasks at which a two-sided test finds a difference of success rates.

    Independent policies, on tasks of their own each: Fleiss, Levin and Paik (2003), where episodes of one
    task are correlated times the design effect. The same tasks: Connor (1987) for McNemar's test, with the
    variance of the tasks' differences in place of that of single episodes.

    Args:
        rate: Success rate of the first policy.
        difference: Of the second policy's rate from it.
        seeds: Number of episodes of each task, for each policy.
        correlations: Between episodes of one task; ``None``: no correlation.
        paired: Both policies play the same tasks, and are compared task by task.
        power: Chance that the difference is found.
        level: Chance that one is found where there is none.

    Raises:
        UsageError: A rate is not in (0, 1), the difference is 0, or a number is out of its range.
    """
    correlations = correlations or Correlations(0.0)
    _check(rate, difference, seeds, power, level)
    second_rate = rate + difference
    alpha, beta = _NORMAL.inv_cdf(1 - level / 2), _NORMAL.inv_cdf(power)
    if paired:
        variance = max(variance_per_task(rate, second_rate, seeds, correlations), 0.0)
        root = alpha * math.sqrt(variance + difference**2) + beta * math.sqrt(variance)
    else:
        middle = (rate + second_rate) / 2
        spread = (1 + (seeds - 1) * correlations.within) / seeds
        root = alpha * math.sqrt(2 * middle * (1 - middle) * spread)
        root += beta * math.sqrt((rate * (1 - rate) + second_rate * (1 - second_rate)) * spread)
    return max(2, math.ceil((root / difference) ** 2 - 1e-9))


def detectable_difference(
    rate: float,
    tasks: int,
    seeds: int = 1,
    correlations: Correlations | None = None,
    *,
    paired: bool = False,
    power: float = 0.8,
    level: float = 0.05,
) -> float | None:
    """Returns the least increase of a success rate that so many tasks show; ``None`` if no increase up to 1 is.

    The inverse of :func:`tasks_needed`, to 0.0001.

    Args:
        rate: Success rate of the first policy.
        tasks: Number of tasks.
        seeds: Number of episodes of each task, for each policy.
        correlations: Between episodes of one task; ``None``: no correlation.
        paired: Both policies play the same tasks, and are compared task by task.
        power: Chance that the difference is found.
        level: Chance that one is found where there is none.

    Raises:
        UsageError: The rate is not in (0, 1), or a number is out of its range.
    """
    if tasks < 2:
        raise UsageError(f"{tasks} tasks; a comparison needs 2")
    if not 0 < rate < 1:
        raise UsageError(f"the rate must be between 0 and 1, and it is {rate:g}")
    differences = [step / 10_000 for step in range(1, math.ceil((1 - rate) * 10_000 - 1e-6))]

    def is_shown(difference: float) -> bool:
        needed = tasks_needed(rate, difference, seeds, correlations, paired=paired, power=power, level=level)
        return needed <= tasks

    place = bisect_left(differences, True, key=is_shown)
    return differences[place] if place < len(differences) else None


def _check(rate: float, difference: float, seeds: int, power: float, level: float) -> None:
    if not 0 < rate < 1 or not 0 < rate + difference < 1:
        raise UsageError(
            f"rates must be between 0 and 1, and these are {rate:g} and {rate + difference:g}; "
            "choose another rate or difference"
        )
    if difference == 0:
        raise UsageError("no number of tasks shows a difference of 0")
    if seeds < 1:
        raise UsageError(f"{seeds} seeds; at least 1 is needed")
    if not level / 2 < power < 1 or not 0 < level < 1:
        raise UsageError(f"power {power:g} must be below 1 and above half the level, {level:g}")


def estimate_correlations(
    first: Sequence[tuple[int, int]], second: Sequence[tuple[int, int]] | None = None
) -> Correlations | None:
    """Returns the correlations that results show; ``None`` where no task has two episodes, or none differs.

    Within a policy: the estimate from one-way analysis of variance (Ridout, Demétrio and Firth 1999); of two
    policies the mean. Between policies: the covariance of the tasks' rates by the standard deviations of episodes.
    Both are cut to what is possible.

    Args:
        first: Successes and episodes of each task.
        second: Those of another policy on the same tasks.
    """
    within = [estimate for side in (first, second) if side is not None and (estimate := _intra_class(side)) is not None]
    if not within:
        return None
    mean_within = float(np.clip(np.mean(within), 0.0, 1.0))
    return Correlations(mean_within, 0.0 if second is None else min(mean_within, _between(first, second)))


def _intra_class(tasks: ArrayLike) -> float | None:
    successes, episodes = np.asarray(tasks, float).T
    count, n = len(successes), episodes.sum()
    if count < 2 or n <= count:
        return None
    among = (successes**2 / episodes).sum()
    between = (among - successes.sum() ** 2 / n) / (count - 1)
    within = (successes.sum() - among) / (n - count)
    size = (n - (episodes**2).sum() / n) / (count - 1)
    total = between + (size - 1) * within
    return float((between - within) / total) if total > 0 else None


def _between(first: Sequence[tuple[int, int]], second: Sequence[tuple[int, int]]) -> float:
    first_rates, second_rates = (np.array([s / n for s, n in side]) for side in (first, second))
    deviations = [math.sqrt(mean * (1 - mean)) for mean in (first_rates.mean(), second_rates.mean())]
    if min(deviations) == 0:
        return 0.0
    return max(0.0, float(np.cov(first_rates, second_rates)[0, 1]) / math.prod(deviations))
