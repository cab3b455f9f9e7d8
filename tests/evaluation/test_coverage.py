"""Intervals have the true value in 93 to 97 of 100 evaluations, where docs/statistics.md says so."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from simulated_evaluations import (
    Regime,
    agreement_coverage,
    difference_coverage,
    exact_wilson,
    rate_coverage,
    score_coverage,
)

from envsuite.evaluation.statistics import paired_rates_interval, paired_scores_bounds

COVERAGES = {
    "difference of rates": partial(difference_coverage, graded=False),
    "score": score_coverage,
    "difference of scores": partial(difference_coverage, graded=True),
}


@pytest.mark.parametrize("tasks", [50, 100, 200, 500])
@pytest.mark.parametrize("band", [(0.05, 0.1), (0.3, 0.7), (0.9, 0.95)])
def test_the_interval_of_a_rate_covers_it(tasks: int, band: tuple[float, float]) -> None:
    rng = np.random.default_rng(tasks)
    for seeds, correlation in ((1, 0.0), (3, 0.2), (5, 0.8)):
        if tasks * seeds <= 1000:
            assert 0.93 <= rate_coverage(rng, Regime(tasks, seeds, band, correlation), 2000) <= 0.97


def test_at_one_rate_wilsons_interval_of_few_tasks_is_off_by_what_the_page_says() -> None:
    assert round(exact_wilson(5, 0.02), 3) == 0.904 and round(exact_wilson(10, 0.5), 3) == 0.979
    assert all(0.93 <= exact_wilson(n, p) <= 0.971 for n in (50, 100, 200, 500) for p in (0.1, 0.3, 0.5))


@pytest.mark.parametrize("favour", [0.0, 0.25, 0.5, 0.75, 1.0])
@pytest.mark.parametrize("share", [0.0, 0.03, 0.97, 1.0])
def test_the_interval_of_a_difference_covers_it_where_policies_differ_on_hardly_a_task_or_on_each(
    share: float, favour: float
) -> None:
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
def test_no_interval_of_a_difference_is_a_point(tasks: int, gap: float) -> None:
    for differing in {0, 1, tasks - 1, tasks}:
        one = np.full((1, tasks), max(0.0, -gap))
        two = one + gap * (np.arange(tasks) < differing)
        for low, high in (paired_scores_bounds(one, two, 1.0), paired_rates_interval((one, 1), (two, 1))):
            assert -1 <= low[0] <= gap * differing / tasks <= high[0] <= 1 and high[0] - low[0] > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("name", COVERAGES)
@pytest.mark.parametrize(("tasks", "band"), [(50, (0.3, 0.7)), (100, (0.1, 0.3)), (200, (0.7, 0.9))])
def test_intervals_of_scores_and_differences_cover_them(name: str, tasks: int, band: tuple[float, float]) -> None:
    for seeds, correlation in ((1, 0.2), (5, 0.8)):
        covered = COVERAGES[name](np.random.default_rng(1), Regime(tasks, seeds, band, correlation), 2000)
        assert 0.93 <= covered <= 0.97, (tasks, seeds, correlation)


@pytest.mark.slow
def test_near_the_ends_bootstraps_are_off_with_50_tasks_as_the_page_says_and_not_with_100() -> None:
    cases = (("score", 1, 0.2, 0.905, 0.95), ("difference of scores", 5, 0.8, 0.96, 0.99))
    for name, seeds, correlation, least, most in cases:
        few, more = (
            COVERAGES[name](np.random.default_rng(1), Regime(tasks, seeds, (0.05, 0.1), correlation), 2000)
            for tasks in (50, 100)
        )
        assert least <= few <= most and 0.93 <= more <= 0.97, (name, few, more)
