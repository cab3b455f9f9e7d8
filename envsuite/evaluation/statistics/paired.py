"""Two policies on the same tasks: exact tests, intervals of the difference; corrections for many comparisons."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray

from envsuite.evaluation.statistics.intervals import RESAMPLES, Z95, Floats, clustered_wilson_bounds, draws_of_tasks

_MOST_STATES = 20_000
"""Greatest sum of integer differences up to which their permutation distribution is computed exactly."""
_CHUNK = 4_000_000
"""Number of task indices that are drawn at a time."""
FEW_DIFFERING = 10
"""Number of differing tasks from which the intervals of a difference are accurate."""
_TIE = 1e-7
"""Relative difference below which two sums of differences are equal."""


def paired_permutation(differences: ArrayLike, seed: int = 0, resamples: int = RESAMPLES) -> float:
    """Returns the two-sided p-value of exchanging the policies' names task by task (Fisher 1935, section 21).

    McNemar's exact test (1947) for repeated episodes and for scores: with one episode of each policy on each task and
    outcomes 0 and 1, it is that test. The distribution of the mean is computed exactly where the differences have a
    small common denominator, as those of success rates have, and drawn otherwise.

    Args:
        differences: ``(T,)``: difference of the two policies' means on each of T tasks.
        seed: Of the draws.
        resamples: Number of draws; the least p-value is ``1 / (resamples + 1)`` (Phipson and Smyth 2010).
    """
    values = np.asarray(differences, float)
    if not len(values) or not np.any(values):
        return 1.0
    whole = _integers(values)
    if whole is not None and int(np.abs(whole).sum()) <= _MOST_STATES:
        return _exact_permutation(whole)
    threshold = abs(values.sum()) * (1 - _TIE) - 1e-300
    rng = np.random.default_rng(seed)
    extreme, step = 0, max(1, _CHUNK // len(values))
    for start in range(0, resamples, step):
        signs = rng.integers(0, 2, (min(step, resamples - start), len(values)), dtype=np.int8) * 2 - 1
        extreme += int((np.abs(signs @ values) >= threshold).sum())
    return (extreme + 1) / (resamples + 1)


def _integers(values: Floats) -> NDArray[np.int64] | None:
    """Returns the differences times their common denominator, or ``None`` where that is not small."""
    fractions = [Fraction(value).limit_denominator(400) for value in np.unique(np.abs(values)).tolist()]
    if any(abs(float(f) - v) > 1e-12 for f, v in zip(fractions, np.unique(np.abs(values)).tolist(), strict=True)):
        return None
    scale = math.lcm(*(f.denominator for f in fractions))
    return np.rint(values * scale).astype(np.int64) if scale <= 400 else None


def _exact_permutation(differences: NDArray[np.int64]) -> float:
    """Returns the share of sign choices whose sum is as far from 0 as the observed one."""
    sizes = np.abs(differences[differences != 0])
    total = int(sizes.sum())
    chances = np.zeros(2 * total + 1)  # of the sums -total..total
    chances[total] = 1.0
    reach = 0
    for size in np.sort(sizes).tolist():
        low, high = total - reach, total + reach + 1
        now = chances[low:high] / 2
        chances[low:high] = 0.0
        chances[low - size : high - size] += now
        chances[low + size : high + size] += now
        reach += size
    sums = np.abs(np.arange(-total, total + 1))
    return min(1.0, float(chances[sums >= abs(int(differences.sum()))].sum()))


def paired_bootstrap_bounds(differences: Floats, seed: int = 0, resamples: int = RESAMPLES) -> tuple[Floats, Floats]:
    """Returns the 95 % intervals of mean differences of two policies on the same tasks, each with the same draws.

    Symmetric bootstrap-t over tasks (Hall 1988): differences are 0 on most tasks and large on few, for which
    percentiles are too narrow.

    Args:
        differences: ``(N, T)``: difference of the two policies' means on each of T tasks, T at least 2, in each of N
            comparisons.
        seed: Of the draws: the same seed gives the same interval.
        resamples: Number of draws.

    Returns:
        Lower and upper bounds, each ``(N,)``; the mean itself, twice, where all tasks have the same difference.
    """
    tasks = differences.shape[-1]
    mean = differences.mean(-1)
    deviations = differences - mean[:, None]
    error = deviations.std(-1, ddof=1)
    error = np.where(error <= _TIE * np.abs(differences).max(-1), 0.0, error)
    ratios = np.empty((len(differences), resamples))
    for draws, often in draws_of_tasks(tasks, seed, resamples):
        apart = deviations @ often.T / tasks
        own = np.sqrt(np.maximum((deviations**2) @ often.T / tasks - apart**2, 0.0) * tasks / (tasks - 1))
        least = _TIE * error[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):  # a draw of equal differences has no error
            ratio = np.where(own > least, np.abs(apart) / own, np.where(np.abs(apart) > least, np.inf, 0.0))
        ratios[:, draws] = ratio
    half = np.where(error > 0, np.quantile(ratios, 0.95, axis=-1, method="higher"), 0.0)
    half = np.where(error > 0, half * error, 0.0)
    return mean - half, mean + half


def paired_rates_interval(
    first: tuple[ArrayLike, ArrayLike], second: tuple[ArrayLike, ArrayLike]
) -> tuple[Floats, Floats]:
    """Returns the 95 % interval of the difference ``second - first`` of two rates on the same tasks.

    The distances from each rate to the bounds of its interval
    (:func:`~envsuite.evaluation.statistics.intervals.clustered_wilson`) are joined as those of correlated variables
    (Newcombe 1998, method 8; Zou and Donner 2008). It has a width where both rates are 0 or 1, but hardly one where the
    policies nearly agree: where they differ on fewer than 10 tasks, it is Tango's score interval.

    Args:
        first: Successes and numbers of episodes of the first policy on T tasks, each ``(..., T)`` and at least one
            episode on each.
        second: Those of the second policy on the same tasks.

    Returns:
        Lower and upper bounds, of shape ``(...,)``.
    """
    first_totals, first_episodes = np.broadcast_arrays(np.asarray(first[0], float), np.asarray(first[1], float))
    second_totals, second_episodes = np.broadcast_arrays(np.asarray(second[0], float), np.asarray(second[1], float))
    low, high = clustered_wilson_bounds(first_totals, first_episodes)
    least, most = clustered_wilson_bounds(second_totals, second_episodes)
    first_rate = first_totals.sum(-1) / first_episodes.sum(-1)
    second_rate = second_totals.sum(-1) / second_episodes.sum(-1)
    first_residuals = first_totals - first_episodes * first_rate[..., None]
    second_residuals = second_totals - second_episodes * second_rate[..., None]
    scale = np.sqrt((first_residuals**2).sum(-1) * (second_residuals**2).sum(-1))
    with np.errstate(divide="ignore", invalid="ignore"):
        correlation = np.where(scale > 0, (first_residuals * second_residuals).sum(-1) / scale, 0.0)
    gap = second_rate - first_rate

    def join_distances(down: Floats, up: Floats) -> Floats:
        return np.asarray(np.sqrt(np.maximum(down**2 - 2 * correlation * down * up + up**2, 0.0)))

    down, up = (
        gap - join_distances(second_rate - least, high - first_rate),
        gap + join_distances(most - second_rate, first_rate - low),
    )
    gaps = second_totals / second_episodes - first_totals / first_episodes
    few = np.asarray((np.abs(gaps) > 1e-12).sum(-1) < FEW_DIFFERING)
    lower, upper = _tango(gaps)
    return np.where(few, lower, down), np.where(few, upper, up)


def paired_scores_bounds(
    first: Floats, second: Floats, episodes: float, seed: int = 0, resamples: int = RESAMPLES
) -> tuple[Floats, Floats]:
    """Returns the 95 % intervals of mean differences ``second - first`` of scores from 0 to 1 on the same tasks.

    They are those of :func:`paired_bootstrap_bounds`, which takes little spread for certainty. Where fewer than 10
    tasks differ, and no more than half, or all tasks differ alike, they are those of :func:`paired_rates_interval`.

    Args:
        first: ``(N, T)``: mean scores of the first policy on T tasks, in each of N comparisons.
        second: Those of the second policy on the same tasks.
        episodes: Mean number of a task's episodes.
        seed: Of the draws.
        resamples: Number of draws.

    Returns:
        Lower and upper bounds, each ``(N,)``.
    """
    gaps, often = second - first, np.asarray(episodes)
    least, most = paired_rates_interval((first * often, often), (second * often, often))
    if gaps.shape[-1] < 2:
        return least, most
    low, high = paired_bootstrap_bounds(gaps, seed, resamples)
    differing = (np.abs(gaps) > 1e-12).sum(-1)
    certain = (differing < FEW_DIFFERING) & (2 * differing <= gaps.shape[-1]) | (low == high) | ~np.isfinite(low)
    low, high = np.where(certain, least, low), np.where(certain, most, high)
    return np.maximum(low, -1.0), np.minimum(high, 1.0)


def _tango(gaps: Floats) -> tuple[Floats, Floats]:
    """Returns the 95 % score interval of a mean of differences from -1 to 1 (Tango 1998), found by bisection.

    Differences between -1 and 1, of repeated tasks, count as shares of such; their interval is on the safe side.
    """
    tasks = gaps.shape[-1]
    better, worse = np.maximum(gaps, 0).sum(-1), np.maximum(-gaps, 0).sum(-1)

    def bound(sign: int) -> Floats:
        inside: Floats = (better - worse) / tasks
        outside = np.full(better.shape, -float(sign))
        for _ in range(50):
            middle = (inside + outside) / 2
            linear, constant = (2 * tasks - better + worse) * middle - better - worse, middle * (1 - middle)
            share = (np.sqrt(np.maximum(linear**2 + 8 * tasks * worse * constant, 0)) - linear) / (4 * tasks)
            deviation = np.sqrt(np.maximum(tasks * (2 * share + constant), 0))
            holds = sign * (better - worse - tasks * middle) <= Z95 * deviation
            inside, outside = np.where(holds, middle, inside), np.where(holds, outside, middle)
        return inside

    return bound(1), bound(-1)


def holm(p_values: Sequence[float]) -> list[float]:
    """Returns p-values adjusted so that one false finding among all is as rare as stated (Holm 1979)."""
    order = np.argsort(p_values, kind="stable")
    steps = np.asarray(p_values, float)[order] * np.arange(len(order), 0, -1)
    return _restore_order(np.maximum.accumulate(steps), order)


def benjamini_hochberg(p_values: Sequence[float]) -> list[float]:
    """Returns p-values adjusted so that so small a share of the findings is false (Benjamini and Hochberg 1995)."""
    order = np.argsort(p_values, kind="stable")
    steps = np.asarray(p_values, float)[order] * len(order) / np.arange(1, len(order) + 1)
    return _restore_order(np.minimum.accumulate(steps[::-1])[::-1], order)


def _restore_order(steps: Floats, order: NDArray[np.intp]) -> list[float]:
    p_values = np.empty(len(order))
    p_values[order] = np.minimum(steps, 1.0)
    return p_values.tolist()
