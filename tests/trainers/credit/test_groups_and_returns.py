import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from step_tables import step_tables, table_of

from trainers.credit.estimators.comparison import StateComparison
from trainers.credit.estimators.groups import ROUNDING, group_codes, group_statistics, similar_codes
from trainers.credit.estimators.returns import discounted_returns, episode_returns
from trainers.steps import StepTable
from trainers.steps.columns import ROW_SCORE


@given(step_tables(), st.sampled_from([0.0, 0.5, 0.95, 1.0]))
def test_return_to_go_is_the_discounted_sum_of_the_rewards_from_here_on(steps: StepTable, gamma: float):
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
def test_without_discount_the_return_of_the_first_step_is_the_return_of_the_episode(steps: StepTable):
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
def test_group_statistics_are_those_of_numpy_on_each_group(pairs: list[tuple[int, int]], ddof: int):
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
def test_equal_values_are_worth_exactly_nothing(value: float, count: int, ddof: int, epsilon: float):
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
def test_codes_are_numbered_in_the_order_of_first_appearance_however_far_apart_the_keys_are(keys: list[int]):
    expected = [list(dict.fromkeys(keys)).index(key) for key in keys]
    assert group_codes(np.array(keys, np.int64)).tolist() == expected
    assert group_codes(np.array([str(key) for key in keys], object)).tolist() == expected


def test_similar_keys_join_the_first_cluster_whose_first_member_they_resemble():
    keys = np.array(["shelf 1 has a mug", "shelf 2 has a mug", "a drawer, closed", "shelf 1 has a mug"], object)
    assert similar_codes(np.zeros(4, np.int64), keys, 0.9).tolist() == [0, 0, 1, 0]
    assert similar_codes(np.array([0, 1, 0, 0]), keys, 0.9).tolist() == [0, 1, 2, 0]
    assert similar_codes(np.zeros(4, np.int64), keys, 1.0).tolist() == [0, 1, 2, 0]
