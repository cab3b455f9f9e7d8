"""Recorded cases of the methods that credit steps over state graphs, with the options that reproduce each original."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from benchmarks.golden_data import Json, step_table
from benchmarks.golden_dispatch import Case, Outcome, Rounding, computes_unit, handles
from benchmarks.golden_estimators import NORMALISE, penalised, quotient_rounding, trajectory_rounding
from envsuite.core import ToolCall
from envsuite.vector.milestones import ActionMilestones
from trainers.credit.estimators.beacon import BEACON
from trainers.credit.estimators.comparison import StateComparison
from trainers.credit.estimators.g2po import G2PO
from trainers.credit.estimators.gagpo import GAGPO
from trainers.credit.estimators.graphgpo import GraphGPO
from trainers.credit.estimators.groups import group_codes
from trainers.credit.estimators.grpo import GRPO
from trainers.credit.estimators.pgpo import PGPO
from trainers.credit.estimators.returns import discounted_returns
from trainers.credit.estimators.rewardflow import RewardFlow
from trainers.credit.graph import StateGraph
from trainers.steps import StepTable


def _settings(case: Case, **more: Any) -> StateComparison:
    """The comparison of verl-agent's family, by the parameters of the case."""
    normalise = case.one_of("mode", NORMALISE)
    return StateComparison.from_preset("verl-agent", normalise=normalise, epsilon=case.number("epsilon", 1e-6), **more)


def _paper(case: Case) -> StateComparison:
    """That of an independent reference; each has the deviation, those without a choice included."""
    case.one_of("norm_adv_by_std", {True: None, None: None})
    return StateComparison(ddof=int(case.take("ddof")), epsilon=case.number("epsilon"))


def _keys(steps: StepTable) -> np.ndarray[Any, Any]:
    return group_codes(steps.group_id, steps.state_key)


@handles("g2po", "g2po_values", "compute_group_aggregation_values")
def _(case: Case) -> Outcome:
    estimator = G2PO(gamma=case.number("gamma"), end_value="g2po_code")
    steps = step_table(case.data, row_order=True)
    before, after = estimator.values(steps)
    kind = np.where(~StateGraph.of(steps).last, "state", np.where(after == 10.0, "success", "failure"))
    return Outcome({"state_value_per_row": before, "next_kind_per_row": kind}, str(estimator))


@handles("g2po", "g2po", "compute_g2po_outcome_advantage")
def _(case: Case) -> Outcome:
    steps, shaper = penalised(case)
    case.one_of("node_penalty", {0.1: None})
    weight, gamma = case.number("step_advantage_w"), case.number("gamma")
    compare = _settings(case)
    estimator = G2PO(weight, gamma, "g2po_code", compare)
    episode, _ = compare.episodes(steps)
    advantage = estimator(steps).per_step
    assert advantage is not None
    before, after = estimator.values(steps)
    task, change = group_codes(steps.group_id), after - before
    of_episode = trajectory_rounding(GRPO(compare), steps)
    of_edge = quotient_rounding(compare, change, task, compare.within(change, task), terms=after)
    step = (advantage - episode) / weight
    of_step = Rounding(of_edge.bound, step)
    both = of_episode.plus(of_step, weight)
    values = {"episode_part_per_row": episode, "step_part_per_row": step, "advantage_per_row": advantage}
    rounding = {"episode_part_per_row": of_episode, "step_part_per_row": of_step, "advantage_per_row": both}
    return Outcome(values, f"{shaper} {estimator}", rounding)


@handles("paper2", "g2po_paper", "refs.g2po")
def _(case: Case) -> Outcome:
    steps = step_table(case.data)
    compare = _paper(case)
    estimator = G2PO(case.number("w"), case.number("gamma"), compare=compare)
    before, after = estimator.values(steps)
    values = {
        "state_value_per_row": before,
        "next_value_per_row": after,
        "node_part_per_row": compare.within(after, _keys(steps)),
        "edge_part_per_row": compare.within(after - before, group_codes(steps.group_id)),
        "episode_part_per_row": compare.episodes(steps)[0],
        "advantage_per_row": estimator(steps).per_step,
    }
    return Outcome(values, str(estimator))


