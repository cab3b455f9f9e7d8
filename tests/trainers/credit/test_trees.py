import numpy as np
import pytest
from hypothesis import given
from step_tables import step_tables, table_of

from benchmarks.plain_python import tree_grpo
from trainers.credit.estimators.comparison import Comparison
from trainers.credit.estimators.grpo import GRPO
from trainers.credit.estimators.oracle_mc import OracleMC
from trainers.credit.estimators.tree_grpo import TreeGRPO
from trainers.steps import StepTable
from trainers.steps.columns import MC_VALUE, NEXT_MC_VALUE, ROW_SCORE, TREE


def per_step(found):
    assert found.per_step is not None
    return found.per_step


@given(step_tables())
def test_tree_grpo_is_its_equations(steps: StepTable):
    found = TreeGRPO()(steps)
    assert per_step(found).tolist() == pytest.approx(tree_grpo(steps), abs=1e-6)
    assert np.array_equal(per_step(found), found.terms["inter"] + found.terms["intra"])


@given(step_tables())
def test_without_branches_tree_grpo_is_grpo(steps: StepTable):
    alone = steps.with_columns(**{TREE: steps.episode_id})
    grpo = per_step(GRPO()(steps))
    for combine in ("sum", "tree_2norm"):
        assert np.array_equal(per_step(TreeGRPO(combine)(alone)), grpo)
    assert (per_step(TreeGRPO("tree_inner")(alone)) == 0.0).all()


@given(step_tables())
def test_one_tree_per_task_compares_twice_within_the_task(steps: StepTable):
    one = steps.with_columns(**{TREE: np.zeros(len(steps), np.int64)})
    grpo = per_step(GRPO()(steps))
    assert np.array_equal(per_step(TreeGRPO()(one)), 2.0 * grpo)
    assert np.array_equal(per_step(TreeGRPO("tree_inner")(one)), grpo)


@given(step_tables())
def test_trees_are_those_of_a_task(steps: StepTable):
    own = steps.with_columns(**{TREE: steps.extra[TREE] + 100 * steps.group_id})
    for combine in ("sum", "tree_2norm", "tree_inner"):
        assert np.array_equal(per_step(TreeGRPO(combine)(steps)), per_step(TreeGRPO(combine)(own)))


def test_a_lone_leaf_adds_its_raw_return_only_where_that_is_asked_for():
    rows = [(0, 0, 0, 10.0, "a", True), (0, 1, 0, 0.0, "a", True), (0, 2, 0, 0.0, "a", True)]
    steps = table_of(rows).with_columns(**{TREE: np.array([0, 1, 1])})
    inter = per_step(GRPO()(steps))
    assert np.array_equal(per_step(TreeGRPO()(steps)), inter)
    assert np.array_equal(per_step(TreeGRPO("tree_2norm")(steps)), [inter[0], 0.0, 0.0])
    assert per_step(TreeGRPO(lone_leaf="raw")(steps))[0] == pytest.approx(inter[0] + 10.0, abs=1e-4)
    assert TreeGRPO(lone_leaf="raw").credits_lone_episodes and not TreeGRPO().credits_lone_episodes


def test_what_a_single_row_pays_is_compared_by_itself():
    rows = [(0, e, t, 1.0 * e, "a", True) for e in range(4) for t in range(2)]
    steps = table_of(rows).with_columns(**{TREE: np.repeat([0, 1], 4), ROW_SCORE: np.eye(1, 8)[0]})
    plain = per_step(TreeGRPO()(table_of(rows).with_columns(**{TREE: np.repeat([0, 1], 4)})))
    found = per_step(TreeGRPO(compare=Comparison(weigh="step"))(steps))
    assert found[0] > found[1] and plain[0] == plain[1]


@given(step_tables())
def test_the_oracle_is_the_reward_and_what_the_values_change_by(steps: StepTable):
    here, after = steps.extra[MC_VALUE], steps.extra[NEXT_MC_VALUE]
    found = per_step(OracleMC(0.9)(steps))
    assert found == pytest.approx(steps.reward + 0.9 * after - here, abs=1e-12)
    paid = steps.with_columns(**{ROW_SCORE: np.full(len(steps), -0.1)})
    assert per_step(OracleMC(0.9)(paid)) == pytest.approx(found - 0.1, abs=1e-12)
