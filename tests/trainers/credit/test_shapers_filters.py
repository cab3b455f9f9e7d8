from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from step_tables import table_of

from trainers.credit.filters import ZeroVariance
from trainers.credit.scpo import SCPO
from trainers.credit.shapers import InvalidActionPenalty, Scale
from trainers.steps import StepTable


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
def test_scale_multiplies_what_the_environment_pays_and_no_penalty(scaled_first: bool):
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
