"""95 % intervals of rates and means, for episodes that are correlated within a task."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from envsuite.core.errors import UsageError

Z95 = 1.959963984540054
"""Two-sided 95 % quantile of the normal distribution."""
RESAMPLES = 10_000
"""Number of bootstrap samples."""
_CHUNK = 4_000_000
"""Number of task indices that are drawn at a time, so that memory stays within some 100 MB."""
_FEW_TASKS = 6
"""Number of tasks from which a bootstrap can have a coverage of 95 %."""
_NORMAL = NormalDist()
_T95 = (12.706204736432095, 4.302652729911275, 3.182446305284263)
"""Two-sided 95 % quantiles of Student's t with 1 to 3 degrees of freedom."""

Floats = NDArray[np.float64]


def wilson(successes: int, n: int, z: float = Z95) -> tuple[float, float]:
    """Returns Wilson's score interval of a success rate (Wilson 1927).

    It stays within [0, 1] and is accurate near the ends, where the usual normal interval has width 0.

    Args:
        successes: 0 to ``n``.
        n: Number of independent trials; 0 gives (0, 1).
        z: Normal quantile.

    Returns:
        Lower and upper bound.

    Raises:
        UsageError: ``successes`` is not in 0..n.
    """
    if not 0 <= successes <= n:
        raise UsageError(f"{successes} successes of {n} trials")
    if n == 0:
        return 0.0, 1.0
    low, high = _wilson(np.asarray(successes / n), np.asarray(float(n)), z)
    return float(low), float(high)


