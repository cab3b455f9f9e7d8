"""A method in another package: the one that ``envsuite new`` writes, installed and trained with by its name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.testing import assert_allclose
from step_tables import table_of
from tiny_runs import save_model, trained

from trainers.credit.estimators import ESTIMATORS
from trainers.credit.estimators.dr_grpo import DrGRPO
from trainers.settings import checked

NEW = ("method", "middle")


def test_the_method_of_another_package_is_centred_on_the_median(site: Path) -> None:
    steps = table_of(
        [(0, 0, 0, 0.0, "a", True), (0, 0, 1, 1.0, "b", True), (0, 1, 0, 3.0, "a", True), (0, 2, 0, 9.0, "a", True)]
    )
    method = checked(ESTIMATORS["middle"], {"scale": 2.0}, "option")
    assert_allclose(method(steps).per_step, [-1.0, -1.0, 0.0, 3.0])
    pair = steps.take(np.array([0, 1, 2]))
    assert_allclose(checked(ESTIMATORS["middle"], {}, "option")(pair).per_step, DrGRPO()(pair).per_step)


def test_a_run_trains_with_it_by_its_name(site: Path, tmp_path: Path) -> None:
    save_model(tmp_path / "model", "llama")
    options = ["--method.estimator", "middle", "--method.options.scale", "2"]
    records = trained(tmp_path, *options, iterations=1, recipe="dr_grpo", **{"evaluation.envs": []})
    assert "diag/above_median" in records[-1]
