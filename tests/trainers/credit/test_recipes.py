"""Recipes, and methods that need what the trainer does not supply.

The terms of an advantage sum to it, and settings of comparisons lie over the method's own, under every method.

A method in another package: the one that ``envsuite new`` writes, installed and trained with by its name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from accelerate import Accelerator
from hypothesis import given
from numpy.testing import assert_allclose, assert_array_equal
from step_tables import for_each, step_tables, table_of
from tiny_runs import save_model, trained

from envsuite.core.errors import DataError, EnvsuiteError
from trainers.credit import recipes as recipes_module
from trainers.credit.crediting import Crediting
from trainers.credit.estimators import ESTIMATORS, Estimator
from trainers.credit.estimators.bipace import BiPACE
from trainers.credit.estimators.comparison import CENTRED, PRESETS, Comparing, StateComparison
from trainers.credit.estimators.dr_grpo import DrGRPO
from trainers.credit.estimators.gigpo import GiGPO
from trainers.credit.inertness import term_metrics
from trainers.credit.method import Method
from trainers.credit.recipes import COMPOSITIONS, recipe, recipes
from trainers.rollout.config import TreeConfig
from trainers.run.cli import parse
from trainers.settings import checked


@pytest.mark.parametrize("name", [*recipes(), *COMPOSITIONS])
def test_a_recipe_names_settings_that_exist_and_fit_together(name):
    method, written = parse(["--recipe", name]).config.method, recipe(name)
    assert method.estimator == written.method["estimator"]
    assert method.options == written.method.get("options", {})
    assert list(method.shapers) == list(written.method.get("shapers", {}))
    assert (method.replay is None) == ("spear" not in name)
    assert written.description and written.paper
    file = "configs/textcraft-rft.yaml" if method.imitates else "configs/textcraft.yaml"  # which has filters of its own
    assert parse(["--config", file, "--recipe", name]).config.recipe == name


def test_an_addition_named_alone_is_put_on_its_method_and_every_method_takes_it():
    assert recipe("spear").name == "grpo+spear" and recipe("dr_bot+spear").name == "grpo+dr_bot+spear"
    assert recipe("scpo").method == recipe("gigpo+scpo").method
    for base in ("gigpo", "hgpo", "rloo", "reinforce_pp", "dapo"):
        method = parse(["--recipe", f"{base}+spear"]).config.method
        assert method.estimator == base and method.replay is not None and "spear" in method.shapers


def test_a_composition_lays_its_parts_over_each_other_and_changes_none_of_them():
    before = recipe("gigpo").method, recipe("dr_bot").method
    method = recipe("gigpo+dr_bot+spear").method
    assert method["options"] == {"step_weight": 1.0, "gamma": 0.95, "compare": {"normalise": "mean"}}
    assert method["objective"]["dual_clip"] == 10.0 and method["objective"]["kl"] == "none"
    assert list(method["filters"]) == ["overlong", "void_turn", "low_spread"]
    assert recipe("hgpo+dr_bot").method["objective"]["kl_coef"] == 0.0, "Dr.BoT has no divergence term"
    assert before == (recipe("gigpo").method, recipe("dr_bot").method)


def test_what_an_addition_rewards_comes_before_what_the_method_charges():
    assert list(recipe("gigpo+scpo+spear").method["shapers"]) == ["scpo", "spear", "scale", "invalid_action_penalty"]


def test_variants_are_laid_over_their_recipe_and_every_one_can_be_read():
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
def test_parts_and_options_that_contradict_each_other_are_refused_when_the_config_is_read(arguments, words):
    with pytest.raises(EnvsuiteError) as caught:
        parse(arguments)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_comparison_is_a_section_or_a_preset_and_groups_of_one_need_raw_returns():
    chosen = ["--recipe", "gigpo/webshop", "--method.options.compare"]
    assert parse([*chosen, "verl-agent"]).config.method.options["compare"] == "verl-agent"
    method = parse(["--recipe", "gigpo/webshop", "--method.options.compare.weigh", "step"]).config.method
    assert method.options["compare"] == {"normalise": "mean", "weigh": "step"}
    alone = ["--recipe", "grpo", "--rollout.group_size", "1", "--method.options.compare"]
    assert parse([*alone, "verl"]).config.rollout.group_size == 1
    with pytest.raises(EnvsuiteError, match=r"rollout\.group_size is 1"):
        parse([*alone, "trl"])


def test_filters_are_given_by_name_or_with_settings():
    listed = parse(["--recipe", "grpo", "--method.filters", "[overlong, low_spread]"]).config.method
    assert listed.filter_settings == {"overlong": {}, "low_spread": {}}
    settings = parse(["--recipe", "grpo", "--method.filters", "{low_spread: {fraction: 0.5}}"]).config.method
    assert settings.filter_settings == {"low_spread": {"fraction": 0.5}}
    assert parse(["--recipe", "dr_bot"]).config.method.filter_settings["low_spread"] == {"fraction": 0.25}
    assert parse(["--recipe", "spear", "--method.replay", "null"]).config.method.replay is None


def test_a_recipe_of_another_estimator_leaves_out_the_options_that_a_file_has_for_its_own(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("recipe: gigpo\nmethod: {options: {compare_step: {normalise: mean}}, filters: [zero_variance]}\n")
    for name, options in (("gigpo+scpo", {"compare_step": {"normalise": "mean"}}), ("rloo", {})):
        method = parse(["--config", str(file), "--recipe", name]).config.method
        assert method.options == {**recipe(name).method.get("options", {}), **options}
        assert method.filters == ["zero_variance"]
    with pytest.raises(EnvsuiteError, match="compare_step"):
        parse(["--config", str(file), "--recipe", "rloo", "--method.options", "{compare_step: {normalise: mean}}"])


def test_a_recipe_that_lacks_something_is_named(tmp_path, monkeypatch):
    (tmp_path / "mine.yaml").write_text("description: Mine.\nmethod: {estimator: grpo}\n")
    monkeypatch.setattr(recipes_module, "files", lambda name: tmp_path)
    with pytest.raises(DataError, match=r"mine\.yaml: a recipe has description, paper and method.*'paper'"):
        recipes.__wrapped__()


MORE: dict[str, list[dict[str, Any]]] = {
    "gigpo": [{"step_weight": 0.3}, {"step_weight": 0.0}, {"compare": {"normalise": "mean", "weigh": "step"}}],
    "hgpo": [
        {"depth": 0},
        {"omit_zero": False, "episode_term": True},
        {"short_history": "skip", "weight_epsilon": 1e-6, "first_weight": 2.0, "alpha": 0.5},
    ],
    "bipace": [
        {"step_weight": 0.5, "credit": "diff"},
        {"credit": "mean", "embedder": "identity"},
        {"embedder": "ngram_hash", "radius": 0.25, "action_key": "first_tokens"},
    ],
    "graphgpo": [{"graph_weight": 0.5, "episode_weight": 0.0}, {"exponent": "code", "penalise": True}],
    "g2po": [{"step_weight": 0.5}, {"step_weight": 0.0}],
    "pgpo": [{"beta": 0.0}, {"alpha": 0.0, "leave_one_out": True}],
    "gagpo": [{"over": "none"}],
    "rewardflow": [{"step_weight": 0.1, "arrival": "first"}, {"longest": "rewardflow_code", "penalise": True}],
    "tree_grpo": [{"combine": "tree_2norm"}, {"combine": "tree_inner"}, {"lone_leaf": "raw"}],
    "remax": [{"credit": "to_go"}],
    "opd": [{"task_weight": 0.5}],
    "ppo": [{"whiten": True, "scope": "step"}],
    "steppo": [{"whiten": True}],
}


def _cases() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every method with its defaults, the options above, and those of every recipe and variant."""
    yield from ((name, {}) for name in ESTIMATORS)
    yield from ((name, options) for name, found in MORE.items() for options in found)
    for name, entry in recipes().items():
        for variant in (name, *(f"{name}/{variant}" for variant in entry.variants)):
            method = recipe(variant).method
            yield method["estimator"], method.get("options", {})


