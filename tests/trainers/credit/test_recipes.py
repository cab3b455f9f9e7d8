"""Recipes, and methods that need what the trainer does not supply."""

from pathlib import Path

import pytest

from envsuite.core.errors import DataError, EnvsuiteError
from trainers.credit import recipes as recipes_module
from trainers.credit.recipes import COMPOSITIONS, recipe, recipes
from trainers.rollout.config import TreeConfig
from trainers.run.cli import parse


@pytest.mark.parametrize("name", [*recipes(), *COMPOSITIONS])
def test_a_recipe_names_settings_that_exist_and_fit_together(name: str) -> None:
    method, written = parse(["--recipe", name]).config.method, recipe(name)
    assert method.estimator == written.method["estimator"]
    assert method.options == written.method.get("options", {})
    assert list(method.shapers) == list(written.method.get("shapers", {}))
    assert (method.replay is None) == ("spear" not in name)
    assert written.description and written.paper
    file = (
        "configs/quickstart-rft.yaml" if method.imitates else "configs/quickstart.yaml"
    )  # which has filters of its own
    assert parse(["--config", file, "--recipe", name]).config.recipe == name


def test_an_addition_named_alone_is_put_on_its_method_and_every_method_takes_it() -> None:
    assert recipe("spear").name == "grpo+spear" and recipe("dr_bot+spear").name == "grpo+dr_bot+spear"
    assert recipe("scpo").method == recipe("gigpo+scpo").method
    for base in ("gigpo", "hgpo", "rloo", "reinforce_pp", "dapo"):
        method = parse(["--recipe", f"{base}+spear"]).config.method
        assert method.estimator == base and method.replay is not None and "spear" in method.shapers


def test_a_composition_lays_its_parts_over_each_other_and_changes_none_of_them() -> None:
    before = recipe("gigpo").method, recipe("dr_bot").method
    method = recipe("gigpo+dr_bot+spear").method
    assert method["options"] == {"step_weight": 1.0, "gamma": 0.95, "compare": {"normalise": "mean"}}
    assert method["objective"]["dual_clip"] == 10.0 and method["objective"]["kl"] == "none"
    assert list(method["filters"]) == ["overlong", "void_turn", "low_spread"]
    assert recipe("hgpo+dr_bot").method["objective"]["kl_coef"] == 0.0, "Dr.BoT has no divergence term"
    assert before == (recipe("gigpo").method, recipe("dr_bot").method)


def test_what_an_addition_rewards_comes_before_what_the_method_charges() -> None:
    assert list(recipe("gigpo+scpo+spear").method["shapers"]) == ["scpo", "spear", "scale", "invalid_action_penalty"]


