"""Differences of two arms over pairs of runs: Student's interval, and what so many pairs find."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from envsuite.core.errors import UsageError
from research.credit.differences import Difference, detectable


def test_an_interval_is_students() -> None:
    rng = np.random.default_rng(1)
    one, two = rng.normal(0.4, 0.05, 5), rng.normal(0.3, 0.05, 5)
    expected = stats.ttest_rel(one, two).confidence_interval()
    assert Difference(one - two).interval == pytest.approx(tuple(expected))
    assert Difference(np.array([0.1])).interval == (-np.inf, np.inf)


@pytest.mark.parametrize(("seeds", "comparisons"), [(5, 1), (5, 8), (10, 8)])
def test_the_detectable_difference_is_found_four_times_of_five(seeds: int, comparisons: int) -> None:
    apart = detectable(0.03, seeds, comparisons)
    drawn = np.random.default_rng(2).normal(apart, 0.03, (20_000, seeds))
    p = stats.ttest_1samp(drawn, 0.0, axis=1).pvalue
    assert (p < 0.05 / comparisons).mean() == pytest.approx(0.8, abs=0.015)
    with pytest.raises(UsageError):
        detectable(0.0, seeds, comparisons)
