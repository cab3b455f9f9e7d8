"""Wilson's interval, with and without clusters."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsuite.core.errors import UsageError
from envsuite.evaluation.groups import natural
from envsuite.evaluation.statistics import clustered_wilson, student_t95, wilson

COUNTS = st.integers(1, 10_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(0, 10, 0.0, 0.27753), (10, 10, 0.72247, 1.0), (5, 10, 0.23659, 0.76341), (81, 263, 0.25527, 0.36621)],
)
def test_wilson_gives_the_published_intervals(successes: int, n: int, low: float, high: float) -> None:
    # 81 of 263: Newcombe 1998, table I.
    assert wilson(successes, n) == pytest.approx((low, high), abs=1e-4)


@given(COUNTS)
def test_the_bounds_solve_the_score_equation(counts: tuple[int, int]) -> None:
    successes, n = counts
    for bound in wilson(successes, n):
        # A bound is a rate from which the observed one is exactly z standard errors away.
        error = 1.959963984540054 * math.sqrt(bound * (1 - bound) / n)
        assert abs(successes / n - bound) == pytest.approx(error, abs=1e-7)


@given(COUNTS)
def test_intervals_hold_the_rate_and_mirror_that_of_the_failures(counts: tuple[int, int]) -> None:
    successes, n = counts
    low, high = wilson(successes, n)
    assert 0 <= low <= successes / n <= high <= 1
    assert wilson(n - successes, n) == pytest.approx((1 - high, 1 - low), abs=1e-12)


def test_counts_that_cannot_be_are_refused() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
    with pytest.raises(UsageError, match="3 successes of 2 trials"):
        wilson(3, 2)


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("tasks", "repeats", "alpha", "beta"),
    [(134, 2, 0.5, 0.5), (134, 2, 20, 20), (40, 4, 2, 2), (60, 3, 0.2, 1.8), (20, 8, 0.3, 0.7), (30, 4, 50, 450)],
)
def test_the_interval_clustered_by_task_covers_the_true_rate_in_95_of_100_evaluations(
    tasks: int, repeats: int, alpha: float, beta: float
) -> None:
    rng = np.random.default_rng(0)
    successes = rng.binomial(repeats, rng.beta(alpha, beta, (3000, tasks)))
    true = alpha / (alpha + beta)
    covered = [
        low <= true <= high for low, high in (clustered_wilson([(s, repeats) for s in r]) for r in successes.tolist())
    ]
    assert 0.93 <= np.mean(covered) <= 0.97
    if max(alpha, beta) < 1:  # where tasks differ much, the interval for independent episodes is too narrow
        plain = [low <= true <= high for low, high in (wilson(s, tasks * repeats) for s in successes.sum(1).tolist())]
        assert np.mean(plain) < 0.93


@given(st.lists(st.booleans(), min_size=1, max_size=60))
def test_tasks_that_are_played_once_have_wilsons_interval(solved: list[bool]) -> None:
    assert clustered_wilson([(int(one), 1) for one in solved]) == wilson(sum(solved), len(solved))


@given(st.lists(st.booleans(), min_size=2, max_size=60), st.integers(2, 5))
def test_repeating_what_is_certain_tells_nothing_new(solved: list[bool], repeats: int) -> None:
    low, high = clustered_wilson([(repeats * one, repeats) for one in solved])
    least, most = wilson(sum(solved), len(solved))
    assert low <= least + 1e-12 and high >= most - 1e-12
    assert low <= sum(solved) / len(solved) <= high


def test_one_task_alone_tells_no_more_than_one_trial_and_impossible_counts_are_refused() -> None:
    assert clustered_wilson([(8, 8)]) == wilson(1, 1) and clustered_wilson([]) == (0.0, 1.0)
    with pytest.raises(UsageError, match="more successes than episodes"):
        clustered_wilson([(3, 2), (0, 2)])


def test_repeated_tasks_widen_the_interval_by_what_tasks_differ() -> None:
    # By hand: 4 tasks, twice each, rate 5/8; variance 4/3 * (2 * 0.75**2 + 0.25**2 + 1.25**2) / 64, hence 4.09 trials.
    low, high = clustered_wilson([(2, 2), (2, 2), (1, 2), (0, 2)])
    independent = (5 / 8) * (3 / 8) / (4 / 3 * (2 * 0.75**2 + 0.25**2 + 1.25**2) / 64)
    t = student_t95(3)
    assert 4 < independent < 8
    for bound in (low, high):
        assert abs(5 / 8 - bound) == pytest.approx(t * math.sqrt(bound * (1 - bound) / independent), abs=1e-9)


def test_depth_ten_comes_after_depth_two() -> None:
    assert sorted(["depth-10", "depth-2", "all"], key=natural) == ["all", "depth-2", "depth-10"]
