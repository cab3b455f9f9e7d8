"""Statistics against those of scipy and statsmodels, on 1,000 random cases each."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import optimize, stats
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower
from statsmodels.stats.proportion import proportion_confint, samplesize_proportions_2indep_onetail

from envsuite.evaluation.statistics import (
    Correlations,
    benjamini_hochberg,
    cluster_bootstrap,
    holm,
    over_seeds,
    paired_permutation,
    paired_rates_interval,
    pass_at_k,
    pass_hat_k,
    student_t95,
    tasks_needed,
    wilson,
)
from envsuite.evaluation.statistics.paired import paired_bootstrap_bounds
from envsuite.evaluation.statistics.power import variance_per_task

CASES = 1000


def test_wilsons_interval_is_that_of_statsmodels():
    rng = np.random.default_rng(0)
    for n in rng.integers(1, 3000, CASES).tolist():
        successes = int(rng.integers(0, n + 1))
        expected = proportion_confint(successes, n, 0.05, method="wilson")
        assert wilson(successes, n) == pytest.approx(expected, abs=1e-12)


def test_students_quantile_is_that_of_scipy():
    for freedom in range(1, CASES + 1):
        assert student_t95(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=0.006 if freedom < 6 else 1e-3)


def test_the_permutation_of_single_outcomes_is_mcnemars_exact_test():
    rng = np.random.default_rng(2)
    for b, c in rng.integers(0, 60, (CASES, 2)).tolist():
        gaps = np.array([1.0] * b + [-1.0] * c + [0.0] * 20)
        expected = mcnemar([[5, b], [c, 5]], exact=True).pvalue if b + c else 1.0
        assert paired_permutation(rng.permutation(gaps)) == pytest.approx(expected, rel=1e-9)


def test_the_exact_permutation_of_repeated_outcomes_is_that_of_scipy():
    rng = np.random.default_rng(3)
    for _ in range(150):
        tasks, seeds = int(rng.integers(2, 9)), int(rng.integers(1, 6))
        gaps = rng.integers(-seeds, seeds + 1, tasks) / seeds
        test = stats.permutation_test(
            (gaps, np.zeros(tasks)), lambda x, y, axis: np.mean(x - y, axis=axis), permutation_type="samples",
            n_resamples=np.inf, vectorized=True,
        )  # fmt: skip
        assert paired_permutation(gaps) == pytest.approx(test.pvalue, rel=1e-9)


def excess(gap: float, sign: int, better: int, worse: int, n: int) -> float:
    """Tango's statistic of a difference less its quantile, with the chances that make the outcomes likeliest."""

    def slope(q: float) -> float:
        changed = sum(k and k / p for k, p in ((better, q + gap), (worse, q)))
        return changed - 2 * (n - better - worse) / (1 - 2 * q - gap)

    least, most = max(0.0, -gap) + 1e-15, (1 - gap) / 2 - 1e-15
    if least >= most or slope(least) <= 0:
        q = least
    else:
        q = most if slope(most) >= 0 else optimize.brentq(slope, least, most, xtol=1e-15)
    spread = math.sqrt(n * max(2 * q + gap * (1 - gap), 1e-300))
    return sign * (better - worse - n * gap) / spread - float(stats.norm.ppf(0.975))


@pytest.mark.parametrize("n", [9, 50, 300])
def test_where_few_tasks_differ_the_interval_has_the_differences_that_tangos_test_does_not_reject(n):
    for better, worse in ((b, c) for b in range(10) for c in range(10 - b)):
        outcomes = np.repeat([[0, 1], [1, 0], [1, 1]], [better, worse, n - better - worse], axis=0).T
        expected = []
        for far, *rest in ((-1 + 1e-12, 1, better, worse, n), (1 - 1e-12, -1, better, worse, n)):
            rejected = excess(far, *rest) > 0
            bound = optimize.brentq(excess, far, (better - worse) / n, tuple(rest), xtol=1e-12) if rejected else far
            expected.append(bound)
        ours = np.array(paired_rates_interval((outcomes[0], 1), (outcomes[1], 1)))
        assert ours == pytest.approx(expected, abs=1e-6), (better, worse)


def test_a_drawn_permutation_is_near_the_exact_one():
    rng = np.random.default_rng(4)
    for _ in range(20):
        gaps = rng.normal(0.15, 0.5, 14)
        signs = 1 - 2 * ((np.arange(2**14)[:, None] >> np.arange(14)) & 1)
        exact = np.mean(np.abs(signs @ gaps) >= abs(gaps.sum()) - 1e-12)
        assert paired_permutation(gaps) == pytest.approx(exact, abs=4 * math.sqrt(0.25 / 10_000))


def plain_holm(p: list[float]) -> list[float]:
    ranked = sorted(p)
    return [max(min(1.0, (len(p) - k) * ranked[k]) for k in range(ranked.index(one) + 1)) for one in p]


