import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from step_tables import step_tables, table_of

from envsuite.core.errors import UnknownName, UsageError
from trainers.credit.estimators.dr_grpo import DrGRPO
from trainers.credit.estimators.reinforce_pp import ReinforcePP
from trainers.credit.estimators.reinforce_pp_baseline import ReinforcePPBaseline
from trainers.credit.estimators.returns import episode_returns
from trainers.credit.estimators.tokens import token_sequences, whiten
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
def test_without_discount_every_token_of_a_first_step_earns_the_return_of_the_episode(steps: StepTable):
    first = steps.t == 0
    has_tokens = steps.response.lengths > 0
    returns = ReinforcePP().returns(steps)[steps.response.offsets[:-1][first & has_tokens]]
    np.testing.assert_allclose(returns, episode_returns(steps)[first & has_tokens], atol=1e-9)


@given(step_tables())
def test_with_scope_step_every_step_earns_the_return_of_its_whole_episode(steps: StepTable):
    returns = ReinforcePP(scope="step").returns(steps)
    np.testing.assert_allclose(returns, np.repeat(episode_returns(steps), steps.response.lengths), atol=1e-9)


def test_the_reward_of_a_step_without_tokens_goes_to_the_token_before_it():
    steps = table_of([(0, 0, 0, 0.0, "a", True), (0, 0, 1, 5.0, "b", True), (0, 0, 2, 1.0, "c", True)], [2, 0, 1])
    assert token_sequences(steps, "episode").reward.tolist() == [0.0, 5.0, 1.0]
    assert token_sequences(steps.take(np.array([1])), "episode").reward.tolist() == []


def test_a_token_column_of_rewards_is_added():
    steps = table_of([(0, 0, 0, 1.0, "a", True)]).with_token_columns(reward=np.array([0.25, -0.5]))
    np.testing.assert_allclose(ReinforcePP().returns(steps), [0.75, 0.5])


def test_a_reward_of_a_token_that_is_no_number_is_refused_with_its_step():
    steps = table_of([(0, 3, 2, 1.0, "a", True)]).with_token_columns(reward=np.array([0.0, np.inf]))
    with pytest.raises(UsageError, match=r"'reward' is inf in row 0 \(episode 3, step 2\)"):
        ReinforcePP()(steps)


def test_a_token_column_of_another_length_is_refused():
    with pytest.raises(UsageError, match="token column 'reward' must have one value for each response token"):
        table_of([(0, 3, 2, 1.0, "a", True)]).with_token_columns(reward=np.zeros(3))


@given(step_tables(min_episodes=2))
def test_whitened_values_have_mean_zero_and_deviation_one(steps: StepTable):
    values = ReinforcePP(epsilon=0.0)(steps).tokens(steps)
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
    np.testing.assert_allclose(values * scale, centred if scale > 1e-9 else 0.0 * centred, atol=1e-7)


def test_whitening_by_token_lets_long_responses_weigh_more():
    steps = table_of([(0, 0, 0, 1.0, "a", True), (0, 1, 0, 0.0, "b", True)], [3, 1])
    by_token = ReinforcePPBaseline(whiten_by="token", epsilon=0.0)(steps).per_step
    np.testing.assert_allclose(by_token, np.array([0.5 - 0.25, -0.5 - 0.25]) / 0.5)


def test_settings_that_mean_nothing_are_refused():
    with pytest.raises(UnknownName, match="ReinforcePP: unknown scope 'steps'"):
        ReinforcePP(scope="steps")
    with pytest.raises(UsageError, match=r"ReinforcePP: gamma is 2\.0"):
        ReinforcePP(gamma=2.0)
    with pytest.raises(UnknownName, match="whiten_by 'tokens'"):
        ReinforcePPBaseline(whiten_by="tokens")
