"""``python -m benchmarks.coverage``: how often the 95 % intervals of ``envsuite.evaluation`` have the true value.

    python -m benchmarks.coverage                 # the table of docs/statistics.md: minutes
    python -m benchmarks.coverage --draws 500     # rougher: seconds

An evaluation is drawn as: T tasks, each with a chance of success of its own (Beta distributed, with the mean and the
correlation within a task that are stated), and S episodes of each. Two policies on the same tasks have correlated
chances (a Gaussian copula). Rates are drawn from a band, since at one rate and one number of tasks the coverage of
every interval of counts goes up and down by a percent or two. The value that an interval should have is the mean over
all tasks there might be.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta as beta_distribution
from scipy.stats import binom, norm

from envsuite.evaluation.statistics import (
    cluster_bootstrap_bounds,
    clustered_wilson_bounds,
    mcnemar,
    paired_permutation,
    paired_rates_interval,
    paired_scores_bounds,
    tasks_needed,
    wilson,
)
from envsuite.evaluation.statistics.power import Correlations

Array = NDArray[np.float64]
TASKS = (50, 100, 200, 500)
SEEDS = (1, 3, 5)
BANDS = ((0.05, 0.1), (0.1, 0.3), (0.3, 0.7), (0.7, 0.9), (0.9, 0.95))
CORRELATIONS = (0.0, 0.2, 0.5, 0.8)
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


def regimes(
    tasks: Sequence[int] = TASKS, seeds: Sequence[int] = SEEDS, correlations: Sequence[float] = CORRELATIONS
) -> Iterator[Regime]:
    """Every combination; with one seed, one correlation within a task, since it changes nothing of a rate."""
    for count, repeats, band, correlation in product(tasks, seeds, BANDS, correlations):
        if repeats > 1 or correlation == correlations[0]:
            yield Regime(count, repeats, band, correlation)


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
    if correlation == 0:
        return chances(rng, rates, tasks, 0.0), chances(rng, others, tasks, 0.0)
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


def of_rate(rng: np.random.Generator, regime: Regime, draws: int) -> float:
    """Coverage of Wilson's interval, clustered where tasks are repeated."""
    rates = rng.uniform(*regime.band, draws)
    solved = rng.binomial(regime.seeds, chances(rng, rates, regime.tasks, regime.correlation))
    low, high = clustered_wilson_bounds(solved, regime.seeds)
    return float(np.mean((low <= rates) & (rates <= high)))


def of_score(rng: np.random.Generator, regime: Regime, draws: int) -> float:
    """Coverage of the cluster bootstrap of a mean score."""
    rates = rng.uniform(*regime.band, draws)
    totals = scores(rng, chances(rng, rates, regime.tasks, regime.correlation), regime.seeds)
    counts = np.full(totals.shape, float(regime.seeds))
    low, high = by_block(cluster_bootstrap_bounds, totals, counts)
    return float(np.mean((low <= rates) & (rates <= high)))


def _others(rng: np.random.Generator, rates: Array) -> Array:
    return np.clip(rates + rng.uniform(-0.1, 0.1, len(rates)), 0.05, 0.95)


def of_rates_difference(rng: np.random.Generator, regime: Regime, draws: int) -> float:
    """Coverage of the paired interval of two rates, which lie up to 10 points apart."""
    rates = rng.uniform(*regime.band, draws)
    others = _others(rng, rates)
    one, two = paired_chances(rng, rates, others, regime.tasks, regime.correlation)
    solved = [(rng.binomial(regime.seeds, side), np.asarray(regime.seeds)) for side in (one, two)]
    low, high = paired_rates_interval(*solved)
    return float(np.mean((low <= others - rates) & (others - rates <= high)))


def of_scores_difference(rng: np.random.Generator, regime: Regime, draws: int) -> float:
    """Coverage of the paired interval of two mean scores."""
    rates = rng.uniform(*regime.band, draws)
    others = _others(rng, rates)
    pair = paired_chances(rng, rates, others, regime.tasks, regime.correlation)
    one, two = (scores(rng, side, regime.seeds) / regime.seeds for side in pair)
    low, high = by_block(partial(paired_scores_bounds, episodes=regime.seeds), one, two)
    return float(np.mean((low <= others - rates) & (others - rates <= high)))


@dataclass(frozen=True)
class Interval:
    """An interval and how it is measured."""

    name: str
    coverage: Callable[[np.random.Generator, Regime, int], float]
    share: float
    """Of the draws; copulas and bootstraps take longer."""
    tasks: tuple[int, ...] = (50, 100, 200)
    seeds: tuple[int, ...] = (1, 5)
    correlations: tuple[float, ...] = (0.2, 0.8)


INTERVALS = (
    Interval("rate: Wilson, clustered", of_rate, 1.0, TASKS, SEEDS, CORRELATIONS),
    Interval("difference of rates: Newcombe, clustered", of_rates_difference, 0.4),
    Interval("score: bootstrap by task", of_score, 0.4),
    Interval("difference of scores: paired bootstrap", of_scores_difference, 0.4),
)


def measure(interval: Interval, draws: int, seed: int = 0) -> list[tuple[float, Regime]]:
    """Coverage in every regime, the least first."""
    rng = np.random.default_rng(seed)
    cells = [
        (interval.coverage(rng, regime, max(100, int(draws * interval.share))), regime)
        for regime in regimes(interval.tasks, interval.seeds, interval.correlations)
    ]
    return sorted(cells, key=lambda cell: cell[0])


