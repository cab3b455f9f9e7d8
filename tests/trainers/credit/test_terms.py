"""The terms of an advantage sum to it, and settings of comparisons lie over the method's own, under every method."""

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

from trainers.credit.crediting import Crediting
from trainers.credit.estimators import ESTIMATORS, Estimator
from trainers.credit.estimators.bipace import BiPACE
from trainers.credit.estimators.comparison import CENTRED, PRESETS, Comparing, StateComparison
from trainers.credit.estimators.gigpo import GiGPO
from trainers.credit.inertness import term_metrics
from trainers.credit.method import Method
from trainers.credit.recipes import recipe, recipes
from trainers.settings import checked
from trainers.steps import StepTable

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
def test_the_terms_sum_to_the_advantage(case: str, steps: StepTable) -> None:
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
def test_what_the_terms_do_does_not_depend_on_the_order_of_rows(case: str, steps: StepTable) -> None:
    order = np.random.default_rng(len(steps)).permutation(len(steps))
    other = steps.take(order)
    estimator = _made(case)
    told = term_metrics(steps, estimator(steps))
    assert told == pytest.approx(term_metrics(other, estimator(other)), abs=1e-9)
    for name, value in told.items():
        if name.endswith(("/touched", "/singletons")):
            assert 0.0 <= value <= 1.0, name


@pytest.mark.parametrize("case", CASES)
def test_the_terms_of_an_empty_table_are_there_and_do_nothing(case: str) -> None:
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
def test_settings_that_are_not_given_stay_those_of_the_method(name: str) -> None:
    own = ESTIMATORS[name]().compare
    assert made(name, compare={"singleton": "raw"}).compare == replace(own, singleton="raw")
    assert made("hgpo", compare={"normalise": "mean"}).compare.ddof == 0


@pytest.mark.parametrize("name", COMPARING)
@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_lies_over_the_default_of_every_method_as_far_as_the_method_reads_it(name: str, preset: str) -> None:
    own, found = vars(ESTIMATORS[name]().compare), vars(made(name, compare=preset).compare)
    changed = {key for key in own if found[key] != own[key]}
    assert changed <= set(PRESETS[preset]) and all(found[key] == PRESETS[preset][key] for key in changed)
    assert found["singleton"] == PRESETS[preset].get("singleton", "zero")


def test_hgpo_takes_the_settings_of_verl_agent_over_the_deviation_of_its_own_code() -> None:
    assert made("hgpo", compare="verl-agent").compare == StateComparison("std", "step", 0, 1e-6, "raw")
    assert made("opo", compare="verl-agent").compare == replace(CENTRED, singleton="raw"), "its samples are episodes"


@given(step_tables())
def test_gigpo_compares_steps_as_episodes_unless_it_is_told_otherwise(steps: StepTable) -> None:
    one, both = GiGPO(compare=CENTRED), GiGPO(compare=CENTRED, compare_step=CENTRED)
    assert_array_equal(one(steps).per_step, both(steps).per_step)


def test_a_checkpoint_keeps_how_a_calibrated_method_compares() -> None:
    calibrated = BiPACE(radius=0.2, compare=StateComparison.from_preset("verl-agent"))
    state = json.loads(json.dumps(Crediting(Method(calibrated, {}, {}), Accelerator(cpu=True)).state()))
    resumed = Crediting(Method(BiPACE(radius=None), {}, {}), Accelerator(cpu=True))
    resumed.load(state)
    assert resumed.estimator == calibrated