def clustered_wilson(tasks: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """Returns the 95 % interval of a success rate over repeated tasks, whose episodes are correlated.

    Wilson's interval for the number of independent trials that give the rate the variance that it has between the
    tasks (Korn and Graubard 1998; Dean and Pagano 2015), with the quantile of Student's t for so many tasks. That
    number is at most the number of episodes, and at least what it would be if the episodes of a task were all equal
    (Kish 1965): the number of tasks, where each has as many episodes. Without repetition it is :func:`wilson`.

    Args:
        tasks: Successes and episodes of each task.

    Raises:
        UsageError: A task has more successes than episodes.
    """
    if any(not 0 <= s <= m for s, m in tasks):
        raise UsageError(f"a task has more successes than episodes: {tasks}")
    if not any(m for _, m in tasks):
        return 0.0, 1.0
    low, high = clustered_wilson_bounds([s for s, _ in tasks], [m for _, m in tasks])
    return float(low), float(high)


def clustered_wilson_bounds(totals: ArrayLike, episodes: ArrayLike) -> tuple[Floats, Floats]:
    """Returns the bounds of :func:`clustered_wilson` for many evaluations at once.

    Args:
        totals: ``(..., T)``: successes of each of T tasks, or sums of scores from 0 to 1.
        episodes: Their numbers of episodes, broadcast against ``totals``; tasks without any are left out.

    Returns:
        Lower and upper bounds, of shape ``(...,)``.
    """
    values, counts = np.broadcast_arrays(np.asarray(totals, float), np.asarray(episodes, float))
    tasks = np.maximum((counts > 0).sum(-1), 1)
    n = np.maximum(counts.sum(-1), 1)
    share = values.sum(-1) / n
    variance = tasks / np.maximum(tasks - 1, 1) * ((values - counts * share[..., None]) ** 2).sum(-1) / n**2
    least = n**2 / np.maximum((counts**2).sum(-1), 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        independent = np.where(variance > 0, share * (1 - share) / variance, least)
    independent = np.clip(independent, least, n)
    has_repeats = n > tasks
    independent = np.where(has_repeats, np.where(tasks == 1, 1.0, independent), n)
    quantile = np.where(has_repeats & (tasks > 1), _t95_array(tasks - 1), Z95)
    low, high = _wilson(share, independent, quantile)
    return low, high


def _wilson(share: Floats, n: Floats, z: float | Floats) -> tuple[Floats, Floats]:
    scale = 1.0 + z * z / n
    centre = (share + z * z / (2 * n)) / scale
    half = z / scale * np.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    # At the ends the bound is exactly 0 or 1; rounding would leave 1e-17.
    low = np.where(share <= 0, 0.0, np.maximum(0.0, centre - half))
    high = np.where(share >= 1, 1.0, np.minimum(1.0, centre + half))
    return low, high


def student_t95(freedom: int) -> float:
    """Returns the two-sided 95 % quantile of Student's t, to 1 % (Abramowitz and Stegun 26.7.5; exact up to 3).

    Args:
        freedom: Degrees of freedom, at least 1.
    """
    return float(_t95_array(np.asarray(freedom)))


def _t95_array(freedom: NDArray[np.integer]) -> Floats:
    z, many = Z95, np.maximum(freedom, 4)
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    series = z + first / many + second / many**2 + third / many**3
    few = np.asarray(_T95)[np.clip(freedom, 1, len(_T95)) - 1]
    return np.asarray(np.where(freedom <= len(_T95), few, series))


def cluster_bootstrap(
    totals: ArrayLike, episodes: ArrayLike, seed: int = 0, resamples: int = RESAMPLES
) -> tuple[float, float]:
    """Returns the 95 % interval of a mean over episodes, by drawing tasks with all their episodes again.

    Bootstrap of clusters (Davison and Hinkley 1997, section 3.8) with percentiles corrected for bias and skewness
    (BCa; Efron 1987), at levels widened as Student's t widens them, since percentiles are too narrow for few tasks
    (Hesterberg 2015).

    Args:
        totals: ``(T,)``: sum of the values of each of T tasks.
        episodes: ``(T,)``: number of episodes of each task; tasks without any are left out.
        seed: Of the draws: the same seed gives the same interval.
        resamples: Number of draws.

    Returns:
        Lower and upper bound; (-inf, inf) with fewer than two tasks, and the mean itself, twice, where all tasks have
        the same.
    """
    values, counts = np.asarray(totals, float), np.asarray(episodes, float)
    values, counts = values[counts > 0], counts[counts > 0]
    if len(values) < 2:
        return -math.inf, math.inf
    low, high = cluster_bootstrap_bounds(values[None], counts[None], seed, resamples)
    return float(low[0]), float(high[0])


def cluster_bootstrap_bounds(
    totals: Floats, episodes: Floats, seed: int = 0, resamples: int = RESAMPLES
) -> tuple[Floats, Floats]:
    """Returns the bounds of :func:`cluster_bootstrap` for many evaluations at once, each with the same draws.

    Args:
        totals: ``(N, T)``: sum of the values of each of T tasks, at least 2.
        episodes: ``(N, T)``: number of episodes of each task, above 0.
        seed: Of the draws.
        resamples: Number of draws.

    Returns:
        Lower and upper bounds, each ``(N,)``.
    """
    tasks = totals.shape[-1]
    mean = totals.sum(-1) / episodes.sum(-1)
    influence = totals - episodes * mean[:, None]
    spread = (influence**2).sum(-1)
    means = np.empty((len(totals), resamples))
    for draws, often in draws_of_tasks(tasks, seed, resamples):
        means[:, draws] = (totals @ often.T) / (episodes @ often.T)
    certain = spread <= 1e-24 * np.maximum(1.0, (totals**2).sum(-1))
    acceleration = (influence**3).sum(-1) / (6 * np.where(certain, 1.0, spread) ** 1.5)
    # Sums of products in another order differ in the last digit: a draw that equals the mean counts half on each side.
    margin = 1e-12 * np.maximum(1.0, np.abs(mean))[:, None]
    below = ((means < mean[:, None] - margin).mean(-1) + (means <= mean[:, None] + margin).mean(-1)) / 2
    bounds = np.empty((2, len(totals)))
    for row, share in enumerate(np.clip(below, 1 / resamples, 1 - 1 / resamples).tolist()):
        bias = _NORMAL.inv_cdf(share)
        quantiles = [bias - _percentile_quantile(tasks), bias + _percentile_quantile(tasks)]
        levels = [_NORMAL.cdf(bias + z / max(1 - acceleration[row] * z, 1e-6)) for z in quantiles]
        bounds[:, row] = mean[row] if certain[row] else np.quantile(means[row], levels)
    return bounds[0], bounds[1]


def draws_of_tasks(tasks: int, seed: int, resamples: int) -> Iterator[tuple[slice, Floats]]:
    """Yields slices of the draws, and how often each draw of them has each task, ``(n, T)``."""
    rng = np.random.default_rng(seed)
    step = max(1, _CHUNK // tasks)
    for start in range(0, resamples, step):
        count = min(step, resamples - start)
        indices = rng.integers(0, tasks, (count, tasks)) + np.arange(count)[:, None] * tasks
        often = np.bincount(indices.ravel(), minlength=count * tasks).reshape(count, tasks)
        yield slice(start, start + count), often.astype(float)


def _percentile_quantile(tasks: int) -> float:
    """Returns the normal quantile of the level at which percentiles of ``tasks`` draws are taken (Hesterberg 2015)."""
    return math.sqrt(tasks / (tasks - 1)) * student_t95(tasks - 1)


def score_interval(totals: ArrayLike, episodes: ArrayLike, seed: int = 0) -> tuple[float, float]:
    """Returns the 95 % interval of a mean score in [0, 1].

    That of :func:`cluster_bootstrap`; that of :func:`clustered_wilson`, as for a rate, where the tasks show no spread
    (all scores 0), which a bootstrap takes for certainty, or are fewer than 6: all of five lie on one side of their
    median in 1 of 16 evaluations, and then no draw reaches it.

    Args:
        totals: ``(T,)``: sum of the scores of each of T tasks.
        episodes: ``(T,)``: number of episodes of each task.
        seed: Of the draws.
    """
    if np.count_nonzero(episodes) >= _FEW_TASKS:
        low, high = cluster_bootstrap(totals, episodes, seed)
        if low < high:
            return max(0.0, low), min(1.0, high)
    bounds = clustered_wilson_bounds(totals, episodes)
    return float(bounds[0]), float(bounds[1])


def over_seeds(values: ArrayLike) -> tuple[float, float | None]:
    """Returns mean and sample standard deviation (n - 1) over seeds; ``None`` for the latter with one seed.

    The deviation says how far a repetition on the same tasks may lie from another; it says nothing of other tasks.

    Args:
        values: ``(S,)``: success rate or mean score of each seed.

    Raises:
        UsageError: There is no seed.
    """
    array = np.asarray(values, float)
    if not len(array):
        raise UsageError("no seed has a finished episode")
    return float(array.mean()), float(array.std(ddof=1)) if len(array) > 1 else None