CASES = {f"{name}-{options}": (name, options) for name, options in _cases()}


def _made(case: str) -> Estimator:
    name, options = CASES[case]
    return checked(ESTIMATORS[name], options, "option")


@pytest.mark.seconds
@given(steps=step_tables())
@for_each(case=CASES)
def test_the_terms_sum_to_the_advantage(case, steps):
    estimator = _made(case)
    advantage = estimator(steps)
    whole, terms = advantage.whole, advantage.summands
    assert all(term.shape == whole.shape and term.dtype == np.float64 for term in terms.values())
    assert_allclose(sum(terms.values()), whole, rtol=1e-9, atol=1e-9)
    assert set(estimator.distinguishing) <= set(terms) and set(advantage.groups) <= set(terms)
    assert all(group.shape == (len(steps),) for group in advantage.groups.values())


def _ordered(options: dict[str, Any]) -> bool:
    """Whether an option of the original's depends on the order of rows."""
    return bool(options.get("similarity")) or options.get("arrival") == "first"


@pytest.mark.seconds
@given(steps=step_tables())
@for_each(case=[case for case, (_, options) in CASES.items() if not _ordered(options)])
def test_what_the_terms_do_does_not_depend_on_the_order_of_rows(case, steps):
    order = np.random.default_rng(len(steps)).permutation(len(steps))
    other = steps.take(order)
    estimator = _made(case)
    told = term_metrics(steps, estimator(steps))
    assert told == pytest.approx(term_metrics(other, estimator(other)), abs=1e-9)
    for name, value in told.items():
        if name.endswith(("/touched", "/singletons")):
            assert 0.0 <= value <= 1.0, name