@pytest.mark.slow
def test_corrections_are_those_of_statsmodels_and_scipy():
    rng = np.random.default_rng(5)
    for case in range(CASES):
        p = np.round(rng.random(int(rng.integers(1, 30))) ** 3, 5)
        assert benjamini_hochberg(p.tolist()) == pytest.approx(stats.false_discovery_control(p), abs=1e-12)
        if len(set(p)) == len(p):
            assert holm(p.tolist()) == pytest.approx(plain_holm(p.tolist()), abs=1e-12)
        if case < 10:  # theirs takes a tenth of a second or more
            tied = np.round(p, 1)
            assert holm(tied.tolist()) == pytest.approx(multipletests(tied, method="holm")[1], abs=1e-12)
            assert benjamini_hochberg(tied.tolist()) == pytest.approx(
                multipletests(tied, method="fdr_bh")[1], abs=1e-12
            )
    assert holm([]) == [] == benjamini_hochberg([])


def test_the_bootstrap_of_clusters_is_scipys_with_its_levels_widened():
    rng = np.random.default_rng(6)
    for _ in range(8):
        tasks = int(rng.integers(20, 120))
        counts = rng.integers(1, 6, tasks).astype(float)
        totals = rng.beta(0.5, 1.5, tasks) * counts
        tail = stats.norm.cdf(-math.sqrt(tasks / (tasks - 1)) * stats.t.ppf(0.975, tasks - 1))
        theirs = stats.bootstrap(
            (totals, counts), lambda t, n, axis: t.sum(axis) / n.sum(axis), paired=True, vectorized=True,
            n_resamples=20_000, confidence_level=1 - 2 * tail, method="BCa", rng=rng, batch=2000,
        )  # fmt: skip
        ours, width = cluster_bootstrap(totals, counts), np.ptp(theirs.confidence_interval)
        assert ours == pytest.approx(tuple(theirs.confidence_interval), abs=0.05 * width)


def test_the_paired_bootstrap_comes_near_students_interval_where_differences_are_normal():
    rng = np.random.default_rng(7)
    for _ in range(10):
        gaps = rng.normal(0.1, 0.3, 200)
        low, high = stats.ttest_1samp(gaps, 0).confidence_interval()
        assert np.ravel(paired_bootstrap_bounds(gaps[None])) == pytest.approx((low, high), abs=0.05 * (high - low))


def test_tasks_of_independent_policies_are_those_of_statsmodels():
    rng = np.random.default_rng(8)
    for _ in range(CASES):
        rate, power, level = rng.uniform(0.05, 0.9), rng.uniform(0.5, 0.95), rng.uniform(0.01, 0.1)
        gap = rng.uniform(0.02, 0.97 - rate)
        # Theirs is one-tailed and takes the variance of the null hypothesis from one rate.
        middle = rate + gap / 2
        alpha, beta = stats.norm.ppf(1 - level / 2), stats.norm.ppf(power)
        spread = rate * (1 - rate) + (rate + gap) * (1 - rate - gap)
        expected = (alpha * math.sqrt(2 * middle * (1 - middle)) + beta * math.sqrt(spread)) ** 2 / gap**2
        assert tasks_needed(rate, gap, power=power, level=level) == max(2, math.ceil(expected - 1e-9))
        theirs = samplesize_proportions_2indep_onetail(gap, rate, power, alpha=level / 2)
        assert tasks_needed(rate, gap, power=power, level=level) == pytest.approx(theirs, rel=0.35, abs=6)


def test_tasks_of_paired_policies_are_those_of_a_t_test_of_the_differences():
    rng = np.random.default_rng(9)
    for _ in range(30):
        rate, gap, seeds = rng.uniform(0.1, 0.7), rng.uniform(0.04, 0.1), int(rng.integers(1, 6))
        within = rng.uniform(0.05, 0.9)
        correlations = Correlations(within, rng.uniform(0, within / 2))
        spread = math.sqrt(variance_per_task(rate, rate + gap, seeds, correlations))
        theirs = TTestPower().solve_power(gap / spread, alpha=0.05, power=0.8)
        # McNemar's form uses the variance without the difference under the null hypothesis; a t-test has a few more.
        assert tasks_needed(rate, gap, seeds, correlations, paired=True) == pytest.approx(theirs, rel=0.08, abs=4)


def test_attempts_are_the_shares_of_all_choices():
    rng = np.random.default_rng(10)
    for _ in range(CASES):
        n = int(rng.integers(1, 12))
        c, k = int(rng.integers(0, n + 1)), int(rng.integers(1, n + 1))
        hyper = stats.hypergeom(n, c, k)
        assert pass_at_k([(c, n)], k) == pytest.approx(1 - hyper.pmf(0), abs=1e-12)
        assert pass_hat_k([(c, n)], k) == pytest.approx(hyper.pmf(k), abs=1e-12)
    assert pass_at_k([(1, 4), (4, 4)], 2) == pytest.approx((0.5 + 1) / 2)


def test_the_deviation_over_seeds_is_that_of_numpy():
    rng = np.random.default_rng(11)
    for size in rng.integers(2, 12, CASES).tolist():
        rates = rng.random(size)
        assert over_seeds(rates) == pytest.approx((rates.mean(), stats.tstd(rates)))
    assert over_seeds([0.25]) == (0.25, None)