@handles("graphgpo", "graphgpo_distances", "ComplexGraph.from_data + Calculate_all_shortest_path")
def _(case: Case) -> Outcome:
    return Outcome(_distances(StateGraph.of(step_table(case.data, row_order=True), "return")), "StateGraph('return')")


def _distances(graph: StateGraph) -> dict[str, Any]:
    return {
        "distance_of_state_per_row": graph.distance[graph.node],
        "distance_of_next_per_row": graph.distance[graph.following],
    }


@handles("graphgpo", "graphgpo", "compute_graph_path_returns + compute_graphgpo_outcome_advantage")
def _(case: Case) -> Outcome:
    steps, shaper = penalised(case)
    estimator = GraphGPO(
        omega=case.number("gamma"),
        graph_weight=case.number("step_advantage_w"),
        episode_weight=case.number("episode_advantage_w"),
        exponent=case.one_of("normalize_distance", {True: "change", False: "code"}),
        solved="return",
        penalise=True,
        compare=_settings(case),
    )
    rewards, compare = estimator.step_rewards(steps, estimator.graph(steps)), estimator.compare
    of_step = quotient_rounding(compare, rewards, _keys(steps), compare.within(rewards, _keys(steps)))
    of_episode = trajectory_rounding(GRPO(compare), steps)
    both = of_episode.times(estimator.episode_weight).plus(of_step, estimator.graph_weight)
    values = {"step_return_per_row": rewards, "advantage_per_row": estimator(steps).per_step}
    return Outcome(values, f"{shaper} {estimator}", {"advantage_per_row": both})


@handles("paper2", "graphgpo_paper", "refs.graphgpo")
def _(case: Case) -> Outcome:
    steps, compare = step_table(case.data), _paper(case)
    estimator = GraphGPO(
        omega=case.number("omega"), graph_weight=case.number("beta_graph"), episode_weight=case.number("beta_episode"),
        success_reward=case.number("success_reward"), exponent="paper", compare=compare,
    )  # fmt: skip
    graph = estimator.graph(steps)
    rewards = estimator.step_rewards(steps, graph)
    values = {
        **_distances(graph),
        "step_reward_per_row": rewards,
        "step_part_per_row": compare.within(rewards, _keys(steps)),
        "episode_part_per_row": compare.episodes(steps)[0],
        "advantage_per_row": estimator(steps).per_step,
    }
    return Outcome(values, str(estimator))


@handles("paper2", "pgpo", "refs.pgpo")
def _(case: Case) -> Outcome:
    steps, compare = step_table(case.data), _paper(case)
    estimator = PGPO(
        case.number("eta"), case.number("gamma"), case.number("alpha"), case.number("beta"), compare=compare
    )
    returns, difference = discounted_returns(steps, estimator.eta), estimator.differences(steps)
    values = {
        "step_return_per_row": returns,
        "potential_per_row": estimator.potentials(steps)[0],
        "potential_difference_per_row": difference,
        "step_part_per_row": compare.within(returns, _keys(steps)),
        "potential_part_per_row": compare.within(difference, _keys(steps)),
        "task_weight_per_row": estimator.weights(steps),
        "advantage_per_row": estimator(steps).per_step,
    }
    return Outcome(values, str(estimator))


@handles("paper2", "gagpo", "refs.gagpo")
def _(case: Case) -> Outcome:
    steps = step_table(case.data)
    compare, over = _paper(case), case.one_of("norm", {"task_group": "task", "none": "none"})
    estimator = GAGPO(case.number("gamma"), case.number("lam"), over, compare)
    values = {
        "state_value_per_row": estimator.values(steps),
        "raw_advantage_per_row": estimator.raw(steps),
        "advantage_per_row": estimator(steps).per_step,
    }
    return Outcome(values, str(estimator))


