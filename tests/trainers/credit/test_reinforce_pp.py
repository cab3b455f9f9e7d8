import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from step_tables import step_tables, table_of

from trainers.credit.estimators.dr_grpo import DrGRPO
from trainers.credit.estimators.reinforce_pp import ReinforcePP
from trainers.credit.estimators.reinforce_pp_baseline import ReinforcePPBaseline
from trainers.credit.estimators.returns import episode_returns
from trainers.credit.estimators.steppo import StepPO
from trainers.credit.estimators.tokens import whiten
from trainers.steps import StepTable


@given(step_tables(), st.sampled_from([0.0, 0.9, 1.0]))
def test_a_token_earns_what_comes_after_it_in_its_episode(steps: StepTable, gamma: float):
    returns = ReinforcePP(gamma=gamma).returns(steps)
    offsets = steps.response.offsets
    for episode in np.unique(steps.episode_id):
        rows = np.flatnonzero(steps.episode_id == episode)
        rows = rows[np.argsort(steps.t[rows])]
        earned: list[float] = []
        place: list[int] = []
        for row in rows:
            tokens = range(offsets[row], offsets[row + 1])
            place += tokens
            earned += [0.0] * len(tokens)
            if earned:
                earned[-1] += steps.reward[row]
        for i, token in enumerate(place):
            expected = sum(gamma**j * reward for j, reward in enumerate(earned[i:]))
            assert returns[token] == pytest.approx(expected, abs=1e-9)


@given(step_tables())
def test_with_scope_step_every_step_earns_the_return_of_its_whole_episode(steps: StepTable):
    returns = ReinforcePP(scope="step").returns(steps)
    assert_allclose(returns, np.repeat(episode_returns(steps), steps.response.lengths), atol=1e-9)


def test_a_token_column_of_rewards_is_added():
    steps = table_of([(0, 0, 0, 1.0, "a", True)]).with_token_columns(reward=np.array([0.25, -0.5]))
    assert_allclose(ReinforcePP().returns(steps), [0.75, 0.5])


@given(step_tables(min_episodes=2))
def test_whitened_values_have_mean_zero_and_deviation_one(steps: StepTable):
    for method in (ReinforcePP(epsilon=0.0), StepPO(whiten=True, epsilon=0.0)):
        values = method(steps).whole
        if len(values) > 1 and values.any():
            assert values.mean() == pytest.approx(0.0, abs=1e-8)
            assert values.std(ddof=1) == pytest.approx(1.0)


def test_one_value_or_equal_values_whiten_to_nothing():
    assert whiten(np.array([3.0])).tolist() == [0.0]
    assert whiten(np.full(5, 0.1)).tolist() == [0.0] * 5
    assert whiten(np.array([])).tolist() == []


@given(step_tables(min_episodes=2))
def test_the_baseline_form_is_dr_grpo_scaled_by_the_batch(steps: StepTable):
    centred, first = DrGRPO()(steps).per_step, steps.t == 0
    scale = centred[first].std(ddof=1)
    values = ReinforcePPBaseline(epsilon=0.0)(steps).per_step
    assert_allclose(values * scale, centred if scale > 1e-9 else 0.0 * centred, atol=1e-7)


def test_whitening_by_token_lets_long_responses_weigh_more():
    steps = table_of([(0, 0, 0, 1.0, "a", True), (0, 1, 0, 0.0, "b", True)], [3, 1])
    by_token = ReinforcePPBaseline(whiten_by="token", epsilon=0.0)(steps).per_step
    assert_allclose(by_token, np.array([0.5 - 0.25, -0.5 - 0.25]) / 0.5)
