"""Methods that compare episodes, and what all methods have in common."""

import logging
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from step_tables import for_each, step_tables, table_of, with_one_token_a_step

from benchmarks.estimators import cases, step_table
from trainers.credit import estimators
from trainers.credit.estimators import ESTIMATORS, Advantage
from trainers.credit.estimators.comparison import CENTRED, StateComparison
from trainers.credit.estimators.dr_grpo import DrGRPO
from trainers.credit.estimators.gigpo import GiGPO
from trainers.credit.estimators.gpg import GPG
from trainers.credit.estimators.groups import ROUNDING, group_codes, group_statistics, similar_codes
from trainers.credit.estimators.grpo import GRPO
from trainers.credit.estimators.opo import OPO
from trainers.credit.estimators.reinforce_pp import ReinforcePP
from trainers.credit.estimators.reinforce_pp_baseline import ReinforcePPBaseline
from trainers.credit.estimators.remax import ReMax
from trainers.credit.estimators.returns import discounted_returns, episode_returns
from trainers.credit.estimators.rloo import RLOO
from trainers.credit.estimators.steppo import StepPO
from trainers.credit.estimators.tokens import whiten
from trainers.credit.inertness import term_metrics
from trainers.credit.providers import GreedyReturn
from trainers.credit.rows import greedy_group
from trainers.steps import Ragged, StepTable
from trainers.steps.columns import GREEDY, GREEDY_RETURN, NEXT_STATE, ROW_SCORE

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
def test_permuting_the_rows_permutes_the_advantages(name, steps, seed):
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
def test_other_names_for_groups_episodes_and_states_change_nothing(name, steps):
    keys, ends = (np.array([None, *("state " + key * 3 for key in column)], object)[1:]
                  for column in (steps.state_key, steps.extra[NEXT_STATE]))  # fmt: skip
    renamed = replace(steps, group_id=-7 * steps.group_id, episode_id=1000 - steps.episode_id, state_key=keys)
    renamed = renamed.with_columns(**{NEXT_STATE: ends})
    estimator = ESTIMATORS[name]()
    assert_array_equal(token_advantage(estimator, renamed).values, token_advantage(estimator, steps).values)


@given(steps=step_tables(), constant=st.integers(-50, 50))
@for_each(name=[*TAKES_THE_GROUP_AS_BASELINE, *COMPARES_STEPS])
def test_adding_a_constant_to_every_return_of_a_group_changes_nothing(name, steps, constant):
    # Put on last steps: with gamma 1, every return to go of the group moves by it as well.
    last = np.array([t == steps.t[steps.episode_id == e].max() for e, t in zip(steps.episode_id, steps.t, strict=True)])
    moved = steps.with_reward(steps.reward + np.where(last & (steps.group_id == 5), float(constant), 0.0))
    estimator = ESTIMATORS[name](**NO_DISCOUNT.get(name, {}))
    assert_allclose(advantage(estimator, moved), advantage(estimator, steps), atol=1e-7)


@given(steps=step_tables())
@for_each(name=WITHOUT_CRITIC)
def test_equal_rewards_everywhere_give_exactly_nothing(name, steps):
    # Returns are equal within a group only where its episodes are equally long; one step each makes them so.
    one_step = steps.take(np.flatnonzero(steps.t == 0))
    same = one_step.with_reward(np.full(len(one_step), 0.1))
    assert (token_advantage(ESTIMATORS[name](), same).values == 0.0).all()


@given(steps=step_tables(max_episodes=1))
@for_each(name=TAKES_THE_GROUP_AS_BASELINE)
def test_an_episode_alone_in_its_group_gets_no_episode_advantage(name, steps):
    estimator = ESTIMATORS[name](**EPISODE_TERM_ALONE.get(name, {}))
    assert (advantage(estimator, steps) == 0.0).all()


@given(steps=step_tables(min_episodes=2))
@for_each(name=[name for name in TAKES_THE_GROUP_AS_BASELINE if name != "opo"])
def test_the_episode_term_has_mean_zero_over_the_episodes_of_a_group(name, steps):
    estimator = ESTIMATORS[name](**EPISODE_TERM_ALONE.get(name, {}))
    values, first = advantage(estimator, steps), steps.t == 0
    for group in np.unique(steps.group_id):
        assert values[first & (steps.group_id == group)].mean() == pytest.approx(0.0, abs=1e-9)


