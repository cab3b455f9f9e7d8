"""Wilson's interval, with and without clusters."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsuite.core.errors import UsageError
from envsuite.evaluation.groups import natural
from envsuite.evaluation.statistics import clustered_wilson, student_t95, wilson


def test_counts_that_cannot_be_are_refused() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
    with pytest.raises(UsageError, match="3 successes of 2 trials"):
        wilson(3, 2)


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