@handles("rewardflow", "rewardflow", "apply_rewardflow_propagation + compute_rewardflow_outcome_advantage")
def _(case: Case) -> Outcome:
    steps, shaper = penalised(case)
    compare = _settings(case)
    case.take("clean")  # without self-loops or with them: they shorten no path
    longest: Literal["end", "rewardflow_code"] = case.one_of(
        "longest_episode_has_end_state", {True: "end", False: "rewardflow_code"}
    )
    gamma, weight = case.number("gamma"), case.number("step_advantage_w")
    estimator = RewardFlow(gamma, weight, "first", longest, penalise=True, compare=compare)
    values = {
        "step_reward_per_row": estimator.value_gains(steps, StateGraph.of(steps, "success")),
        "advantage_per_row": estimator(steps).per_step,
    }
    return Outcome(values, f"{shaper} {estimator}")


@handles("beacon", "beacon", "compute_migpo_step_rewards + compute_migpo_advantage")
def _(case: Case) -> Outcome:
    steps, shaper = penalised(case)
    estimator = BEACON(
        case.number("step_advantage_w"), case.number("gamma"), case.number("milestone_reward"), True, _settings(case)
    )
    values = {"step_reward_per_row": estimator.milestone_returns(steps), "advantage_per_row": estimator(steps).per_step}
    return Outcome(values, f"{shaper} {estimator}")


@handles("paper2", "beacon_paper", "refs.beacon_paper")
def _(case: Case) -> Outcome:
    steps = step_table(case.data)
    case.one_of("norm_adv_by_std", {False: None})
    estimator = BEACON(case.number("lambda"), case.number("gamma"), case.number("milestone_reward"))
    advantage = estimator(steps)
    values = {
        "segment_per_row": estimator.segments(steps),
        "step_reward_per_row": estimator.milestone_returns(steps),
        "segment_part_per_row": advantage.terms["segment"] / estimator.segment_weight,
        "episode_part_per_row": advantage.terms["episode"],
        "advantage_per_row": advantage.per_step,
    }
    return Outcome(values, str(estimator))


@computes_unit("steps", "similarity_thresh")
def _merged_states(case: Json, _: list[Json]) -> Outcome:
    """Unit vectors of GraphGPO: which states are joined where their keys are alike."""
    rows = [
        {**row, "step_reward": row["episode_return"] * (row["next_observation"] == "success"), "is_action_valid": True}
        for row in case["steps"]
    ]
    steps = step_table({"schema": "golden-steps/2", "steps": rows}, row_order=True)
    graph = StateGraph.of(steps, "return", float(case["similarity_thresh"]))
    first: dict[int, str] = {}
    for row, (node, after) in enumerate(zip(graph.node.tolist(), graph.following.tolist(), strict=True)):
        first.setdefault(node, rows[row]["observation"])
        first.setdefault(after, rows[row]["next_observation"])
    values = {
        "canonical_of_state_per_row": [first[node] for node in graph.node.tolist()],
        **_distances(graph),
        "n_nodes": len(np.union1d(graph.node, graph.following)),
    }
    return Outcome(values, f"StateGraph('return', similarity={case['similarity_thresh']})")


@computes_unit("actions", "milestones", "threshold")
def _matched_milestones(case: Json, _: list[Json]) -> Outcome:
    """Unit vectors of BEACON: which actions count as milestones, and what the steps before them earn."""
    actions, wanted = (
        [(ToolCall("env_step", {"command": text}),) for text in case[key]] for key in ("actions", "milestones")
    )
    listed = ActionMilestones(wanted, float(case["threshold"]))
    reached = np.array([listed.count_reached(action, {"valid": True}) > 0 for action in actions], np.bool_)
    rows = [
        {
            "traj_id": "0", "group_id": "0", "step_index": t, "step_reward": 0.0, "observation": "",
            "is_action_valid": True, "milestone_achieved": bool(reached[t]),
        }
        for t in range(len(actions))
    ]  # fmt: skip
    steps = step_table({"schema": "golden-steps/2", "steps": rows})
    estimator = BEACON(gamma=float(case["gamma"]), milestone_reward=1.0)
    segment, places = estimator.segments(steps), np.flatnonzero(reached).tolist()
    values = {
        "match_indices": places + [-1] * (len(wanted) - len(places)),
        "rewards": estimator.milestone_returns(steps),
        "segment_ids": np.where(segment == len(wanted), -1, segment),
    }
    return Outcome(values, f"Listed(similarity={case['threshold']}) {estimator}")
