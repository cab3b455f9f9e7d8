"""Methods that read a critic's values, or signals of the policy: entropies and log-probabilities in hindsight."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from step_tables import step_tables, table_of, with_one_token_a_step

from trainers.credit.estimators.comparison import StateComparison
from trainers.credit.estimators.empg import EMPG
from trainers.credit.estimators.grpo import GRPO
from trainers.credit.estimators.hcapo import HCAPO
from trainers.credit.estimators.hiper import HiPER
from trainers.credit.estimators.ppo import PPO
from trainers.credit.estimators.reinforce_pp import ReinforcePP
from trainers.credit.estimators.returns import discounted_returns
from trainers.credit.estimators.steppo import StepPO
from trainers.credit.estimators.vetta import VETTA
from trainers.steps import StepTable
from trainers.steps.columns import ENTROPY, HINDSIGHT, SUCCESS

fractions = st.sampled_from([0.0, 0.5, 0.95, 1.0])


@given(step_tables(), fractions, fractions)
def test_steppo_is_the_discounted_sum_of_temporal_differences(steps, gamma, lam):
    differences, value = StepPO(gamma=gamma, lam=0.0)(steps).per_step, steps.extra["value"]
    for row in range(len(steps)):
        after = np.flatnonzero((steps.episode_id == steps.episode_id[row]) & (steps.t == steps.t[row] + 1))
        following = value[after[0]] if len(after) else 0.0
        assert differences[row] == pytest.approx(steps.reward[row] + gamma * following - value[row], abs=1e-9)
    summed = discounted_returns(steps.with_reward(differences), gamma * lam)
    assert_allclose(StepPO(gamma=gamma, lam=lam)(steps).per_step, summed, atol=1e-9)


@given(step_tables(), fractions)
def test_values_that_are_the_returns_leave_no_advantage_whatever_lambda(steps, lam):
    known = steps.with_columns(value=discounted_returns(steps, 0.9))
    result = StepPO(gamma=0.9, lam=lam)(known)
    assert_allclose(result.per_step, 0.0, atol=1e-9)
    if np.std(known.extra["value"]) > 1e-3:
        assert result.diagnostics["explained_variance"] == pytest.approx(1.0)


@given(step_tables(), fractions, fractions)
def test_ppo_on_steps_of_one_token_is_steppo(steps, gamma, lam):
    steps = with_one_token_a_step(steps)
    assert_allclose(PPO(gamma=gamma, lam=lam)(steps).per_token, StepPO(gamma=gamma, lam=lam)(steps).per_step, atol=1e-9)


@given(step_tables(), fractions, fractions)
def test_with_bootstrap_an_episode_that_was_cut_off_goes_on_with_its_last_value(steps, gamma, lam):
    value, last = steps.extra["value"], np.zeros(len(steps), np.bool_)
    for episode in np.unique(steps.episode_id):
        rows = np.flatnonzero(steps.episode_id == episode)
        last[rows[steps.t[rows].argmax()]] = True
    # The same as if the last step had earned what comes after, discounted.
    paid = steps.with_reward(steps.reward + gamma * value * (last & steps.extra["truncated"]))
    by_step, settings = StepPO(gamma=gamma, lam=lam), {"gamma": gamma, "lam": lam, "bootstrap": True}
    assert_allclose(StepPO(**settings)(steps).per_step, by_step(paid).per_step, atol=1e-9)
    assert_allclose(
        StepPO(**settings).returns(steps)[0], by_step(paid).per_step + value, atol=1e-9, err_msg="the critic's target"
    )
    tokens, alike = with_one_token_a_step(steps), {**settings, "gamma_token": gamma, "lam_token": lam}
    assert_allclose(PPO(**settings)(tokens).per_token, by_step(paid).per_step, atol=1e-9)
    assert_allclose(VETTA(**alike)(tokens).per_token, by_step(paid).per_step, atol=1e-9)
    for method in (StepPO(**settings), PPO(**settings), VETTA(**alike)):
        assert "truncated" in method.needs


@given(step_tables(), fractions, st.sampled_from(["episode", "step"]))
def test_ppo_with_values_zero_and_lambda_one_is_reinforce_pp(steps, gamma, scope):
    steps = steps.with_token_columns(value=np.zeros(len(steps.response.values)))
    assert_allclose(
        PPO(gamma=gamma, lam=1.0, scope=scope, whiten=True)(steps).per_token,
        ReinforcePP(gamma=gamma, scope=scope)(steps).per_token,
        atol=1e-8,
    )


@given(step_tables())
def test_with_scope_step_no_value_crosses_from_one_step_to_the_next(steps):
    before = PPO(scope="step").raw(steps)
    for a, b in _spans(steps):
        changed = steps.token_extra["value"].values.copy()
        changed[:a] += 1.0
        changed[b:] += 1.0
        moved = PPO(scope="step").raw(steps.with_token_columns(value=changed))
        assert_allclose(moved[a:b], before[a:b], atol=1e-9)


def _spans(steps: StepTable) -> list[tuple[int, int]]:
    return list(itertools.pairwise(steps.response.offsets.tolist()))


@given(step_tables(), fractions, fractions)
def test_vetta_without_its_token_term_is_steppo(steps, gamma, lam):
    turn = StepPO(gamma=gamma, lam=lam)
    assert_array_equal(VETTA(gamma, lam, alpha=0.0)(steps).per_token, turn(steps).tokens(steps))
    assert_array_equal(VETTA(gamma, lam).returns(steps)[0], turn.returns(steps)[0])
    assert_array_equal(VETTA(gamma, lam).levels(steps)[1], PPO(1.0, 1.0).raw(steps))
    assert_array_equal(VETTA(gamma, lam).returns(steps)[1], PPO(1.0, 1.0).returns(steps)[0])


@given(step_tables(), st.sampled_from([0.5, 1.0, 3.0]))
def test_the_token_term_of_vetta_is_centred_in_each_turn_and_knows_no_reward(steps, alpha):
    found = VETTA(alpha=alpha)(steps)
    token, value = found.terms["token"], steps.token_extra["value"].values
    for a, b in _spans(steps):
        assert_allclose(token[a:b], alpha * (value[a:b].mean() - value[a:b] if b > a else 0.0), atol=1e-9)
        if b == a + 1:
            assert token[a] == 0.0
    assert_array_equal(found.terms["turn"] + token, found.per_token)


def _unplanned(steps: StepTable) -> StepTable:
    """The steps as episodes of one segment, without blocks."""
    never = np.zeros(len(steps), np.bool_)
    return steps.with_columns(segment=steps.t == 0, switch=never).with_token_columns(
        block=np.zeros(len(steps.response.values), np.int8)
    )


@given(step_tables(), fractions, fractions)
def test_hiper_with_one_segment_is_steppo(steps, gamma, lam):
    steps = _unplanned(steps)
    found = HiPER(gamma, lam, normalise=False)(steps)
    turns = StepPO(gamma, lam)(steps.with_columns(value=steps.extra["value_low"]))
    assert_allclose(found.per_token, turns.tokens(steps), atol=1e-9)
    high = HiPER(gamma, lam).segments(steps).high[steps.t == 0]
    returns = StepPO(gamma, 1.0)(steps.with_columns(value=steps.extra["value_high"])).per_step[steps.t == 0]
    assert_allclose(high, returns, atol=1e-9)


@given(step_tables(), fractions, fractions)
def test_hiper_with_a_switch_at_every_turn_is_steppo_of_the_high_value(steps, gamma, lam):
    steps = steps.with_columns(segment=np.ones(len(steps), np.bool_))
    found = HiPER(gamma, 0.3, lam).segments(steps)
    turns = StepPO(gamma, lam)(steps.with_columns(value=steps.extra["value_high"]))
    assert_allclose(found.high, turns.per_step, atol=1e-9)
    one_step = StepPO(gamma, 0.0)(steps.with_columns(value=steps.extra["value_high"])).per_step
    assert_allclose(found.low, one_step + steps.extra["value_high"] - steps.extra["value_low"], atol=1e-9)


@given(step_tables(), st.sampled_from(["paper", "hiper_code", "none"]), st.booleans())
def test_each_term_of_hiper_is_in_its_own_blocks(steps, switch, normalise):
    found, block = HiPER(switch=switch, normalise=normalise)(steps), steps.token_extra["block"].values
    assert_array_equal(sum(found.terms.values()), found.per_token)
    assert not found.terms["switch"][block != 1].any() and not found.terms["high"][block != 2].any()
    assert not found.terms["high"][~steps.extra["segment"][steps.response.row_of]].any()
    acts = np.isin(steps.response.row_of, steps.response.row_of[block == 3])
    assert not found.terms["low"][acts & (block != 3)].any()
    if switch == "none":
        assert not found.terms["switch"].any()


def test_hiper_charges_for_kept_and_reworded_subgoals_where_it_is_asked_to():
    rows = [(0, 0, t, 0.0, "a", True) for t in range(4)]
    steps = table_of(rows, [2, 2, 3, 2]).with_columns(segment=np.array([True, False, False, True]))
    steps = steps.with_token_columns(block=np.array([2, 3, 2, 3, 2, 2, 3, 2, 3], np.int8))
    assert_allclose(HiPER(hiper_code_keep=0.3).reward(steps), [0, -0.3, -0.3, 0])
    assert_allclose(HiPER(hiper_code_keep_spread=3.5).reward(steps), [0, -0.875, -0.875, 0])
    assert_allclose(HiPER(hiper_code_changed=0.3).reward(steps), [0, 0, -0.3, 0])


def test_hiper_may_continue_an_episode_that_was_cut_off_with_its_own_values():
    steps = table_of([(0, 0, 0, 1.0, "a", True), (0, 0, 1, 1.0, "a", True)]).with_columns(
        segment=np.array([True, False]), truncated=np.ones(2, np.bool_),
        value_high=np.array([5.0, 7.0]), value_low=np.array([2.0, 3.0]),
    )  # fmt: skip
    zero, own = (HiPER(0.5, 0.5, 0.5, end=end).segments(steps) for end in ("zero", "hiper_code"))
    assert_allclose(zero.low, [1 + 1.5 - 2 - 0.25 * 2, -2.0])
    assert_allclose(own.low, [1 + 1.5 - 2 - 0.25 * 0.5, -0.5])
    assert_allclose([zero.high[0], own.high[0]], [1.5 - 5, 1.5 + 0.25 * 5 - 5])


# -- The methods that read signals of the policy


POPULATION = StateComparison(ddof=0, epsilon=0.0)


def with_signal(steps: StepTable, name: str, per_step: np.ndarray) -> StepTable:
    return steps.with_token_columns(**{name: np.repeat(np.asarray(per_step, np.float64), steps.response.lengths)})


def episodes(*wins: bool, length: int = 3) -> StepTable:
    """Episodes of one task, each of ``length`` steps, those that won paid 1 at the end."""
    rows = [
        (0, e, t, float(won and t == length - 1), f"s{t}", True) for e, won in enumerate(wins) for t in range(length)
    ]
    return table_of(rows).with_columns(**{SUCCESS: np.repeat(list(wins), length)})


@given(steps=step_tables())
def test_without_weights_and_bonus_empg_is_grpo_less_its_mean(steps):
    expected = GRPO()(steps).per_step
    found = EMPG(k=0.0, zeta=0.0)(steps).per_step
    assert_allclose(found, expected - expected.mean(), atol=1e-12)


@given(steps=step_tables(), k=st.sampled_from([0.5, 1.0, 3.0]), zeta=st.sampled_from([0.0, 0.1]))
def test_the_scale_has_mean_one_and_the_advantages_mean_zero(steps, k, zeta):
    method = EMPG(k=k, zeta=zeta)
    assert method.scale(steps).mean() == pytest.approx(1.0)
    found = method(steps)
    assert found.per_step.mean() == pytest.approx(0.0, abs=1e-9)


@given(steps=step_tables(), factor=st.sampled_from([0.3, 2.0]), shift=st.sampled_from([0.0, 5.0]))
def test_empg_reads_the_order_and_spacing_of_entropies_not_their_unit(steps, factor, shift):
    steps = steps.take(np.flatnonzero(steps.response.lengths > 0))
    other = steps.with_token_columns(**{ENTROPY: shift + factor * steps.token_extra[ENTROPY].values})
    assert_allclose(EMPG()(other).per_step, EMPG()(steps).per_step, atol=1e-5)


def test_empg_weighs_the_whole_update_and_not_a_part_of_it():
    steps = episodes(True, False, True, False)
    steps = with_signal(steps, ENTROPY, np.linspace(0.0, 1.0, 12))
    half = np.arange(6)
    whole, part = EMPG()(steps).per_step[half], EMPG()(steps.take(half)).per_step
    assert np.abs(whole - part).max() > 0.1


def test_a_certain_step_counts_more_and_one_that_leads_to_certainty_gets_the_bonus():
    steps = with_signal(episodes(True, False), ENTROPY, np.array([0.0, 2.0, 1.0, 1.0, 2.0, 0.0]))
    method = EMPG(zeta=0.5)
    scale, bonus = method.scale(steps), method.bonus(steps)
    assert_allclose(scale[0] / scale[[1, 2]], np.exp([1.0, 0.5]))
    assert_allclose(bonus, [0.5 * np.exp(-1.0), 0.5 * np.exp(-0.5), 0.0, 0.5 * np.exp(-1.0), 0.5, 0.0])
    told = method(steps).diagnostics
    assert told["scale_std"] == pytest.approx(scale.std()) and 0.0 < told["bonus_share"] < 1.0


def test_equal_entropies_leave_all_steps_alike():
    steps = with_signal(episodes(True, False), ENTROPY, np.full(6, 0.7))
    assert (EMPG().scale(steps) == 1.0).all() and not EMPG().uncertainty(steps).any()


@given(steps=step_tables())
def test_without_its_step_term_hcapo_is_grpo(steps):
    expected = GRPO(POPULATION)(steps).per_step
    assert_array_equal(HCAPO(weight=0.0)(steps).per_step, expected)


@given(steps=step_tables())
def test_no_step_of_a_success_is_blamed_in_hindsight(steps):
    found = HCAPO()(steps)
    assert (found.terms["hindsight"][steps.extra[SUCCESS]] >= 0.0).all()
    whole = HCAPO(harmless=False)
    value = whole.values(steps, whole.ratios(steps))
    assert_array_equal(whole(steps).terms["hindsight"], whole.step_term(steps, value))


@given(steps=step_tables(), shift=st.sampled_from([-2000.0, -10.0, 3.0]))
def test_the_ratio_asks_which_step_of_the_episode_was_likelier_and_not_how_likely(steps, shift):
    filled = steps.take(np.flatnonzero(steps.response.lengths > 0))
    moved = filled.with_token_columns(**{HINDSIGHT: filled.token_extra[HINDSIGHT].values + shift})
    assert_allclose(HCAPO().ratios(moved), HCAPO().ratios(filled), atol=1e-9)


@given(steps=step_tables())
def test_responses_that_are_equally_likely_leave_the_discounted_return(steps):
    flat = with_signal(steps, HINDSIGHT, np.zeros(len(steps)))
    method = HCAPO(gamma=1.0)
    ratio = method.ratios(flat)
    assert (ratio == 1.0).all()
    totals = {e: steps.reward[steps.episode_id == e].sum() for e in np.unique(steps.episode_id)}
    assert_allclose(method.values(flat, ratio), [totals[e] for e in steps.episode_id], atol=1e-12)


@given(steps=step_tables(), gamma=st.sampled_from([0.5, 0.95]))
def test_smoothing_mixes_with_the_next_step_and_leaves_the_last(steps, gamma):
    plain, smooth = HCAPO(gamma=gamma), HCAPO(gamma=gamma, alpha=0.3)
    ratio = plain.ratios(steps)
    before, after = plain.values(steps, ratio), smooth.values(steps, ratio)
    at = {(e, t): row for row, (e, t) in enumerate(zip(steps.episode_id, steps.t, strict=True))}
    for (e, t), row in at.items():
        following = at.get((e, t + 1), row)
        assert after[row] == pytest.approx(0.3 * before[row] + 0.7 * before[following], abs=1e-9)


def test_at_the_same_time_fewer_steps_are_compared():
    steps = with_signal(episodes(True, False), HINDSIGHT, np.array([-1.0, -9.0, -1.0, 0.0, 0.0, 0.0]))
    term = HCAPO(over="time", harmless=False)(steps).terms["hindsight"]
    assert_allclose(term, [1.0, 1.0, 1.0, -1.0, -1.0, -1.0])
    assert np.ptp(HCAPO(harmless=False)(steps).terms["hindsight"][:3]) > 0.1


def test_the_diagnostics_of_hcapo_are_those_of_successful_episodes():
    steps = with_signal(episodes(True, False), HINDSIGHT, np.array([-1.0, -4.0, -2.5, 0.0, 0.0, 0.0]))
    told = HCAPO()(steps).diagnostics
    ratio = HCAPO().ratios(steps)[:3]
    assert told["ratio_mean"] == pytest.approx(ratio.mean()) and told["ratio_std"] == pytest.approx(ratio.std())
    assert told["hindsight_logprob"] == -2.5 and told["response_length"] == 2.0
    assert told["ratio_clipped"] == pytest.approx(2 / 3)
