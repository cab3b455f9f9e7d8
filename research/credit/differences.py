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


def shown(mean: float, low: float, high: float) -> str:
    """Returns a difference in points as tables have it, with its interval."""
    return f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]"


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