@given(step_tables(), st.sampled_from(["std", "mean"]), st.sampled_from(["episode", "step"]))
def test_gigpo_without_its_step_term_is_grpo(steps, normalise, weigh):
    assert_array_equal(
        advantage(GiGPO(step_weight=0.0, compare=StateComparison(normalise, weigh)), steps),
        advantage(GRPO(StateComparison(normalise, weigh)), steps),
    )


@given(step_tables())
def test_gigpo_where_no_state_is_met_twice_is_grpo(steps):
    keys = np.empty(len(steps), object)
    keys[:] = [f"state {row}" for row in range(len(steps))]
    lonely = replace(steps, state_key=keys)
    result = GiGPO()(lonely)
    assert_array_equal(result.per_step, advantage(GRPO(), lonely))
    assert result.diagnostics["step_group/singleton_rate"] == 1.0


@given(step_tables(min_episodes=2), st.sampled_from(["grpo", "gigpo"]))
def test_dividing_by_the_standard_deviation_makes_the_scale_of_rewards_irrelevant(steps, name):
    estimator = ESTIMATORS[name](compare=StateComparison(epsilon=0.0))
    assert_allclose(advantage(estimator, steps.with_reward(steps.reward * 4)), advantage(estimator, steps), atol=1e-7)


def test_weighing_by_step_lets_long_episodes_move_the_mean():
    steps = table_of([(0, 0, t, float(t == 2), "abc"[t], True) for t in range(3)] + [(0, 1, 0, 0.0, "a", True)])
    assert_allclose(advantage(DrGRPO(), steps), [0.5, 0.5, 0.5, -0.5])
    by_step = np.array([0.25, 0.25, 0.25, -0.75])
    assert_allclose(advantage(DrGRPO(StateComparison("mean", weigh="step")), steps), by_step)
    assert_allclose(advantage(RLOO(StateComparison("mean", weigh="step")), steps), by_step * 4 / 3)


def test_a_lone_episode_keeps_its_raw_return_where_asked_for():
    steps = table_of([(0, 0, 0, 10.0, "a", True)])
    assert advantage(GRPO(StateComparison.from_preset("verl")), steps) == pytest.approx(10 / (1 + 1e-6))
    for method in (DrGRPO, RLOO, OPO):
        assert advantage(method(StateComparison.from_preset("verl", normalise="mean")), steps) == pytest.approx(10)


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


# -- baselines


@given(step_tables(min_episodes=2))
def test_opo_subtracts_the_mean_of_its_group_weighted_by_response_tokens(steps):
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
def test_remax_to_go_is_remax_where_rewards_come_at_the_end_only(steps):
    steps = with_one_token_a_step(steps)
    last = np.array([t == steps.t[steps.episode_id == e].max() for e, t in zip(steps.episode_id, steps.t, strict=True)])
    late = steps.with_reward(np.where(last, steps.reward, 0.0))
    assert_allclose(ReMax("to_go")(late).tokens(late), ReMax()(late).tokens(late), atol=1e-9)


def test_remax_counts_the_episodes_that_beat_the_greedy_one():
    steps = table_of([(0, 0, 0, 1.0, "a", True), (0, 1, 0, 0.0, "a", True), (0, 1, 1, 0.0, "b", True)])
    assert ReMax()(steps).diagnostics == {"greedy_return": 0.0, "better_than_greedy": 0.5}


def test_tasks_whose_greedy_episode_failed_are_left_out_and_counted(caplog):
    greedy = table_of([(greedy_group(group), group, 0, 0.5 + group, "a", True) for group in (0, 1)])
    sampled = table_of([(group, 10 + group, 0, 0.0, "a", True) for group in (0, 1, 2, 3)])
    parts = [part.with_columns(**{GREEDY: np.full(len(part), part is greedy)}) for part in (greedy, sampled)]
    steps = StepTable.join(parts)
    with caplog.at_level(logging.WARNING):
        kept = GreedyReturn().columns(steps)
    assert kept.episode_id.tolist() == [10, 11]
    assert kept.extra[GREEDY_RETURN].tolist() == [0.5, 1.5]
    assert caplog.messages == ["2 tasks are left out: their greedy episode failed, or the agent had no turn in it"]