@pytest.mark.parametrize("case", CASES)
def test_the_terms_of_an_empty_table_are_there_and_do_nothing(case):
    empty, estimator = table_of([]), _made(case)
    advantage = estimator(empty)
    assert set(term_metrics(empty, advantage).values()) == {0.0}
    assert set(estimator.distinguishing) <= set(advantage.summands)


# -- The settings of a comparison


COMPARING = sorted(name for name in ESTIMATORS if issubclass(ESTIMATORS[name], Comparing))


def made(name: str, **options: object) -> Comparing:
    estimator = checked(ESTIMATORS[name], options, f"option of estimator {name}")
    assert isinstance(estimator, Comparing)
    return estimator


@pytest.mark.parametrize("name", COMPARING)
def test_settings_that_are_not_given_stay_those_of_the_method(name):
    own = ESTIMATORS[name]().compare
    assert made(name, compare={"singleton": "raw"}).compare == replace(own, singleton="raw")
    assert made("hgpo", compare={"normalise": "mean"}).compare.ddof == 0


@pytest.mark.parametrize("name", COMPARING)
@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_lies_over_the_default_of_every_method_as_far_as_the_method_reads_it(name, preset):
    own, found = vars(ESTIMATORS[name]().compare), vars(made(name, compare=preset).compare)
    changed = {key for key in own if found[key] != own[key]}
    assert changed <= set(PRESETS[preset]) and all(found[key] == PRESETS[preset][key] for key in changed)
    assert found["singleton"] == PRESETS[preset].get("singleton", "zero")


def test_hgpo_takes_the_settings_of_verl_agent_over_the_deviation_of_its_own_code():
    assert made("hgpo", compare="verl-agent").compare == StateComparison("std", "step", 0, 1e-6, "raw")
    assert made("opo", compare="verl-agent").compare == replace(CENTRED, singleton="raw"), "its samples are episodes"


@given(step_tables())
def test_gigpo_compares_steps_as_episodes_unless_it_is_told_otherwise(steps):
    one, both = GiGPO(compare=CENTRED), GiGPO(compare=CENTRED, compare_step=CENTRED)
    assert_array_equal(one(steps).per_step, both(steps).per_step)


def test_a_checkpoint_keeps_how_a_calibrated_method_compares():
    calibrated = BiPACE(radius=0.2, compare=StateComparison.from_preset("verl-agent"))
    state = json.loads(json.dumps(Crediting(Method(calibrated, {}, {}), Accelerator(cpu=True)).state()))
    resumed = Crediting(Method(BiPACE(radius=None), {}, {}), Accelerator(cpu=True))
    resumed.load(state)
    assert resumed.estimator == calibrated


NEW = ("method", "middle")


def test_the_method_of_another_package_is_centred_on_the_median(site):
    steps = table_of(
        [(0, 0, 0, 0.0, "a", True), (0, 0, 1, 1.0, "b", True), (0, 1, 0, 3.0, "a", True), (0, 2, 0, 9.0, "a", True)]
    )
    method = checked(ESTIMATORS["middle"], {"scale": 2.0}, "option")
    assert_allclose(method(steps).per_step, [-1.0, -1.0, 0.0, 3.0])
    pair = steps.take(np.array([0, 1, 2]))
    assert_allclose(checked(ESTIMATORS["middle"], {}, "option")(pair).per_step, DrGRPO()(pair).per_step)


def test_a_run_trains_with_it_by_its_name(site, tmp_path):
    save_model(tmp_path / "model", "llama")
    options = ["--method.estimator", "middle", "--method.options.scale", "2"]
    records = trained(tmp_path, *options, iterations=1, recipe="dr_grpo", **{"evaluation.envs": []})
    assert "diag/above_median" in records[-1]
