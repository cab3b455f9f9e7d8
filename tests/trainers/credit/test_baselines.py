import logging
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from step_tables import step_tables, table_of

from envsuite.core.errors import UnknownName, UsageError
from trainers.credit.estimators import ESTIMATORS
from trainers.credit.estimators.comparison import Comparison
from trainers.credit.estimators.dr_grpo import DrGRPO
from trainers.credit.estimators.grpo import GRPO
from trainers.credit.estimators.opo import OPO
from trainers.credit.estimators.remax import ReMax
from trainers.credit.estimators.returns import episode_returns
from trainers.credit.providers import GreedyReturn
from trainers.credit.rows import greedy_group
from trainers.steps import Ragged, StepTable
from trainers.steps.columns import GREEDY, GREEDY_RETURN
from trainers.steps.table import MissingColumn


def with_one_token_a_step(steps: StepTable) -> StepTable:
    tokens = Ragged.of([[1]] * len(steps), np.int64)
    return replace(steps, response=tokens, logprob=tokens, token_extra={})


@given(step_tables(min_episodes=2))
def test_opo_subtracts_the_mean_of_its_group_weighted_by_response_tokens(steps: StepTable):
    values, returns = OPO()(steps).per_step, episode_returns(steps)
    for row in range(len(steps)):
        group = steps.group_id == steps.group_id[row]
        tokens = steps.response.lengths[group]
        if tokens.sum():
            # Summing over rows weighs each episode by the tokens of all its rows.
            baseline = (tokens * returns[group]).sum() / tokens.sum()
            assert values[row] == pytest.approx(returns[row] - baseline, abs=1e-8)


def test_opo_where_all_episodes_are_equally_long_is_dr_grpo():
    rows = [(0, e, t, float(e == 1 and t == 1), "s", True) for e in range(3) for t in range(2)]
    np.testing.assert_allclose(OPO()(table_of(rows)).per_step, DrGRPO()(table_of(rows)).per_step)


def test_opo_lets_a_long_episode_move_the_baseline():
    steps = table_of([(0, 0, 0, 1.0, "a", True), (0, 1, 0, 0.0, "b", True)], [3, 1])
    result = OPO()(steps)
    np.testing.assert_allclose(result.per_step, [0.25, -0.75])
    assert result.diagnostics["baseline_shift_abs"] == pytest.approx(0.25)


def test_opo_for_a_group_without_a_single_token_subtracts_the_plain_mean():
    steps = table_of([(0, 0, 0, 1.0, "a", True), (0, 1, 0, 0.0, "b", True)], [0, 0])
    np.testing.assert_allclose(OPO()(steps).per_step, [0.5, -0.5])


def test_opo_keeps_the_raw_return_of_a_lone_episode_where_asked_for():
    steps = table_of([(0, 0, 0, 3.0, "a", True)])
    assert OPO(Comparison.named("verl", normalise="mean"))(steps).per_step.tolist() == [3.0]
    assert OPO()(steps).per_step.tolist() == [0.0]


@given(step_tables())
def test_remax_is_the_return_minus_the_greedy_return(steps: StepTable):
    expected = episode_returns(steps) - steps.extra["greedy_return"]
    np.testing.assert_allclose(ReMax()(steps).per_step, expected, atol=1e-12)


@given(step_tables())
def test_remax_to_go_is_remax_where_rewards_come_at_the_end_only(steps: StepTable):
    steps = with_one_token_a_step(steps)
    last = np.array([t == steps.t[steps.episode_id == e].max() for e, t in zip(steps.episode_id, steps.t, strict=True)])
    late = steps.with_reward(np.where(last, steps.reward, 0.0))
    np.testing.assert_allclose(ReMax("to_go")(late).tokens(late), ReMax()(late).tokens(late), atol=1e-9)


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


def test_a_missing_column_is_named_with_the_method_and_what_supplies_it():
    steps = replace(table_of([(0, 0, 0, 1.0, "a", True)]), extra={})
    with pytest.raises(MissingColumn, match="remax needs the column 'greedy_return', which a greedy episode of each"):
        ReMax()(steps)


def test_a_column_with_a_value_that_is_no_number_is_named_with_the_first_such_step():
    steps = table_of([(0, 0, 0, 1.0, "a", True), (0, 7, 3, 0.0, "a", True)])
    with pytest.raises(UsageError, match=r"'greedy_return' is nan in row 1 \(episode 7, step 3\)"):
        ReMax()(steps.with_columns(greedy_return=np.array([0.0, np.nan])))


def test_remax_refuses_a_credit_that_is_none():
    with pytest.raises(UnknownName, match="ReMax: unknown credit 'togo'"):
        ReMax(credit="togo")


@pytest.mark.parametrize("name", ["dapo", "gspo"])
def test_dapo_and_gspo_have_the_advantage_of_grpo(name: str):
    assert ESTIMATORS[name] is GRPO
