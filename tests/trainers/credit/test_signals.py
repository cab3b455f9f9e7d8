"""The methods that read signals of the policy: entropies (EMPG), and log-probabilities in hindsight (HCAPO)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from step_tables import step_tables, table_of

from trainers.credit.estimators.comparison import Comparison
from trainers.credit.estimators.empg import EMPG
from trainers.credit.estimators.grpo import GRPO
from trainers.credit.estimators.hcapo import HCAPO
from trainers.credit.estimators.tokens import token_means
from trainers.steps import StepTable
from trainers.steps.columns import ENTROPY, HINDSIGHT, SUCCESS

POPULATION = Comparison(ddof=0, epsilon=0.0)


def with_signal(steps: StepTable, name: str, per_step: np.ndarray) -> StepTable:
    return steps.with_token_columns(**{name: np.repeat(np.asarray(per_step, np.float64), steps.response.lengths)})


def episodes(*wins: bool, length: int = 3) -> StepTable:
    """Episodes of one task, each of ``length`` steps, those that won paid 1 at the end."""
    rows = [
        (0, e, t, float(won and t == length - 1), f"s{t}", True) for e, won in enumerate(wins) for t in range(length)
    ]
    return table_of(rows).with_columns(**{SUCCESS: np.repeat(list(wins), length)})


@given(steps=step_tables())
def test_without_weights_and_bonus_empg_is_grpo_less_its_mean(steps: StepTable):
    expected = GRPO()(steps).per_step
    found = EMPG(k=0.0, zeta=0.0)(steps).per_step
    assert_allclose(found, expected - expected.mean(), atol=1e-12)


@given(steps=step_tables(), k=st.sampled_from([0.5, 1.0, 3.0]), zeta=st.sampled_from([0.0, 0.1]))
def test_the_scale_has_mean_one_and_the_advantages_mean_zero(steps: StepTable, k: float, zeta: float):
    method = EMPG(k=k, zeta=zeta)
    assert method.scale(steps).mean() == pytest.approx(1.0)
    found = method(steps)
    assert found.per_step.mean() == pytest.approx(0.0, abs=1e-9)


@given(steps=step_tables(), factor=st.sampled_from([0.3, 2.0]), shift=st.sampled_from([0.0, 5.0]))
def test_empg_reads_the_order_and_spacing_of_entropies_not_their_unit(steps: StepTable, factor: float, shift: float):
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
def test_without_its_step_term_hcapo_is_grpo(steps: StepTable):
    expected = GRPO(POPULATION)(steps).per_step
    assert_array_equal(HCAPO(weight=0.0)(steps).per_step, expected)


@given(steps=step_tables())
def test_no_step_of_a_success_is_blamed_in_hindsight(steps: StepTable):
    found = HCAPO()(steps)
    assert (found.terms["hindsight"][steps.extra[SUCCESS]] >= 0.0).all()
    whole = HCAPO(harmless=False)
    value = whole.values(steps, whole.ratios(steps))
    assert_array_equal(whole(steps).terms["hindsight"], whole.step_term(steps, value))


@given(steps=step_tables(), shift=st.sampled_from([-2000.0, -10.0, 3.0]))
def test_the_ratio_asks_which_step_of_the_episode_was_likelier_and_not_how_likely(steps: StepTable, shift: float):
    filled = steps.take(np.flatnonzero(steps.response.lengths > 0))
    moved = filled.with_token_columns(**{HINDSIGHT: filled.token_extra[HINDSIGHT].values + shift})
    assert_allclose(HCAPO().ratios(moved), HCAPO().ratios(filled), atol=1e-9)


@given(steps=step_tables())
def test_responses_that_are_equally_likely_leave_the_discounted_return(steps: StepTable):
    flat = with_signal(steps, HINDSIGHT, np.zeros(len(steps)))
    method = HCAPO(gamma=1.0)
    ratio = method.ratios(flat)
    assert (ratio == 1.0).all()
    totals = {e: steps.reward[steps.episode_id == e].sum() for e in np.unique(steps.episode_id)}
    assert_allclose(method.values(flat, ratio), [totals[e] for e in steps.episode_id], atol=1e-12)


@given(steps=step_tables(), gamma=st.sampled_from([0.5, 0.95]))
def test_smoothing_mixes_with_the_next_step_and_leaves_the_last(steps: StepTable, gamma: float):
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


def test_means_are_those_of_each_steps_tokens():
    steps = table_of([(0, 1, 0, 0.0, "a", True), (0, 1, 1, 0.0, "a", True), (0, 1, 2, 0.0, "a", True)], [2, 0, 1])
    steps = steps.with_token_columns(**{ENTROPY: np.array([1.0, 2.0, 5.0])})
    assert token_means(steps, ENTROPY, "empg").tolist() == [1.5, 0.0, 5.0]
