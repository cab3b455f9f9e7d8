"""SPEAR's reward, KL in the reward, other shapers, and filters."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from step_tables import table_of

from trainers.credit.estimators.groups import group_statistics
from trainers.credit.estimators.returns import episode_returns
from trainers.credit.filters import LowSpread, Overlong, VoidTurn, ZeroVariance
from trainers.credit.scpo import SCPO
from trainers.credit.shapers import InvalidActionPenalty, KLPenalty, Scale
from trainers.credit.spear import Spear
from trainers.credit.spear.schedules import cosine_fall, cosine_rise
from trainers.steps import StepTable

Row = tuple[int, int, int, float, bool, str | None]
"""group, episode, t, reward, valid, action."""


def steps_of(rows: Sequence[Row], iteration: int = 1, won: Sequence[int] = (), cut: Sequence[int] = ()) -> StepTable:
    """Step rows with responses of 1, 2, 3, 1, … tokens; ``won`` are episodes, ``cut`` are rows."""
    steps = table_of([(*row[:4], "s", row[4]) for row in rows], [1 + i % 3 for i in range(len(rows))])
    return steps.with_columns(
        action=np.array([*(row[5] for row in rows), None], object)[:-1],
        success=np.isin(steps.episode_id, won),
        cut=np.isin(np.arange(len(rows)), cut),
        iteration=np.full(len(rows), iteration, np.int64),
    )


THREE = [
    (0, 4, 1, 0.0, True, "b"), (0, 4, 0, 0.0, True, "a"), (0, 4, 2, 1.0, True, "c"),
    (0, 5, 0, 0.0, False, "x"), (0, 5, 1, 0.0, True, "a"),
    (1, 6, 0, 0.0, False, None), (1, 6, 1, 0.5, True, "a"),
]  # fmt: skip


def test_the_reward_is_outcome_plus_fading_tool_calls_plus_format_and_the_last_step_earns_it():
    shaped = Spear(decay=200)(steps_of(THREE, iteration=100, won=[4]))
    half = 0.5
    assert_allclose(
        shaped.reward, [0, 0, 1 + half * 0.3 + 0.1, 0, -1 + half * 0.1 + 0.1, 0, -1 + half * 0.1], rtol=1e-12
    )
    assert_allclose(shaped.extra["shape/mu"], half)
    assert shaped.extra["shape/tool_calls"].tolist() == [3, 3, 3, 1, 1, 1, 1]
    assert shaped.extra["shape/well_formed"].tolist() == [1, 1, 1, 1, 1, 0, 0]


def test_of_some_tools_alone_each_call_is_counted():
    run, both, last = (
        json.dumps([[name, {}] for name in names]) for names in (["python"], ["python", "python", "answer"], ["answer"])
    )
    rows = [
        (0, 4, 0, 0.0, True, run), (0, 4, 1, 0.0, True, both), (0, 4, 2, 0.0, True, last),
        (0, 5, 0, 0.0, False, run), (0, 5, 1, 0.0, True, last), (1, 6, 0, 0.0, False, None),
    ]  # fmt: skip
    shaped = Spear(tools=("python",))(steps_of(rows))
    assert shaped.extra["shape/tool_calls"].tolist() == [3, 3, 3, 0, 0, 0]
    every = Spear(tools=("python",), calls="all")(steps_of(rows))
    assert every.extra["shape/tool_calls"].tolist() == [3, 3, 3, 1, 1, 0]
    assert Spear()(steps_of(rows)).extra["shape/tool_calls"].tolist() == [3, 3, 3, 1, 1, 0]


def test_the_options_of_the_original_code_keep_the_environments_reward_and_count_every_step():
    shaped = Spear(outcome="environment", calls="all", format=0.0)(steps_of(THREE, iteration=0, won=[4]))
    assert_allclose(shaped.reward, [0, 0, 1.3, 0, 0.2, 0, 0.7])


@given(st.integers(0, 500), st.integers(0, 60), st.booleans(), st.booleans())
def test_intrinsic_reward_never_outweighs_the_outcome_and_fades_away(t, calls, formed, solved):
    added = float(Spear(decay=200).intrinsic(calls, formed, t))
    assert 0.0 <= added <= 1.1 + 1e-12
    if t >= 200:
        assert added == (0.1 if formed else 0.0)


@given(st.integers(1, 400), st.integers(0, 800))
def test_one_schedule_rises_as_the_other_falls(length, t):
    assert float(cosine_rise(t, length) + cosine_fall(t, length)) == pytest.approx(1.0)
    assert cosine_rise(t + 1, length) >= cosine_rise(t, length)
    assert t < length or (cosine_rise(t, length) == 1.0 and cosine_fall(t, length) == 0.0)
    assert cosine_rise(t, 0) == 1.0, "no warm-up is full weight at once"


@pytest.mark.parametrize("estimator", ["k1", "abs", "k2", "k3"])
def test_kl_in_the_reward_charges_a_step_the_sum_over_its_tokens(estimator):
    steps = steps_of(THREE)
    rng = np.random.default_rng(1)
    reference = rng.normal(-1.0, 0.5, len(steps.response.values))
    steps = steps.with_token_columns(ref_logprob=reference)
    d = steps.logprob.values.astype(float) - reference
    each = {"k1": d, "abs": abs(d), "k2": d * d / 2, "k3": np.exp(-d) - 1 + d}[estimator]
    shaped = KLPenalty(0.2, estimator)(steps)
    offsets = steps.response.offsets
    sums = [each[offsets[i] : offsets[i + 1]].sum() for i in range(len(steps))]
    assert_allclose(shaped.reward, steps.reward - 0.2 * np.array(sums))
    by_token = KLPenalty(0.2, estimator, per="token")(steps)
    assert_array_equal(by_token.reward, steps.reward)
    assert_allclose(by_token.token_extra["reward"].values, -0.2 * each)
    twice = KLPenalty(0.1, estimator, per="token")(by_token)
    assert_allclose(twice.token_extra["reward"].values, -0.3 * each)


def test_the_divergence_in_the_reward_is_that_of_the_trainers_log_probabilities_where_it_computes_them():
    steps = steps_of(THREE)
    own = np.random.default_rng(1).normal(-1.0, 0.5, len(steps.response.values))
    steps = steps.with_token_columns(ref_logprob=own, old_logprob=own)
    assert_array_equal(KLPenalty(3.0)(steps).reward, steps.reward)


def test_an_episode_with_a_cut_response_or_without_a_tool_call_is_left_out_whole():
    steps = steps_of(THREE, cut=[1])
    assert Overlong()(steps).tolist() == [False, False, False, True, True, True, True]
    assert VoidTurn()(steps).tolist() == [True, True, True, True, True, False, False]


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), min_size=1, max_size=9),
    st.sampled_from([0.0, 0.25, 0.5, 0.9]),
)
def test_the_groups_that_stay_differ_at_least_as_much_as_those_that_go(returns, fraction):
    rows = [(g, 10 * g + i, 0, float(r), True, "a") for g, group in enumerate(returns) for i, r in enumerate(group)]
    steps = steps_of(rows)
    keep = LowSpread(fraction)(steps)
    kept = set(steps.group_id[keep].tolist())
    assert len(kept) == max(1, int(round((1 - fraction) * len(returns), 9)))
    spread = group_statistics(episode_returns(steps), steps.group_id).std
    if not keep.all():
        assert spread[keep].min() >= spread[~keep].max()
    assert all(keep[steps.group_id == group].all() for group in kept), "groups go or stay whole"


def test_filters_and_shapers_take_a_table_without_rows():
    none = steps_of([]).with_token_columns(ref_logprob=np.zeros(0))
    for part in (LowSpread(), Overlong(), VoidTurn()):
        assert part(none).shape == (0,)
    for shaper in (Spear(), KLPenalty()):
        assert len(shaper(none)) == 0


# -- shapers_filters


def four_rows() -> StepTable:
    rows = [(0, 0, 0, 0.1 + 0.2, "a", True), (0, 1, 0, 0.3, "b", False), (1, 2, 0, 0.0, "a", True)]
    return replace(table_of([*rows, (1, 3, 0, 1.0, "b", False)], [1] * 4), extra={})


def test_the_penalty_is_taken_from_invalid_steps_alone():
    shaped = InvalidActionPenalty(0.1)(four_rows())
    assert_allclose(shaped.reward, [0.3, 0.2, 0.0, 0.9])


def test_on_the_row_alone_the_reward_stays():
    steps = four_rows()
    shaped = InvalidActionPenalty(0.1, reach="row")(steps)
    assert_array_equal(shaped.reward, steps.reward)
    assert_allclose(shaped.extra["row_score"], [0.0, -0.1, 0.0, -0.1])
    twice = InvalidActionPenalty(0.2, reach="row")(shaped)
    assert_allclose(twice.extra["row_score"], [0.0, -0.3, 0.0, -0.3])


@pytest.mark.parametrize("scaled_first", [True, False])
def test_scale_multiplies_what_the_environment_pays_and_no_penalty(scaled_first):
    steps = four_rows().with_columns(env_reward=four_rows().reward)
    shapers = [Scale(10.0), InvalidActionPenalty(0.1)]
    for shaper in shapers if scaled_first else reversed(shapers):
        steps = shaper(steps)
    assert_allclose(steps.reward, [3.0, 2.9, 0.0, 9.9])


def test_a_purchase_worth_a_tenth_is_no_success_whatever_the_scale():
    """Graded rewards: 0.1 and 1.0 of WebShop; a threshold of 9 did nothing on rewards of at most 1."""
    steps = replace(four_rows(), group_id=np.zeros(4, np.int64), reward=np.array([0.1, 0.1, 0.5, 1.0]))
    texts = np.empty(4, object)
    texts[:] = ["search", "buy", "search", "search"]
    steps = steps.with_columns(env_reward=steps.reward, step_text=texts)
    for factor in (1.0, 10.0):
        credited = SCPO()(Scale(factor)(steps)).extra["step_score"]
        assert_allclose(credited, [0.5, 0.0, 0.5, 0.0])
    assert not SCPO(success_above=0.0)(steps).extra["step_score"].any(), "everything would be a success"


def test_a_table_without_invalid_steps_is_left_as_it_is():
    steps = replace(four_rows(), valid=np.ones(4, np.bool_))
    assert_array_equal(InvalidActionPenalty()(steps).reward, steps.reward)


def test_groups_without_variance_are_dropped_and_rounding_is_no_variance():
    assert ZeroVariance()(four_rows()).tolist() == [False, False, True, True]
