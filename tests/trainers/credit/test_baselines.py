import logging

import numpy as np
import pytest
from hypothesis import given
from numpy.testing import assert_allclose
from step_tables import step_tables, table_of, with_one_token_a_step

from trainers.credit.estimators.opo import OPO
from trainers.credit.estimators.remax import ReMax
from trainers.credit.estimators.returns import episode_returns
from trainers.credit.providers import GreedyReturn
from trainers.credit.rows import greedy_group
from trainers.steps import StepTable
from trainers.steps.columns import GREEDY, GREEDY_RETURN


@given(step_tables(min_episodes=2))
def test_opo_subtracts_the_mean_of_its_group_weighted_by_response_tokens(steps: StepTable):
    values, returns = OPO()(steps).per_step, episode_returns(steps)
    for row in range(len(steps)):
        group = steps.group_id == steps.group_id[row]
        tokens = steps.response.lengths[group]
        # Summing over rows weighs each episode by the tokens of all its rows; without a token, episodes are alike.
        weight = tokens if tokens.sum() else (steps.t == 0)[group]
        baseline = (weight * returns[group]).sum() / weight.sum()
        assert values[row] == pytest.approx(returns[row] - baseline, abs=1e-8)


def test_opo_lets_a_long_episode_move_the_baseline():
    steps = table_of([(0, 0, 0, 1.0, "a", True), (0, 1, 0, 0.0, "b", True)], [3, 1])
    result = OPO()(steps)
    assert_allclose(result.per_step, [0.25, -0.75])
    assert result.diagnostics["baseline_shift_abs"] == pytest.approx(0.25)


@given(step_tables())
def test_remax_is_the_return_minus_the_greedy_return(steps: StepTable):
    expected = episode_returns(steps) - steps.extra["greedy_return"]
    assert_allclose(ReMax()(steps).per_step, expected, atol=1e-12)


@given(step_tables())
def test_remax_to_go_is_remax_where_rewards_come_at_the_end_only(steps: StepTable):
    steps = with_one_token_a_step(steps)
    last = np.array([t == steps.t[steps.episode_id == e].max() for e, t in zip(steps.episode_id, steps.t, strict=True)])
    late = steps.with_reward(np.where(last, steps.reward, 0.0))
    assert_allclose(ReMax("to_go")(late).tokens(late), ReMax()(late).tokens(late), atol=1e-9)


def test_remax_counts_the_episodes_that_beat_the_greedy_one():
    steps = table_of([(0, 0, 0, 1.0, "a", True), (0, 1, 0, 0.0, "a", True), (0, 1, 1, 0.0, "b", True)])
    assert ReMax()(steps).diagnostics == {"greedy_return": 0.0, "better_than_greedy": 0.5}


def test_tasks_whose_greedy_episode_failed_are_left_out_and_counted(caplog: pytest.LogCaptureFixture):
    greedy = table_of([(greedy_group(group), group, 0, 0.5 + group, "a", True) for group in (0, 1)])
    sampled = table_of([(group, 10 + group, 0, 0.0, "a", True) for group in (0, 1, 2, 3)])
    parts = [part.with_columns(**{GREEDY: np.full(len(part), part is greedy)}) for part in (greedy, sampled)]
    steps = StepTable.joined(parts)
    with caplog.at_level(logging.WARNING):
        kept = GreedyReturn().columns(steps)
    assert kept.episode_id.tolist() == [10, 11]
    assert kept.extra[GREEDY_RETURN].tolist() == [0.5, 1.5]
    assert caplog.messages == ["2 tasks are left out: their greedy episode failed, or the agent had no turn in it"]