def test_variants_are_laid_over_their_recipe_and_every_one_can_be_read() -> None:
    whole = parse(["--recipe", "gigpo/webshop+scpo/webshop"]).config
    assert whole.recipe == "gigpo/webshop+scpo/webshop" and whole.method.objective.entropy_coef == 0.001
    assert whole.method.options["compare"] == {"normalise": "mean"} and whole.method.shapers["scpo"]["alpha"] == 1.0
    assert whole.optim.minibatch_rows == 256, "SCPO's table 3 has one for both benchmarks"
    assert parse(["--recipe", "tree_grpo"]).config.rollout.tree == TreeConfig(**recipe("tree_grpo").rollout["tree"])
    maths = parse(["--recipe", "dr_bot/mathematics+spear/mathematics"]).config
    assert (maths.method.objective.horizon, maths.method.replay.warmup, maths.optim.minibatch_rows) == (16384, 300, 64)
    assert maths.method.shapers["spear"] == {"decay": 200, "tools": ["python"]}
    for name, entry in recipes().items():
        for variant in entry.variants:
            parse(["--recipe", f"{name}/{variant}"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--recipe", "gigpo+grpo"], ["'grpo' is a method of its own, as 'gigpo' is", "dr_bot, scpo, spear"]),
        (["--recipe", "gigpo+spear+spear"], ["'spear' is there twice"]),
        (["--recipe", "gigpo+speer"], ["recipe 'speer'", "Nearest: 'spear'"]),
        (["--recipe", "gigpo+"], ["recipe ''"]),
        (["--recipe", "gigpo+spear", "--method.shapers.scale.factor", "10"], ["spear pays 1 or -1", "factor: 1.0"]),
        (["--recipe", "bipace/1b"], ["variant of recipe bipace '1b'", "1.5b"]),
        (["--recipe", "remax+dr_bot"], ["option of estimator remax 'compare'"]),
        (["--recipe", "opo+dr_bot"], ["dual_clip belongs to loss 'ppo'"]),
        (["--recipe", "dr_bot", "--method.filters", "{low_spread: {fractoin: 0.5}}"], ["filter low_spread 'fractoin'"]),
        (["--recipe", "reinforce_pp", "--method.objective.ratio", "step"], ["ratio 'step'", "reinforce_pp"]),
        (["--recipe", "grpo", "--method.shapers", "{kl_penalty: {per: token}}"], ["lost on estimator grpo"]),
        (["--recipe", "steppo", "--method.critic", "null"], ["steppo needs the column 'value', which a critic"]),
        (["--recipe", "grpo", "--method.critic", "{kind: head}"], ["method.critic is set, but grpo"]),
        (["--recipe", "grpo", "--method.estimator", "hiper"], ["hiper needs the column 'value_high', which a critic"]),
        (["--recipe", "tree_grpo", "--rollout.tree.keep", "4"], ["1 rounds of 2 branches make a tree of 3"]),
        (
            ["--recipe", "tree_grpo", "--rollout.tree.trees", "1", "--rollout.tree.keep", "1"],
            ["compares the episodes of a group"],
        ),
    ],
)
def test_parts_and_options_that_contradict_each_other_are_refused_when_the_config_is_read(
    arguments: list[str], words: list[str]
) -> None:
    with pytest.raises(EnvsuiteError) as caught:
        parse(arguments)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_comparison_is_a_section_or_a_preset_and_groups_of_one_need_raw_returns() -> None:
    chosen = ["--recipe", "gigpo/webshop", "--method.options.compare"]
    assert parse([*chosen, "verl-agent"]).config.method.options["compare"] == "verl-agent"
    method = parse(["--recipe", "gigpo/webshop", "--method.options.compare.weigh", "step"]).config.method
    assert method.options["compare"] == {"normalise": "mean", "weigh": "step"}
    alone = ["--recipe", "grpo", "--rollout.group_size", "1", "--method.options.compare"]
    assert parse([*alone, "verl"]).config.rollout.group_size == 1
    with pytest.raises(EnvsuiteError, match=r"rollout\.group_size is 1"):
        parse([*alone, "trl"])


def test_filters_are_given_by_name_or_with_settings() -> None:
    listed = parse(["--recipe", "grpo", "--method.filters", "[overlong, low_spread]"]).config.method
    assert listed.filter_settings == {"overlong": {}, "low_spread": {}}
    settings = parse(["--recipe", "grpo", "--method.filters", "{low_spread: {fraction: 0.5}}"]).config.method
    assert settings.filter_settings == {"low_spread": {"fraction": 0.5}}
    assert parse(["--recipe", "dr_bot"]).config.method.filter_settings["low_spread"] == {"fraction": 0.25}
    assert parse(["--recipe", "spear", "--method.replay", "null"]).config.method.replay is None


def test_a_recipe_of_another_estimator_leaves_out_the_options_that_a_file_has_for_its_own(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("recipe: gigpo\nmethod: {options: {compare_step: {normalise: mean}}, filters: [zero_variance]}\n")
    for name, options in (("gigpo+scpo", {"compare_step": {"normalise": "mean"}}), ("rloo", {})):
        method = parse(["--config", str(file), "--recipe", name]).config.method
        assert method.options == {**recipe(name).method.get("options", {}), **options}
        assert method.filters == ["zero_variance"]
    with pytest.raises(EnvsuiteError, match="compare_step"):
        parse(["--config", str(file), "--recipe", "rloo", "--method.options", "{compare_step: {normalise: mean}}"])


def test_a_recipe_that_lacks_something_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.yaml").write_text("description: Mine.\nmethod: {estimator: grpo}\n")
    monkeypatch.setattr(recipes_module, "files", lambda name: tmp_path)
    with pytest.raises(DataError, match=r"mine\.yaml: a recipe has description, paper and method.*'paper'"):
        recipes.__wrapped__()
