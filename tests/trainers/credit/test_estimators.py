import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from step_tables import for_each, step_tables, table_of

from trainers.credit import estimators
from trainers.credit.estimators import ESTIMATORS, Advantage
from trainers.credit.estimators.comparison import CENTRED, Comparison
from trainers.credit.estimators.dr_grpo import DrGRPO
from trainers.credit.estimators.gigpo import GiGPO
from trainers.credit.estimators.grpo import GRPO
from trainers.credit.estimators.opo import OPO
from trainers.credit.estimators.returns import discounted_returns, episode_returns
from trainers.credit.estimators.rloo import RLOO
from trainers.credit.inertness import term_metrics
from trainers.steps import Ragged, StepTable
from trainers.steps.columns import NEXT_STATE

TAKES_THE_GROUP_AS_BASELINE = "grpo dr_grpo rloo gigpo reinforce_pp_baseline opo dapo gspo gpg".split()
COMPARES_STEPS = ["hgpo", "bipace", "g2po", "gagpo"]
WITHOUT_CRITIC = [*TAKES_THE_GROUP_AS_BASELINE, *COMPARES_STEPS, "pgpo", "reinforce_pp"]
EPISODE_TERM_ALONE = {"gigpo": {"step_weight": 0.0}}
NO_DISCOUNT = {name: {"gamma": 1.0} for name in ("gigpo", *COMPARES_STEPS)}


def advantage(estimator: Callable[[StepTable], object], steps: StepTable) -> np.ndarray:
    result = estimator(steps).per_step
    assert result.shape == (len(steps),) and result.dtype == np.float64
    return result


def token_advantage(estimator: Callable[[StepTable], Advantage], steps: StepTable) -> Ragged:
    tokens = estimator(steps).tokens(steps)
    assert tokens.shape == (len(steps.response.values),) and tokens.dtype == np.float64
    return Ragged(tokens, steps.response.offsets)


def test_every_file_of_a_method_enters_its_name():
    files = Path(estimators.__file__).parent.glob("*.py")
    written = {name for file in files for name in re.findall(r'register\("(\w+)"\)', file.read_text("utf-8"))}
    assert set(ESTIMATORS) == written


@pytest.mark.seconds
@given(steps=step_tables(), seed=st.integers(0, 2**32 - 1))
@for_each(name=ESTIMATORS)
def test_permuting_the_rows_permutes_the_advantages(name: str, steps: StepTable, seed: int):
    order = np.random.default_rng(seed).permutation(len(steps))
    estimator = ESTIMATORS[name]()
    assert_allclose(
        token_advantage(estimator, steps.take(order)).values,
        token_advantage(estimator, steps).take(order).values,
        atol=1e-9,
        rtol=1e-9,
    )


@pytest.mark.seconds
@given(steps=step_tables())
@for_each(name=ESTIMATORS)
def test_other_names_for_groups_episodes_and_states_change_nothing(name: str, steps: StepTable):
    keys, ends = (np.array([None, *("state " + key * 3 for key in column)], object)[1:]
                  for column in (steps.state_key, steps.extra[NEXT_STATE]))  # fmt: skip
    renamed = replace(steps, group_id=-7 * steps.group_id, episode_id=1000 - steps.episode_id, state_key=keys)
    renamed = renamed.with_columns(**{NEXT_STATE: ends})
    estimator = ESTIMATORS[name]()
    assert_array_equal(token_advantage(estimator, renamed).values, token_advantage(estimator, steps).values)


@given(steps=step_tables(), constant=st.integers(-50, 50))
@for_each(name=[*TAKES_THE_GROUP_AS_BASELINE, *COMPARES_STEPS])
def test_adding_a_constant_to_every_return_of_a_group_changes_nothing(name: str, steps: StepTable, constant: int):
    # Put on last steps: with gamma 1, every return to go of the group moves by it as well.
    last = np.array([t == steps.t[steps.episode_id == e].max() for e, t in zip(steps.episode_id, steps.t, strict=True)])
    moved = steps.with_reward(steps.reward + np.where(last & (steps.group_id == 5), float(constant), 0.0))
    estimator = ESTIMATORS[name](**NO_DISCOUNT.get(name, {}))
    assert_allclose(advantage(estimator, moved), advantage(estimator, steps), atol=1e-7)


@given(steps=step_tables())
@for_each(name=WITHOUT_CRITIC)
def test_equal_rewards_everywhere_give_exactly_nothing(name: str, steps: StepTable):
    # Returns are equal within a group only where its episodes are equally long; one step each makes them so.
    one_step = steps.take(np.flatnonzero(steps.t == 0))
    same = one_step.with_reward(np.full(len(one_step), 0.1))
    assert (token_advantage(ESTIMATORS[name](), same).values == 0.0).all()


@given(steps=step_tables(max_episodes=1))
@for_each(name=TAKES_THE_GROUP_AS_BASELINE)
def test_an_episode_alone_in_its_group_gets_no_episode_advantage(name: str, steps: StepTable):
    estimator = ESTIMATORS[name](**EPISODE_TERM_ALONE.get(name, {}))
    assert (advantage(estimator, steps) == 0.0).all()


