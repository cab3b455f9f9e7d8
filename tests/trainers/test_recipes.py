import pytest

from trainers.cli import parse
from trainers.recipes import recipes


@pytest.mark.parametrize("name", recipes())
def test_a_recipe_names_settings_that_exist_and_fit_together(name: str) -> None:
    method = parse(["--recipe", name]).config.method
    assert method.estimator == recipes()[name].method["estimator"]
    assert method.options == recipes()[name].method.get("options", {})
