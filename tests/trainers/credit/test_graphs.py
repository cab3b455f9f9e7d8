"""Methods that compare states of a graph, and episodes of a tree."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from step_tables import step_tables, table_of

from trainers.credit.estimators.beacon import BEACON
from trainers.credit.estimators.comparison import CENTRED, StateComparison
from trainers.credit.estimators.dr_grpo import DrGRPO
from trainers.credit.estimators.g2po import G2PO
from trainers.credit.estimators.gagpo import GAGPO
from trainers.credit.estimators.gigpo import GiGPO
from trainers.credit.estimators.graphgpo import GraphGPO
from trainers.credit.estimators.groups import group_codes
from trainers.credit.estimators.grpo import GRPO
from trainers.credit.estimators.oracle_mc import OracleMC
from trainers.credit.estimators.pgpo import PGPO
from trainers.credit.estimators.returns import discounted_returns, steps_in_order
from trainers.credit.estimators.rewardflow import RewardFlow
from trainers.credit.estimators.tree_grpo import TreeGRPO
from trainers.credit.graph import StateGraph
from trainers.steps import StepTable
from trainers.steps.columns import MILESTONE, NEXT_STATE, ROW_SCORE, SUCCESS, TREE

EXACT = StateComparison(epsilon=0.0)


def terminal(steps: StepTable) -> StepTable:
    """The steps with 10 for the last step of a successful episode and nothing else."""
    last = StateGraph.of(steps).last
    return steps.with_reward(np.where(last & steps.extra[SUCCESS], 10.0, 0.0))


def lone(steps: StepTable) -> StepTable:
    """The steps with a state of its own for each."""
    keys = np.array([f"{e} {t}" for e, t in zip(steps.episode_id, steps.t, strict=True)], object)
    ends = np.array([f"end {key}" for key in keys], object)
    return replace(steps, state_key=keys).with_columns(**{NEXT_STATE: ends})


@given(steps=step_tables(max_episodes=6))
def test_parts_are_the_strongly_connected_ones_of_scipy(steps):
    graph = StateGraph.of(steps, "success")
    count = len(graph.group)
    edges = coo_matrix((np.ones(len(steps)), (graph.node, graph.following)), shape=(count, count))
    _, other = connected_components(edges, connection="strong")
    pairs = {*zip(graph.component.tolist(), other.tolist(), strict=True)}
    assert len(pairs) == len({one for one, _ in pairs}) == len({one for _, one in pairs})
    alike = other[graph.node] == other[graph.following]
    assert_array_equal(graph.circling, alike)
    assert graph.diagnostics()["graph/cycle_rate"] == pytest.approx(alike.mean())


def test_long_rings_are_one_part_each():
    rows = [(0, e, t, 0.0, f"{e} {t % 50}", True) for e in range(20) for t in range(100)]
    graph = StateGraph.of(table_of(rows))
    sizes = np.bincount(graph.component)
    assert sorted(sizes.tolist()) == [1, *[50] * 20]
    assert (~graph.circling).sum() == 20, "the last step of each"


@given(steps=step_tables())
def test_nodes_are_the_states_of_a_group_and_edges_lead_to_the_next_one(steps):
    graph = StateGraph.of(steps, "success")
    same = group_codes(steps.group_id, steps.state_key)
    assert_array_equal(group_codes(graph.node), same)
    assert_array_equal(graph.visits[graph.node], np.bincount(same)[same])
    order, lengths = steps_in_order(steps)
    for own in np.split(order, np.cumsum(lengths)[:-1]):
        assert_array_equal(graph.following[own[:-1]], graph.node[own[1:]])
        assert graph.last[own].tolist() == [False] * (len(own) - 1) + [True]
        assert (graph.following[own[-1]] in graph.goal) == steps.extra[SUCCESS][own[-1]]
    assert (graph.group[graph.node] == graph.group[graph.following]).all()


@given(steps=step_tables())
def test_states_that_are_wholly_alike_are_equal(steps):
    exact, alike = StateGraph.of(steps, "success"), StateGraph.of(steps, "success", similarity=1.0)
    assert_array_equal(group_codes(exact.node), group_codes(alike.node))
    assert_array_equal(exact.distance[exact.following], alike.distance[alike.following])


@given(steps=step_tables())
def test_a_single_reward_at_success_spreads_as_a_power_of_the_distance(steps):
    steps = terminal(steps)
    graph = StateGraph.of(steps, "success")
    value = np.where(graph.reachable, 10.0 * 0.9**graph.distance, 0.0)
    earned = RewardFlow().value_gains(steps, graph)
    assert_allclose(earned, value[graph.following] - value[graph.node], atol=1e-12)


@given(steps=step_tables())
def test_without_their_step_term_they_are_grpo(steps):
    expected = GRPO()(steps).per_step
    assert_array_equal(GraphGPO(graph_weight=0.0)(steps).per_step, expected)
    assert_array_equal(G2PO(step_weight=0.0)(steps).per_step, expected)
    assert_array_equal(RewardFlow(step_weight=0.0)(steps).per_step, DrGRPO()(steps).per_step)


@given(steps=step_tables())
def test_where_no_episodes_meet_nothing_is_compared(steps):
    steps = lone(steps)
    assert_array_equal(GraphGPO()(steps).per_step, GRPO()(steps).per_step)
    assert_array_equal(RewardFlow()(steps).per_step, DrGRPO()(steps).per_step)
    assert not PGPO()(steps).per_step.any()


@given(steps=step_tables(), gamma=st.sampled_from([0.5, 0.9, 1.0]))
def test_potentials_without_weight_are_the_step_term_of_gigpo(steps, gamma):
    gigpo = GiGPO(gamma=gamma)
    term = gigpo.step_term(discounted_returns(steps, gamma), gigpo.step_groups(steps))
    assert_array_equal(PGPO(eta=gamma, beta=0.0)(steps).per_step, term)


@given(steps=step_tables(), gamma=st.sampled_from([0.5, 0.9, 1.0]))
def test_group_values_with_lambda_one_are_the_centred_step_term_of_gigpo(steps, gamma):
    gigpo = GiGPO(gamma=gamma, compare=CENTRED)
    term = gigpo.step_term(discounted_returns(steps, gamma), gigpo.step_groups(steps))
    assert_allclose(GAGPO(gamma=gamma, lam=1.0, over="none")(steps).per_step, term, atol=1e-9)


@given(steps=step_tables(), gamma=st.sampled_from([0.5, 0.95]))
def test_values_of_g2po_are_discounted_potentials_where_only_success_pays(steps, gamma):
    steps = terminal(steps)
    before, _ = G2PO(gamma=gamma).values(steps)
    potential, _ = PGPO(eta=gamma).potentials(steps)
    assert_allclose(before, gamma * potential, atol=1e-12)


@given(steps=step_tables(), omega=st.sampled_from([0.2, 0.5, 0.8]))
def test_all_exponents_agree_where_nothing_is_added_to_the_deviation(steps, omega):
    results = [
        GraphGPO(omega, exponent=exponent, compare=EXACT)(steps).per_step for exponent in ("change", "paper", "code")
    ]
    assert_allclose(results[1], results[0], atol=1e-6)
    assert_allclose(results[2], results[0], atol=1e-6)


def chain(length: int) -> StepTable:
    """One episode straight to success, and one that stays where it is for a step at every state."""
    rows = [(0, 1, t, 10.0 * (t == length - 1), f"s{t}", True) for t in range(length)]
    rows += [(0, 2, t, 10.0 * (t == 2 * length - 1), f"s{t // 2}", True) for t in range(2 * length)]
    return table_of(rows).with_columns(**{SUCCESS: np.ones(3 * length, np.bool_)})


def test_credit_does_not_fade_with_the_distance_to_success_unless_the_paper_is_asked_for():
    steps = chain(10)
    first = [row for row in range(len(steps)) if steps.state_key[row] == "s0"]
    spread = {
        exponent: np.ptp((GraphGPO(exponent=exponent)(steps).per_step - GRPO()(steps).per_step)[first])
        for exponent in ("change", "paper")
    }
    assert spread["change"] == pytest.approx(np.sqrt(3), rel=1e-5) and spread["paper"] < 0.01


def test_the_penalty_of_the_authors_code_turns_signs_and_is_off():
    steps = chain(6).with_columns(row_score=np.where(np.arange(18) == 0, -0.1, 0.0))
    at = [0, 6, 7]  # the first state: on, stays, on
    without = GraphGPO(episode_weight=0.0)(steps).per_step[at]
    turned = GraphGPO(episode_weight=0.0, exponent="code", penalise=True)(steps).per_step[at]
    assert without[0] == without[2] > 0 > without[1]
    assert turned[0] < 0 < turned[1]


def test_a_task_of_one_step_is_not_a_number_in_the_authors_code_alone():
    steps = table_of([(0, 1, 0, 1.0, "a", True), (1, 2, 0, 1.0, "a", True), (1, 3, 0, 0.0, "a", True)])
    assert np.isnan(G2PO(end_value="g2po_code")(steps).per_step).tolist() == [True, False, False]
    assert np.isfinite(G2PO()(steps).per_step).all()


@given(steps=step_tables())
def test_leaving_ones_own_visit_out_leaves_the_mean_of_the_others(steps):
    steps = terminal(steps)
    before, _ = PGPO(leave_one_out=True).potentials(steps)
    returns = discounted_returns(steps, 0.95)
    same = group_codes(steps.group_id, steps.state_key)
    for row in range(len(steps)):
        others = np.flatnonzero((same == same[row]) & (np.arange(len(steps)) != row))
        assert before[row] == pytest.approx(returns[others].mean() if len(others) else 0.0, abs=1e-9)


@given(steps=step_tables(), flags=st.integers(0, 2**32 - 1))
def test_milestones_cut_episodes_into_segments(steps, flags):
    reached = np.random.default_rng(flags).random(len(steps)) < 0.4
    steps, method = steps.with_columns(**{MILESTONE: reached}), BEACON(gamma=0.5)
    segment, earned = method.segments(steps), method.milestone_returns(steps)
    for row in range(len(steps)):
        own = [k for k in range(len(steps)) if steps.episode_id[k] == steps.episode_id[row]]
        assert segment[row] == sum(reached[k] for k in own if steps.t[k] < steps.t[row])
        ahead = [steps.t[k] - steps.t[row] for k in own if reached[k] and steps.t[k] >= steps.t[row]]
        assert earned[row] == (10.0 * 0.5 ** min(ahead) if ahead else 0.0)
    found = method(steps)
    assert_array_equal(found.per_step, found.terms["episode"] + found.terms["segment"])
    groups = group_codes(steps.group_id, segment)
    assert_allclose(np.bincount(groups, found.terms["segment"]), 0.0, atol=1e-9)


@given(steps=step_tables())
def test_without_milestones_beacon_is_dr_grpo(steps):
    expected = DrGRPO()(steps).per_step
    bare = steps.with_columns(**{MILESTONE: np.zeros(len(steps), np.bool_)})
    assert_array_equal(BEACON()(bare).per_step, expected)
    assert_array_equal(BEACON(segment_weight=0.0)(steps).per_step, expected)
    assert_array_equal(BEACON(segment_weight=0.0, compare=EXACT)(steps).per_step, GRPO(EXACT)(steps).per_step)


def test_the_penalty_of_beacons_code_is_in_the_segment_term_and_off():
    steps = table_of([(0, 1, 0, 0.0, "a", False), (0, 2, 0, 0.0, "a", True)])
    steps = steps.with_columns(**{MILESTONE: np.zeros(2, np.bool_), "row_score": np.array([-0.1, 0.0])})
    assert BEACON()(steps).terms["segment"].tolist() == [0.0, 0.0]
    assert_allclose(BEACON(penalise=True)(steps).terms["segment"], [-0.05, 0.05])


# -- trees


def per_step(found):
    assert found.per_step is not None
    return found.per_step


@given(step_tables())
def test_without_branches_tree_grpo_is_grpo(steps):
    alone = steps.with_columns(**{TREE: steps.episode_id})
    grpo = per_step(GRPO()(steps))
    for combine in ("sum", "tree_2norm"):
        assert np.array_equal(per_step(TreeGRPO(combine)(alone)), grpo)
    assert (per_step(TreeGRPO("tree_inner")(alone)) == 0.0).all()


@given(step_tables())
def test_one_tree_per_task_compares_twice_within_the_task(steps):
    one = steps.with_columns(**{TREE: np.zeros(len(steps), np.int64)})
    grpo = per_step(GRPO()(steps))
    assert np.array_equal(per_step(TreeGRPO()(one)), 2.0 * grpo)
    assert np.array_equal(per_step(TreeGRPO("tree_inner")(one)), grpo)


@given(step_tables())
def test_trees_are_those_of_a_task(steps):
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
    found = per_step(TreeGRPO(compare=StateComparison(weigh="step"))(steps))
    assert found[0] > found[1] and plain[0] == plain[1]


@given(step_tables())
def test_the_oracle_adds_what_a_single_row_pays(steps):
    found = per_step(OracleMC(0.9)(steps))
    paid = steps.with_columns(**{ROW_SCORE: np.full(len(steps), -0.1)})
    assert per_step(OracleMC(0.9)(paid)) == pytest.approx(found - 0.1, abs=1e-12)
