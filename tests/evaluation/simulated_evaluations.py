"""How often intervals of ``envsuite.evaluation`` have the true value, in simulated evaluations.

An evaluation has tasks, each with a chance of success of its own (Beta distributed, with the mean and the correlation
within a task that are stated), and some episodes of each. Two policies on the same tasks have correlated chances (a
Gaussian copula). Rates are drawn from a band, since at one rate and one number of tasks the coverage of every interval
of counts goes up and down by a percent or two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta as beta_distribution
from scipy.stats import binom, norm

from envsuite.evaluation.statistics import (
    cluster_bootstrap_bounds,
    clustered_wilson_bounds,
    paired_rates_interval,
    paired_scores_bounds,
    wilson,
)

Array = NDArray[np.float64]
RESAMPLES = 1000
"""Bootstrap samples of each interval here; the library draws 10,000."""
BLOCK = 50
"""Number of evaluations that share their bootstrap samples."""


@dataclass(frozen=True)
class Regime:
    """Evaluations of one kind."""

    tasks: int
    seeds: int
    band: tuple[float, float]
    """Least and greatest rate."""
    correlation: float
    """Of two episodes of a task."""


def chances(rng: np.random.Generator, rates: Array, tasks: int, correlation: float) -> Array:
    """Chances of success of tasks, ``(draws, tasks)``, for the rates ``(draws,)``."""
    if correlation == 0:
        return np.broadcast_to(rates[:, None], (len(rates), tasks))
    odds = (1 - correlation) / correlation
    return rng.beta((rates * odds)[:, None], ((1 - rates) * odds)[:, None], (len(rates), tasks))


def paired_chances(
    rng: np.random.Generator, rates: Array, others: Array, tasks: int, correlation: float
) -> tuple[Array, Array]:
    """Chances of two policies on the same tasks, whose normal scores correlate by 0.7."""
    odds = (1 - correlation) / correlation
    first = rng.standard_normal((len(rates), tasks))
    second = 0.7 * first + np.sqrt(1 - 0.49) * rng.standard_normal(first.shape)
    one, two = (
        beta_distribution.ppf(norm.cdf(score), (p * odds)[:, None], ((1 - p) * odds)[:, None])
        for score, p in ((first, rates), (second, others))
    )
    return one, two


def scores(rng: np.random.Generator, chance: Array, seeds: int) -> Array:
    """Sums of graded scores: half the episodes solve the task or not, half have a part of it, with the same mean."""
    total = np.zeros(chance.shape)
    for _ in range(seeds):
        part = rng.beta(np.maximum(4 * chance, 1e-6), np.maximum(4 * (1 - chance), 1e-6))
        total += np.where(rng.random(chance.shape) < 0.5, rng.random(chance.shape) < chance, part)
    return total


def by_block(bounds: Callable[..., tuple[Array, Array]], *values: Array) -> tuple[Array, Array]:
    """Bounds ``(draws,)`` of a bootstrap with new samples for each block: no single set of them decides a figure."""
    starts = range(0, len(values[0]), BLOCK)
    blocks = [bounds(*(v[at : at + BLOCK] for v in values), seed=at, resamples=RESAMPLES) for at in starts]
    return np.concatenate([low for low, _ in blocks]), np.concatenate([high for _, high in blocks])


def rate_coverage(rng: np.random.Generator, regime: Regime, draws: int) -> float:
    """Coverage of Wilson's interval, clustered where tasks are repeated."""
    rates = rng.uniform(*regime.band, draws)
    solved = rng.binomial(regime.seeds, chances(rng, rates, regime.tasks, regime.correlation))
    low, high = clustered_wilson_bounds(solved, regime.seeds)
    return float(np.mean((low <= rates) & (rates <= high)))


def score_coverage(rng: np.random.Generator, regime: Regime, draws: int) -> float:
    """Coverage of the cluster bootstrap of a mean score."""
    rates = rng.uniform(*regime.band, draws)
    totals = scores(rng, chances(rng, rates, regime.tasks, regime.correlation), regime.seeds)
    counts = np.full(totals.shape, float(regime.seeds))
    low, high = by_block(cluster_bootstrap_bounds, totals, counts)
    return float(np.mean((low <= rates) & (rates <= high)))


def difference_coverage(rng: np.random.Generator, regime: Regime, draws: int, *, graded: bool) -> float:
    """Coverage of the paired interval of two rates or mean scores, which lie up to 10 points apart."""
    rates = rng.uniform(*regime.band, draws)
    others = np.clip(rates + rng.uniform(-0.1, 0.1, draws), 0.05, 0.95)
    pair = paired_chances(rng, rates, others, regime.tasks, regime.correlation)
    if graded:
        one, two = (scores(rng, side, regime.seeds) / regime.seeds for side in pair)
        low, high = by_block(partial(paired_scores_bounds, episodes=regime.seeds), one, two)
    else:
        solved = [(rng.binomial(regime.seeds, side), np.asarray(regime.seeds)) for side in pair]
        low, high = paired_rates_interval(*solved)
    return float(np.mean((low <= others - rates) & (others - rates <= high)))


def agreement_coverage(rng: np.random.Generator, tasks: int, share: float, favour: float, draws: int) -> float:
    """Coverage of the interval of a difference where two policies differ on so large a share of tasks, one seed.

    Args:
        rng: Draws.
        tasks: Number of tasks.
        share: Of the tasks, on which one policy alone succeeds.
        favour: Share of these on which it is the second.
        draws: Number of evaluations.
    """
    kind, both = rng.random((draws, tasks)), rng.random((draws, tasks)) < 0.6
    one, two = (
        np.where(kind < share, (kind < share * favour) == second, both).astype(float) for second in (False, True)
    )
    low, high = paired_rates_interval((one, np.ones(1)), (two, np.ones(1)))
    true = share * (2 * favour - 1)
    return float(np.mean((low - 1e-9 <= true) & (true <= high + 1e-9)))


def exact_wilson(n: int, rate: float) -> float:
    """Coverage of Wilson's interval at one rate, exactly."""
    inside = [k for k in range(n + 1) if wilson(k, n)[0] <= rate <= wilson(k, n)[1]]
    return float(binom.pmf(inside, n, rate).sum())
