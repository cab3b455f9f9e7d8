"""Differences of two methods over pairs of runs with the same seed: interval, test, and what would be found."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from envsuite.core.errors import UsageError

LEVEL, POWER = 0.05, 0.8


@dataclass(frozen=True)
class Difference:
    """A method against the reference, seed by seed."""

    pairs: NDArray[np.float64]
    """Difference of the areas for each seed that both have."""

    @property
    def mean(self) -> float:
        """Mean difference."""
        return float(self.pairs.mean())

    @property
    def interval(self) -> tuple[float, float]:
        """Returns the 95 % interval of Student's t; infinite with fewer than two seeds."""
        n = len(self.pairs)
        if n < 2:
            return -math.inf, math.inf
        half = float(stats.t.ppf(1 - LEVEL / 2, n - 1)) * float(self.pairs.std(ddof=1)) / math.sqrt(n)
        return self.mean - half, self.mean + half


def exact_p(pairs: NDArray[np.float64]) -> float:
    """Returns the two-sided p of the mean over all changes of signs of the pairs: 2 to the power of their number.

    The signed sums of either half are listed, and counted together; 30 pairs take two lists of 32,768.
    """
    halves = [np.zeros(1), np.zeros(1)]
    for place, value in enumerate(np.abs(pairs)):
        sums = halves[place % 2]
        halves[place % 2] = np.concatenate([sums + value, sums - value])
    least = abs(float(pairs.sum())) * (1 - 1e-12) - 1e-12
    ordered = np.sort(halves[1])
    beyond = len(ordered) - np.searchsorted(ordered, least - halves[0])
    beyond += np.searchsorted(ordered, -least - halves[0], side="right")
    return min(1.0, float(beyond.sum()) / 2.0 ** len(pairs))


def trimmed_mean(pairs: NDArray[np.float64], share: float = 0.2) -> tuple[float, float, float]:
    """Returns the mean without a share of the pairs at each end, and its 95 % interval (Tukey and McLaughlin)."""
    ordered, cut = np.sort(pairs), int(share * len(pairs))
    left = len(ordered) - 2 * cut
    mean, drawn_in = float(ordered[cut : cut + left].mean()), np.clip(ordered, ordered[cut], ordered[-cut - 1])
    error = float(drawn_in.std(ddof=1)) / ((1 - 2 * cut / len(ordered)) * math.sqrt(len(ordered)))
    half = float(stats.t.ppf(1 - LEVEL / 2, left - 1)) * error
    return mean, mean - half, mean + half


def shown(mean: float, low: float, high: float) -> str:
    """Returns a difference in points as tables have it, with its interval."""
    return f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]"


def shown_p(p: float) -> str:
    """Returns a p-value as tables have it."""
    return f"{p:.4f}" if p >= 5e-5 else "<0.0001"


def detectable(deviation: float, seeds: int, comparisons: int) -> float:
    """Returns the difference that a paired t-test over so many seeds finds with a chance of 80 %.

    The level is 5 % divided by the number of comparisons (Bonferroni), which Holm's correction never falls below.

    Args:
        deviation: Standard deviation over seeds of the difference of two runs.
        seeds: At least 2.
        comparisons: Number of methods that are compared with the reference.

    Raises:
        UsageError: A number is out of its range.
    """
    if seeds < 2 or comparisons < 1 or not deviation > 0.0:
        raise UsageError(f"power of {seeds} seeds, {comparisons} comparisons, deviation {deviation}")
    df = seeds - 1
    bound = float(stats.t.ppf(1 - LEVEL / comparisons / 2, df))
    low, high = 0.0, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        found = 1 - float(stats.nct.cdf(bound, df, middle))
        low, high = (middle, high) if found < POWER else (low, middle)
    return high * deviation / math.sqrt(seeds)
