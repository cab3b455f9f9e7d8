"""Wilson's interval, with and without clusters.

Intervals have the true value in 93 to 97 of 100 evaluations, where docs/statistics.md says so.
"""

import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_evaluations import (
    Regime,
    agreement_coverage,
    difference_coverage,
    exact_wilson,
    rate_coverage,
    score_coverage,
)

from envsuite.core.errors import UsageError
from envsuite.evaluation.groups import natural
from envsuite.evaluation.statistics import (
    clustered_wilson,
    paired_rates_interval,
    paired_scores_bounds,
    student_t95,
    wilson,
)


def test_counts_that_cannot_be_are_refused():
    assert wilson(0, 0) == (0.0, 1.0)
    with pytest.raises(UsageError, match="3 successes of 2 trials"):
        wilson(3, 2)


@given(st.lists(st.booleans(), min_size=1, max_size=60))
def test_tasks_that_are_played_once_have_wilsons_interval(solved):
    assert clustered_wilson([(int(one), 1) for one in solved]) == wilson(sum(solved), len(solved))


@given(st.lists(st.booleans(), min_size=2, max_size=60), st.integers(2, 5))
def test_repeating_what_is_certain_tells_nothing_new(solved, repeats):
    low, high = clustered_wilson([(repeats * one, repeats) for one in solved])
    least, most = wilson(sum(solved), len(solved))
    assert low <= least + 1e-12 and high >= most - 1e-12
    assert low <= sum(solved) / len(solved) <= high


def test_one_task_alone_tells_no_more_than_one_trial_and_impossible_counts_are_refused():
    assert clustered_wilson([(8, 8)]) == wilson(1, 1) and clustered_wilson([]) == (0.0, 1.0)
    with pytest.raises(UsageError, match="more successes than episodes"):
        clustered_wilson([(3, 2), (0, 2)])


def test_repeated_tasks_widen_the_interval_by_what_tasks_differ():
    # By hand: 4 tasks, twice each, rate 5/8; variance 4/3 * (2 * 0.75**2 + 0.25**2 + 1.25**2) / 64, hence 4.09 trials.
    low, high = clustered_wilson([(2, 2), (2, 2), (1, 2), (0, 2)])
    independent = (5 / 8) * (3 / 8) / (4 / 3 * (2 * 0.75**2 + 0.25**2 + 1.25**2) / 64)
    t = student_t95(3)
    assert 4 < independent < 8
    for bound in (low, high):
        assert abs(5 / 8 - bound) == pytest.approx(t * math.sqrt(bound * (1 - bound) / independent), abs=1e-9)


def test_depth_ten_comes_after_depth_two():
    assert sorted(["depth-10", "depth-2", "all"], key=natural) == ["all", "depth-2", "depth-10"]


COVERAGES = {
    "difference of rates": partial(difference_coverage, graded=False),
    "score": score_coverage,
    "difference of scores": partial(difference_coverage, graded=True),
}


@pytest.mark.parametrize("tasks", [50, 100, 200, 500])
@pytest.mark.parametrize("band", [(0.05, 0.1), (0.3, 0.7), (0.9, 0.95)])
def test_the_interval_of_a_rate_covers_it(tasks, band):
    rng = np.random.default_rng(tasks)
    for seeds, correlation in ((1, 0.0), (3, 0.2), (5, 0.8)):
        if tasks * seeds <= 1000:
            assert 0.93 <= rate_coverage(rng, Regime(tasks, seeds, band, correlation), 2000) <= 0.97


def test_at_one_rate_wilsons_interval_of_few_tasks_is_off_by_what_the_page_says():
    assert round(exact_wilson(5, 0.02), 3) == 0.904 and round(exact_wilson(10, 0.5), 3) == 0.979
    assert all(0.93 <= exact_wilson(n, p) <= 0.971 for n in (50, 100, 200, 500) for p in (0.1, 0.3, 0.5))


@pytest.mark.parametrize("favour", [0.0, 0.25, 0.5, 0.75, 1.0])
@pytest.mark.parametrize("share", [0.0, 0.03, 0.97, 1.0])
def test_the_interval_of_a_difference_covers_it_where_policies_differ_on_hardly_a_task_or_on_each(share, favour):
    assert agreement_coverage(np.random.default_rng(1), 50, share, favour, 3000) >= 0.93
    # Scores: the better policy has up to 0.5 more on a task.
    rng = np.random.default_rng(2)
    kind, least, more = rng.random((1000, 50)), rng.random((1000, 50)) / 2, rng.random((1000, 50)) / 2
    one, two = (least + more * where for where in ((kind < share) & (kind >= share * favour), kind < share * favour))
    low, high = paired_scores_bounds(one, two, 1.0, resamples=300)
    true = share * (2 * favour - 1) / 4
    assert np.mean((low <= true) & (true <= high)) >= 0.93 and (high - low).min() > 0.01


@pytest.mark.parametrize("tasks", [1, 2, 9, 50])
@pytest.mark.parametrize("gap", [-1.0, -0.25, 0.0, 0.25, 1.0])
def test_no_interval_of_a_difference_is_a_point(tasks, gap):
    for differing in {0, 1, tasks - 1, tasks}:
        one = np.full((1, tasks), max(0.0, -gap))
        two = one + gap * (np.arange(tasks) < differing)
        for low, high in (paired_scores_bounds(one, two, 1.0), paired_rates_interval((one, 1), (two, 1))):
            assert -1 <= low[0] <= gap * differing / tasks <= high[0] <= 1 and high[0] - low[0] > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("name", COVERAGES)
@pytest.mark.parametrize(("tasks", "band"), [(50, (0.3, 0.7)), (100, (0.1, 0.3)), (200, (0.7, 0.9))])
def test_intervals_of_scores_and_differences_cover_them(name, tasks, band):
    for seeds, correlation in ((1, 0.2), (5, 0.8)):
        covered = COVERAGES[name](np.random.default_rng(1), Regime(tasks, seeds, band, correlation), 2000)
        assert 0.93 <= covered <= 0.97, (tasks, seeds, correlation)


@pytest.mark.slow
def test_near_the_ends_bootstraps_are_off_with_50_tasks_as_the_page_says_and_not_with_100():
    cases = (("score", 1, 0.2, 0.905, 0.95), ("difference of scores", 5, 0.8, 0.96, 0.99))
    for name, seeds, correlation, least, most in cases:
        few, more = (
            COVERAGES[name](np.random.default_rng(1), Regime(tasks, seeds, (0.05, 0.1), correlation), 2000)
            for tasks in (50, 100)
        )
        assert least <= few <= most and 0.93 <= more <= 0.97, (name, few, more)