@given(steps=step_tables(min_episodes=2))
@for_each(name=[name for name in TAKES_THE_GROUP_AS_BASELINE if name != "opo"])
def test_the_episode_term_has_mean_zero_over_the_episodes_of_a_group(name: str, steps: StepTable):
    estimator = ESTIMATORS[name](**EPISODE_TERM_ALONE.get(name, {}))
    values, first = advantage(estimator, steps), steps.t == 0
    for group in np.unique(steps.group_id):
        assert values[first & (steps.group_id == group)].mean() == pytest.approx(0.0, abs=1e-9)


@given(step_tables(), st.sampled_from(["std", "mean"]), st.sampled_from(["episode", "step"]))
def test_gigpo_without_its_step_term_is_grpo(steps: StepTable, normalise: str, weigh: str):
    assert_array_equal(
        advantage(GiGPO(step_weight=0.0, compare=Comparison(normalise, weigh)), steps),
        advantage(GRPO(Comparison(normalise, weigh)), steps),
    )


@given(step_tables())
def test_gigpo_where_no_state_is_met_twice_is_grpo(steps: StepTable):
    keys = np.empty(len(steps), object)
    keys[:] = [f"state {row}" for row in range(len(steps))]
    lonely = replace(steps, state_key=keys)
    result = GiGPO()(lonely)
    assert_array_equal(result.per_step, advantage(GRPO(), lonely))
    assert result.diagnostics["step_group/singleton_rate"] == 1.0


@given(step_tables())
def test_gigpo_compares_the_steps_of_a_group_that_answer_the_same_state(steps: StepTable):
    estimator = GiGPO(gamma=0.9, compare_step=CENTRED)
    returns = discounted_returns(steps, 0.9)
    term = estimator.step_term(returns, estimator.step_groups(steps))
    for row in range(len(steps)):
        peers = (steps.group_id == steps.group_id[row]) & (steps.state_key == steps.state_key[row])
        assert term[row] == pytest.approx(returns[row] - returns[peers].mean(), abs=1e-8)


@given(step_tables(min_episodes=2))
def test_rloo_is_the_return_minus_the_mean_of_the_other_returns(steps: StepTable):
    values, returns = advantage(RLOO(), steps), episode_returns(steps)
    for row in range(len(steps)):
        others = (steps.group_id == steps.group_id[row]) & (steps.episode_id != steps.episode_id[row]) & (steps.t == 0)
        assert values[row] == pytest.approx(returns[row] - returns[others].mean(), abs=1e-8)


@given(step_tables(min_episodes=2), st.sampled_from(["grpo", "gigpo"]))
def test_dividing_by_the_standard_deviation_makes_the_scale_of_rewards_irrelevant(steps: StepTable, name: str):
    estimator = ESTIMATORS[name](compare=Comparison(epsilon=0.0))
    assert_allclose(advantage(estimator, steps.with_reward(steps.reward * 4)), advantage(estimator, steps), atol=1e-7)


def test_weighing_by_step_lets_long_episodes_move_the_mean():
    steps = table_of([(0, 0, t, float(t == 2), "abc"[t], True) for t in range(3)] + [(0, 1, 0, 0.0, "a", True)])
    assert_allclose(advantage(DrGRPO(), steps), [0.5, 0.5, 0.5, -0.5])
    by_step = np.array([0.25, 0.25, 0.25, -0.75])
    assert_allclose(advantage(DrGRPO(Comparison("mean", weigh="step")), steps), by_step)
    assert_allclose(advantage(RLOO(Comparison("mean", weigh="step")), steps), by_step * 4 / 3)


def test_a_lone_episode_keeps_its_raw_return_where_asked_for():
    steps = table_of([(0, 0, 0, 10.0, "a", True)])
    assert advantage(GRPO(Comparison.named("verl")), steps) == pytest.approx(10 / (1 + 1e-6))
    for method in (DrGRPO, RLOO, OPO):
        assert advantage(method(Comparison.named("verl", normalise="mean")), steps) == pytest.approx(10)


def test_gigpo_on_a_table_small_enough_to_work_out_by_hand():
    rows = [(0, 0, 0, 0.0, "start"), (0, 0, 1, 1.0, "shelf"), (0, 1, 0, 0.0, "start"), (0, 1, 1, 0.0, "drawer")]
    steps = table_of([(*row, True) for row in rows])
    # Returns to go 0.5, 1, 0, 0; "start" has mean 0.25; the other states were met once.
    result = GiGPO(gamma=0.5, compare=CENTRED)(steps)
    assert_allclose(result.per_step, [0.5 + 0.25, 0.5, -0.5 - 0.25, -0.5])
    assert result.diagnostics["step_group/singleton_rate"] == 0.5
    assert result.diagnostics["step_group/size_mean"] == pytest.approx(4 / 3)
    assert result.diagnostics["group/zero_variance_rate"] == 0.0
    assert term_metrics(steps, result) == pytest.approx({
        "episode/touched": 1.0, "episode/abs": 0.5, "episode/group_size": 2.0, "episode/singletons": 0.0,
        "step/touched": 0.5, "step/abs": 0.125, "step/group_size": 4 / 3, "step/singletons": 0.5,
    })  # fmt: skip
