"""Recipes, and methods that need what the trainer does not supply."""

import pytest

from trainers.cli import parse
from trainers.recipes import recipes
from trainers.steps.table import MissingColumn


@pytest.mark.parametrize("name", recipes())
def test_a_recipe_names_settings_that_exist_and_fit_together(name: str) -> None:
    method = parse(["--recipe", name]).config.method
    assert method.estimator == recipes()[name].method["estimator"]
    assert method.options == recipes()[name].method.get("options", {})


@pytest.mark.parametrize(
    ("estimator", "column"),
    [
        ("steppo", "the column 'value', which a critic"),
        ("ppo", "the token column 'value', which a critic"),
        ("remax", "the column 'greedy_return'"),
        ("bipace", "the column 'embedding'"),
    ],
)
def test_a_method_whose_columns_nothing_supplies_is_refused_before_the_run(estimator: str, column: str) -> None:
    with pytest.raises(MissingColumn, match=f"{estimator} needs {column}"):
        parse(["--recipe", "grpo", "--method.estimator", estimator])