# -- gpg


@given(step_tables())
def test_gpg_is_the_centred_return_times_one_factor(table):
    estimator = GPG()
    advantage, centred = estimator(table).per_step, DrGRPO()(table).per_step
    assert_allclose(advantage, centred * estimator.alpha(table), rtol=1e-12)
    assert_array_equal(GPG(scale="none")(table).per_step, centred)


def test_the_factor_makes_up_for_groups_without_a_signal():
    rows = [(g, 2 * g + i, 0, value, "a", True) for g, pair in enumerate([(0, 1), (1, 1), (0, 0)]) for i, value in
            enumerate(pair)]  # fmt: skip
    table = table_of(rows)
    assert GPG()(table).per_step.tolist() == [-1.5, 1.5, 0, 0, 0, 0]
    assert GPG(scale="nonzero").alpha(table) == 2.0
    assert GPG().alpha(table_of(rows[2:])) == 1.0, "no signal at all"


# -- reinforce_pp


@given(step_tables(), st.sampled_from([0.0, 0.9, 1.0]))
def test_a_token_earns_what_comes_after_it_in_its_episode(steps, gamma):
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
def test_with_scope_step_every_step_earns_the_return_of_its_whole_episode(steps):
    returns = ReinforcePP(scope="step").returns(steps)
    assert_allclose(returns, np.repeat(episode_returns(steps), steps.response.lengths), atol=1e-9)


def test_a_token_column_of_rewards_is_added():
    steps = table_of([(0, 0, 0, 1.0, "a", True)]).with_token_columns(reward=np.array([0.25, -0.5]))
    assert_allclose(ReinforcePP().returns(steps), [0.75, 0.5])


@given(step_tables(min_episodes=2))
def test_whitened_values_have_mean_zero_and_deviation_one(steps):
    for method in (ReinforcePP(epsilon=0.0), StepPO(whiten=True, epsilon=0.0)):
        values = method(steps).whole
        if len(values) > 1 and values.any():
            assert values.mean() == pytest.approx(0.0, abs=1e-8)
            assert values.std(ddof=1) == pytest.approx(1.0)


def test_one_value_or_equal_values_whiten_to_nothing():
    assert whiten(np.array([3.0])).tolist() == [0.0]
    assert whiten(np.full(5, 0.1)).tolist() == [0.0] * 5
    assert whiten(np.array([])).tolist() == []


def test_whitening_by_token_lets_long_responses_weigh_more():
    steps = table_of([(0, 0, 0, 1.0, "a", True), (0, 1, 0, 0.0, "b", True)], [3, 1])
    by_token = ReinforcePPBaseline(whiten_by="token", epsilon=0.0)(steps).per_step
    assert_allclose(by_token, np.array([0.5 - 0.25, -0.5 - 0.25]) / 0.5)


# -- groups and returns


@given(step_tables(), st.sampled_from([0.0, 0.5, 0.95, 1.0]))
def test_return_to_go_is_the_discounted_sum_of_the_rewards_from_here_on(steps, gamma):
    returns = discounted_returns(steps, gamma)
    for row in range(len(steps)):
        later = [
            other
            for other in range(len(steps))
            if steps.episode_id[other] == steps.episode_id[row] and steps.t[other] >= steps.t[row]
        ]
        naive = sum(gamma ** int(steps.t[other] - steps.t[row]) * steps.reward[other] for other in later)
        assert returns[row] == pytest.approx(naive, abs=1e-9)


@given(step_tables())
def test_without_discount_the_return_of_the_first_step_is_the_return_of_the_episode(steps):
    first = steps.t == 0
    assert_allclose(discounted_returns(steps, 1.0)[first], episode_returns(steps)[first], atol=1e-12)


def test_steps_need_not_be_numbered_without_gaps():
    steps = table_of([(0, 0, 7, 1.0, "a", True), (0, 0, 2, 0.0, "a", True)])
    assert_allclose(discounted_returns(steps, 0.5), [1.0, 0.5])


