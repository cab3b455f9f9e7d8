"""The settings of a comparison: what is given lies over the method's own default."""

import json
from dataclasses import replace

import pytest
from accelerate import Accelerator
from hypothesis import given
from numpy.testing import assert_array_equal
from step_tables import step_tables

from trainers.credit.crediting import Crediting
from trainers.credit.estimators import ESTIMATORS
from trainers.credit.estimators.bipace import BiPACE
from trainers.credit.estimators.comparison import CENTRED, PRESETS, Comparing, Comparison
from trainers.credit.estimators.gigpo import GiGPO
from trainers.credit.method import Method
from trainers.settings import make
from trainers.steps import StepTable

COMPARING = sorted(name for name in ESTIMATORS if issubclass(ESTIMATORS[name], Comparing))


def made(name: str, **options: object) -> Comparing:
    estimator = make(ESTIMATORS[name], options, f"option of estimator {name}")
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
    assert made("hgpo", compare="verl-agent").compare == Comparison("std", "step", 0, 1e-6, "raw")
    assert made("opo", compare="verl-agent").compare == replace(CENTRED, singleton="raw"), "its samples are episodes"


@given(step_tables())
def test_gigpo_compares_steps_as_episodes_unless_it_is_told_otherwise(steps: StepTable) -> None:
    one, both = GiGPO(compare=CENTRED), GiGPO(compare=CENTRED, compare_step=CENTRED)
    assert_array_equal(one(steps).per_step, both(steps).per_step)


def test_a_checkpoint_keeps_how_a_calibrated_method_compares() -> None:
    calibrated = BiPACE(radius=0.2, compare=Comparison.named("verl-agent"))
    state = json.loads(json.dumps(Crediting(Method(calibrated, {}, {}), Accelerator(cpu=True)).state()))
    resumed = Crediting(Method(BiPACE(radius=None), {}, {}), Accelerator(cpu=True))
    resumed.load(state)
    assert resumed.estimator == calibrated