def of_agreement(rng: np.random.Generator, tasks: int, share: float, favour: float, draws: int) -> float:
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


def agreements(draws: int, seed: int = 0) -> Iterator[str]:
    """Lines: the least coverage over three directions where policies nearly agree."""
    rng = np.random.default_rng(seed)
    for tasks in TASKS:
        cells = [
            min(of_agreement(rng, tasks, share, favour, draws) for favour in (0.5, 0.75, 1.0))
            for share in (0.01, 0.03, 0.05, 0.1, 0.2)
        ]
        yield f"| {tasks} | " + " | ".join(f"{100 * cell:.1f}" for cell in cells) + " |"


def exact_wilson(n: int, rate: float) -> float:
    """Coverage of Wilson's interval at one rate, exactly."""
    inside = [k for k in range(n + 1) if wilson(k, n)[0] <= rate <= wilson(k, n)[1]]
    return float(binom.pmf(inside, n, rate).sum())


def levels(draws: int, seed: int = 0) -> Iterator[str]:
    """Lines: how often tests at 5 % find a difference where there is none, and where ``tasks_needed`` says 80 %."""
    rng = np.random.default_rng(seed)
    for tasks, seeds, correlation in ((100, 1, 0.5), (100, 5, 0.5), (200, 3, 0.2)):
        rates = rng.uniform(0.3, 0.7, draws)
        one, two = paired_chances(rng, rates, rates, tasks, correlation)
        a, b = rng.binomial(seeds, one), rng.binomial(seeds, two)
        p = [paired_permutation((y - x) / seeds) for x, y in zip(a, b, strict=True)]
        found = f"{100 * np.mean(np.array(p) <= 0.05):.1f}"
        if seeds == 1:
            mid = [mcnemar(int(((y - x) < 0).sum()), int(((y - x) > 0).sum()), True) for x, y in zip(a, b, strict=True)]
            found += f" (McNemar's mid-p: {100 * np.mean(np.array(mid) <= 0.05):.1f})"
        yield f"| no difference | {tasks} | {seeds} | {correlation:g} | 5 | {found} |"
    for seeds, correlation in ((1, 0.5), (5, 0.5), (3, 0.2)):
        rates, others = np.full(draws, 0.6), np.full(draws, 0.7)
        trial = paired_chances(rng, rates[:1], others[:1], 200_000, correlation)
        covariance = float(np.cov(trial[0][0], trial[1][0])[0, 1])
        between = covariance / np.sqrt(0.6 * 0.4 * 0.7 * 0.3)
        tasks = tasks_needed(0.6, 0.1, seeds, Correlations(correlation, min(between, correlation)), paired=True)
        one, two = paired_chances(rng, rates, others, tasks, correlation)
        a, b = rng.binomial(seeds, one), rng.binomial(seeds, two)
        p = [paired_permutation((y - x) / seeds) for x, y in zip(a, b, strict=True)]
        yield (
            f"| 60 % against 70 % | {tasks} | {seeds} | {correlation:g} | 80 | "
            f"{100 * np.mean(np.array(p) <= 0.05):.1f} |"
        )


def _row(interval: Interval, cells: Sequence[tuple[float, Regime]]) -> Iterator[str]:
    for tasks in interval.tasks:
        own = [(c, r) for c, r in cells if r.tasks == tasks]
        inside = sum(0.93 <= c <= 0.97 for c, _ in own)
        (least, at), most = own[0], own[-1][0]
        band = f"{100 * at.band[0]:g}–{100 * at.band[1]:g} %"  # noqa: RUF001
        shown = " | ".join(f"{100 * value:.1f}" for value in (np.mean([c for c, _ in own]), least, most))
        where = f"{band}, seeds: {at.seeds}, correlation {at.correlation:g}"
        yield f"| {interval.name} | {tasks} | {len(own)} | {shown} | {inside} | {where} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=5_000, help="evaluations in a regime (default: %(default)s)")
    draws = parser.parse_args(arguments).draws
    print("| interval | tasks | regimes | mean, % | least | most | in 93–97 % | the least is at |")  # noqa: RUF001
    print("|---|---:|---:|---:|---:|---:|---:|---|")
    for interval in INTERVALS:
        print(*_row(interval, measure(interval, draws)), sep="\n", flush=True)
    print("\n| tasks | " + " | ".join(f"{share} % differ" for share in (1, 3, 5, 10, 20)) + " |")
    print("|---|" + "---:|" * 5)
    print(*agreements(draws), sep="\n", flush=True)
    print("\n| Wilson's interval at one rate | " + " | ".join(f"{p:g} %" for p in (1, 2, 5, 10, 30, 50)) + " |")
    print("|---|" + "---:|" * 6)
    for n in (5, 10, 20, 50, 100, 200, 500):
        cells = " | ".join(f"{100 * exact_wilson(n, p):.1f}" for p in (0.01, 0.02, 0.05, 0.1, 0.3, 0.5))
        print(f"| {n} tasks | {cells} |")
    print("\n| paired test at 5 % | tasks | seeds | correlation | should find, % | finds |")
    print("|---|---:|---:|---:|---:|---:|")
    print(*levels(max(200, draws // 3)), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