def test_a_row_score_counts_for_its_own_row_only():
    steps = table_of([(0, 0, 0, 0.0, "a", True), (0, 0, 1, 1.0, "b", False)])
    steps = steps.with_columns(**{ROW_SCORE: np.array([0.0, -0.1])})
    assert_allclose(discounted_returns(steps, 0.5), [0.5, 0.9])
    assert_allclose(episode_returns(steps), [1.0, 0.9])


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-1000, 1000)), min_size=1), st.sampled_from([0, 1]))
def test_group_statistics_are_those_of_numpy_on_each_group(pairs, ddof):
    group = group_codes(np.array([pair[0] for pair in pairs]))
    values = np.array([pair[1] / 7 for pair in pairs])
    stats = group_statistics(values, group, ddof=ddof)
    for code in np.unique(group):
        members = values[group == code]
        std = members.std(ddof=ddof) if len(members) > 1 else 0.0
        assert_allclose(stats.mean[group == code], members.mean(), atol=1e-9)
        assert_allclose(stats.std[group == code], std, atol=1e-9)
        assert (stats.size[group == code] == len(members)).all()


@given(st.floats(-1e6, 1e6), st.integers(2, 40), st.sampled_from([0, 1]), st.sampled_from([0.0, 1e-6]))
def test_equal_values_are_worth_exactly_nothing(value, count, ddof, epsilon):
    values, group = np.full(count, value), np.zeros(count, np.int64)
    relative = StateComparison(ddof=ddof, epsilon=epsilon).within(values, group)
    assert (relative == 0.0).all()


def test_values_that_differ_by_rounding_alone_are_worth_exactly_nothing():
    values = np.array([0.1 + 0.2, 0.3])
    assert values[0] != values[1]
    relative = StateComparison(epsilon=0.0).within(values, np.zeros(2, np.int64))
    assert (relative == 0.0).all()
    within, beyond = np.array([0.0, ROUNDING]), np.array([0.0, 2 * ROUNDING])
    assert (group_statistics(within, np.zeros(2, np.int64)).std == 0.0).all()
    assert (group_statistics(beyond, np.zeros(2, np.int64)).std > 0.0).all()


def test_codes_are_equal_exactly_where_every_column_is():
    codes = group_codes(np.array([1, 1, 2, 1]), np.array(["a", "b", "a", "a"], object))
    assert codes.tolist() == [0, 1, 2, 0]


@given(st.lists(st.one_of(st.integers(-5, 5), st.integers(-(2**62), 2**62)), max_size=40))
def test_codes_are_numbered_in_the_order_of_first_appearance_however_far_apart_the_keys_are(keys):
    expected = [list(dict.fromkeys(keys)).index(key) for key in keys]
    assert group_codes(np.array(keys, np.int64)).tolist() == expected
    assert group_codes(np.array([str(key) for key in keys], object)).tolist() == expected


def test_similar_keys_join_the_first_cluster_whose_first_member_they_resemble():
    keys = np.array(["shelf 1 has a mug", "shelf 2 has a mug", "a drawer, closed", "shelf 1 has a mug"], object)
    assert similar_codes(np.zeros(4, np.int64), keys, 0.9).tolist() == [0, 0, 1, 0]
    assert similar_codes(np.array([0, 1, 0, 0]), keys, 0.9).tolist() == [0, 1, 2, 0]
    assert similar_codes(np.zeros(4, np.int64), keys, 1.0).tolist() == [0, 1, 2, 0]


# -- transcriptions in plain Python


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_a_method_and_its_plain_transcription_give_the_same(case):
    steps = step_table(800, seed=1, dimensions=16)
    assert_allclose(case.ours(steps), case.plain(steps), rtol=1e-6, atol=1e-6)


TRANSCRIBED = {case.name: case for case in cases()}
FILLED = {"opo", "ppo", "reinforce_pp", "bipace", "scpo (shaper)"}
"""Those whose transcription knows no response without tokens, no step without an action, or one success a task."""


@given(steps=step_tables())
@for_each(name=[name for name in TRANSCRIBED if name not in FILLED])
def test_they_give_the_same_on_any_table(name, steps):
    assert_allclose(TRANSCRIBED[name].ours(steps), TRANSCRIBED[name].plain(steps), rtol=1e-6, atol=1e-6)


def test_every_estimator_is_benchmarked():
    assert TRANSCRIBED.keys() >= set(ESTIMATORS)
