from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from step_tables import step_tables, table_of

from trainers.credit.estimators.comparison import CENTRED, Comparison
from trainers.credit.estimators.gigpo import GiGPO
from trainers.credit.estimators.hgpo import HGPO
from trainers.credit.estimators.returns import discounted_returns
from trainers.steps import StepTable

normalisations = st.sampled_from(["std", "mean"])


def context(steps: StepTable, row: int, k: int) -> tuple[object, ...]:
    """C_k of Eq. 3: the task, the last k states of the episode and this one."""
    here = np.flatnonzero(
        (steps.group_id == steps.group_id[row])
        & (steps.episode_id == steps.episode_id[row])
        & (steps.t <= steps.t[row])
    )
    states = steps.state_key[here[np.argsort(steps.t[here])]].tolist()
    return (int(steps.group_id[row]), *states[-(k + 1) :])


@given(step_tables(), normalisations, st.sampled_from([0, 1]))
def test_with_depth_zero_it_is_the_step_term_of_gigpo(steps: StepTable, normalise: str, ddof: int):
    compare = Comparison(normalise, ddof=ddof)
    gigpo, values = GiGPO(compare=compare), HGPO(depth=0, compare=compare)(steps).per_step
    term = gigpo.step_term(discounted_returns(steps, gigpo.gamma), gigpo.step_groups(steps))
    assert_allclose(values, term, rtol=1e-14, atol=0.0)


@given(step_tables(), st.integers(0, 3))
def test_a_group_holds_the_steps_with_the_same_last_states(steps: StepTable, depth: int):
    groups, exists = HGPO(depth=depth).levels(steps)
    assert exists.all()
    for k in range(depth + 1):
        contexts = [context(steps, row, k) for row in range(len(steps))]
        for a in range(len(steps)):
            for b in range(len(steps)):
                assert (groups[k][a] == groups[k][b]) == (contexts[a] == contexts[b])


@given(step_tables(), st.integers(0, 3), st.sampled_from([0.0, 1.0, 2.0]), st.booleans())
def test_the_advantage_is_the_weighted_mean_over_its_groups(steps: StepTable, depth: int, alpha: float, omit: bool):
    returns = discounted_returns(steps, 0.9)
    values = HGPO(depth=depth, alpha=alpha, gamma=0.9, compare=CENTRED, omit_zero=omit)(steps).per_step
    contexts = [[context(steps, row, k) for row in range(len(steps))] for k in range(depth + 1)]
    for row in range(len(steps)):
        parts = []
        for k in range(depth + 1):
            peers = [other for other in range(len(steps)) if contexts[k][other] == contexts[k][row]]
            item = returns[row] - returns[peers].mean()
            if not omit or abs(item) > 1e-9:
                parts.append(((k + 1) ** alpha, item))
        expected = sum(w * a for w, a in parts) / sum(w for w, _ in parts) if parts else 0.0
        assert values[row] == pytest.approx(expected, abs=1e-8)


def items_of(estimator: HGPO, steps: StepTable) -> NDArray[np.float64]:
    return estimator.items(steps, discounted_returns(steps, estimator.gamma), *estimator.levels(steps))


def two_ways_to_the_shelf() -> StepTable:
    """Four episodes meet the state "shelf"; two come from "drawer", two from "desk"."""
    rows = []
    for episode, (before, reward) in enumerate([("drawer", 4.0), ("drawer", 0.0), ("desk", 1.0), ("desk", 1.0)]):
        rows += [(0, episode, 0, 0.0, before, True), (0, episode, 1, reward, "shelf", True)]
    return table_of(rows)


def test_a_table_small_enough_to_work_out_by_hand():
    result = HGPO(depth=1, gamma=0.0, compare=CENTRED)(two_ways_to_the_shelf())
    # At "shelf": returns 4, 0, 1, 1 with mean 1.5; after "drawer" 4, 0 with mean 2; after "desk" 1, 1: nothing.
    expected = [(1 * 2.5 + 2 * 2.0) / 3, (1 * -1.5 + 2 * -2.0) / 3, -0.5, -0.5]
    assert_allclose(result.per_step[1::2], expected)
    assert result.diagnostics["level_0/step_utilisation"] == 0.5
    assert result.diagnostics["level_1/step_utilisation"] == 0.25
    assert result.diagnostics["level_1/size_mean"] == 2.0


def test_skipping_short_histories_leaves_the_first_steps_their_own_state_only():
    steps = two_ways_to_the_shelf()
    _, exists = HGPO(depth=2, short_history="skip").levels(steps)
    assert exists.sum(axis=0).tolist() == [1, 2] * 4


def test_the_episode_term_is_one_more_item():
    steps = replace(two_ways_to_the_shelf(), state_key=np.array([f"state {row}" for row in range(8)], object))
    values = HGPO(depth=1, compare=CENTRED, episode_term=True)(steps).per_step
    assert_allclose(values[::2], [2.5, -1.5, -0.5, -0.5])


@pytest.mark.parametrize("offset", [0.0, 0.03, 0.1, 1.8])
def test_a_step_that_only_rounding_takes_off_the_mean_is_still_left_out(offset: float):
    steps = table_of([(0, episode, 0, offset + 0.01 * episode * 7, "a", True) for episode in (1, 2, 3)])
    assert (items_of(HGPO(), steps)[:, 1] == 0.0).all()
