"""The papers' own small figures."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.estimators import step_table
from research.figures import measure, of_environment


def test_levels_are_nested_and_agree_with_the_clusters_of_equal_states():
    figures = measure(step_table(800))
    assert figures["exact"][0] == pytest.approx(1.0 - figures["shared"][0])
    assert (np.diff(figures["shared"]) <= 0.0).all() and figures["shared_code"][0] == figures["shared"][0]
    for fewer in ("shared_code", "credited"):
        assert (np.array(figures[fewer]) <= figures["shared"]).all()


def test_an_expert_that_never_errs_solves_its_tasks_and_meets_equal_states():
    (figures,) = of_environment("Bifurcation-v0", 0.0)
    assert figures["success"] == [1.0] and figures["exact"][0] == 0.0
