"""Recorded cases of GRPO, Dr.GRPO, RLOO, GiGPO and Tree-GRPO, with the options that reproduce each original."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from benchmarks.golden_data import Json, step_table, token_row_table
from benchmarks.golden_dispatch import Case, Outcome, Rounding, handles
from trainers.credit.estimators.base import Estimator
from trainers.credit.estimators.comparison import CENTRED, Normalise, StateComparison, Weigh
from trainers.credit.estimators.dr_grpo import DrGRPO
from trainers.credit.estimators.gigpo import GiGPO
from trainers.credit.estimators.groups import Floats, Ints, episode_codes, first_rows, group_codes, group_statistics
from trainers.credit.estimators.grpo import GRPO
from trainers.credit.estimators.returns import discounted_returns, episode_returns
from trainers.credit.estimators.rloo import RLOO
from trainers.credit.estimators.tree_grpo import TreeGRPO
from trainers.credit.shapers import InvalidActionPenalty
from trainers.steps import StepTable
from trainers.steps.columns import TREE


def quotient_rounding(
    compare: StateComparison,
    values: Floats,
    group: Ints,
    exact: Floats,
    samples: Ints | None = None,
    terms: Floats | None = None,
) -> Rounding:
    """What the original's float32 arithmetic can make, and here makes, of each row.

    With half a unit in the last place lost on each of r, the mean and the standard deviation, the quotient is off by
    a few u |r| (1 + |A|) / (std + epsilon). Where all values are equal it is d / (d sqrt(n / (n - 1)) + epsilon) < 1.

    Args:
        compare: Says whether there is a division, and by what.
        values: Shape (N,).
        group: Codes of shape (N,).
        exact: The quotient, shape (N,).
        samples: Rows that the statistics are taken over; all by default.
        terms: What the values are differences of, where their rounding is that of larger numbers.
    """
    epsilon = compare.epsilon if compare.normalise == "std" else None
    stats = group_statistics(values, group, ddof=1, samples=samples)
    largest = np.zeros(len(values))
    np.maximum.at(largest, group, np.abs(values if terms is None else terms))
    scale = np.ones(len(values)) if epsilon is None else stats.std + epsilon
    bound = 4 * 2.0**-24 * largest[group] * (1 + np.abs(exact)) / np.where(scale == 0, 1.0, scale)
    bound = np.where(stats.std == 0, np.minimum(bound, 1.0), bound)
    chosen = np.arange(len(values)) if samples is None else samples
    float32 = exact.copy()
    for code in np.unique(group[(bound > 1e-6) & (stats.size > 1)]):
        members = np.flatnonzero(group == code)
        sample = torch.tensor(values[chosen[group[chosen] == code]], dtype=torch.float32)
        centred = torch.tensor(values[members], dtype=torch.float32) - sample.mean()
        float32[members] = (centred if epsilon is None else centred / (sample.std() + epsilon)).double().numpy()
    return Rounding(bound, float32)


def _advantage(estimator: Estimator, steps: StepTable) -> Floats:
    advantage = estimator(steps).per_step
    assert advantage is not None
    return advantage


def trajectory_rounding(estimator: GRPO | RLOO, steps: StepTable) -> Rounding:
    """That of the returns of episodes."""
    first = first_rows(episode_codes(steps)) if estimator.compare.weigh == "episode" else None
    group, exact = group_codes(steps.group_id), _advantage(estimator, steps)
    return quotient_rounding(estimator.compare, episode_returns(steps), group, exact, first)


def _outcome_estimator(estimator: GRPO | RLOO, steps: StepTable, key: str, shaper: object = "") -> Outcome:
    options = f"{shaper} {estimator}".strip()
    return Outcome({key: _advantage(estimator, steps)}, options, {key: trajectory_rounding(estimator, steps)})


def _grpo(std: bool, preset: str, **settings: Any) -> GRPO:
    if std:
        return GRPO(StateComparison.from_preset(preset, **settings))
    settings = {name: value for name, value in settings.items() if name == "weigh"}
    return DrGRPO(StateComparison.from_preset(preset, **settings, normalise="mean", epsilon=CENTRED.epsilon))


WEIGH: dict[bool, Weigh] = {True: "step", False: "episode"}
NORMALISE: dict[str, Normalise] = {"mean_std_norm": "std", "mean_norm": "mean"}


def penalised(case: Case) -> tuple[StepTable, InvalidActionPenalty]:
    """verl-agent's rows: trajectories in row order, the penalty on the invalid row alone."""
    shaper = InvalidActionPenalty(case.number("invalid_action_penalty_coef", 0.0), reach="row")
    return shaper(step_table(case.data, row_order=True)), shaper


@handles("paper", "grpo_paper", "paper_ref.grpo_paper")
def _(case: Case) -> Outcome:
    std, ddof = case.flag("norm_adv_by_std"), case.one_of("ddof", {0: 0, 1: 1})
    estimator = _grpo(std, "paper", ddof=ddof, epsilon=case.number("epsilon"))
    return _outcome_estimator(estimator, step_table(case.data), "advantage_per_row")


@handles("paper", "rloo_paper", "paper_ref.rloo_paper")
def _(case: Case) -> Outcome:
    return _outcome_estimator(RLOO(), step_table(case.data), "advantage_per_row")


@handles("paper", "gigpo_paper", "paper_ref.gigpo_step_paper")
def _(case: Case) -> Outcome:
    normalise: Normalise = "std" if case.flag("norm_adv_by_std") else "mean"
    estimator = GiGPO(
        step_weight=case.number("w"),
        gamma=case.number("gamma"),
        compare=StateComparison(normalise, ddof=case.one_of("ddof", {0: 0, 1: 1}), epsilon=case.number("epsilon")),
    )
    return _gigpo(estimator, step_table(case.data))


def _gigpo(estimator: GiGPO, steps: StepTable, shaper: object = "") -> Outcome:
    group, returns = estimator.step_groups(steps), discounted_returns(steps, estimator.gamma)
    compare, weight = estimator.compare, estimator.step_weight
    (episode, _), step = compare.episodes(steps), estimator.step_term(returns, group)
    of_episode = trajectory_rounding(GRPO(compare), steps)
    of_step = quotient_rounding(compare, returns, group, step)
    values = {
        "advantage_per_row": _advantage(estimator, steps),
        "episode_part_per_row": episode,
        "step_part_per_row": step,
        "step_group_of_row": group,
        "step_return_per_row": returns,
    }
    both = of_episode.plus(of_step, weight)
    rounding = {"advantage_per_row": both, "episode_part_per_row": of_episode, "step_part_per_row": of_step}
    return Outcome(values, f"{shaper} {estimator}".strip(), rounding)


@handles("verl-agent", "gigpo", "core_gigpo.compute_gigpo_outcome_advantage")
def _(case: Case) -> Outcome:
    steps, shaper = penalised(case)
    similar, threshold = case.take("enable_similarity", False), case.take("similarity_thresh")
    normalise = case.one_of("mode", NORMALISE)
    weigh = case.one_of("compute_mean_std_cross_steps", WEIGH, True)

    def estimator(weigh: Weigh) -> GiGPO:
        compare = StateComparison.from_preset("verl-agent", normalise=normalise, weigh=weigh, epsilon=epsilon)
        return GiGPO(weight, gamma, compare, similarity=threshold if similar else None)

    weight, gamma = case.number("step_advantage_w"), case.number("gamma")
    epsilon = case.number("epsilon", 1e-6)
    outcome, by_episode = _gigpo(estimator(weigh), steps, shaper), _gigpo(estimator("episode"), steps)
    return Outcome(
        {**outcome.values, "episode_part_per_row_traj_stats": by_episode.values["episode_part_per_row"]},
        outcome.options,
        {**outcome.rounding, "episode_part_per_row_traj_stats": by_episode.rounding["episode_part_per_row"]},
    )


@handles("StepPO", "gigpo_traj", "compute_gigpo_outcome_advantage")
def _(case: Case) -> Outcome:
    normalise = case.one_of("mode", NORMALISE)
    weight, gamma = case.number("step_advantage_w"), case.number("gamma")
    epsilon = case.number("epsilon", 1e-6)
    estimator = GiGPO(weight, gamma, StateComparison.from_preset("steppo", normalise=normalise, epsilon=epsilon))
    return _gigpo(estimator, step_table(case.data))


@handles("StepPO", "grpo_traj", "compute_grpo_outcome_advantage")
def _(case: Case) -> Outcome:
    std = case.flag("norm_adv_by_std")
    estimator = _grpo(std, "steppo", epsilon=case.number("epsilon", 1e-6))
    return _outcome_estimator(estimator, step_table(case.data), "advantage_per_row")


@handles("StepPO", "rloo_traj", "compute_rloo_outcome_advantage")
def _(case: Case) -> Outcome:
    return _outcome_estimator(
        RLOO(StateComparison.from_preset("steppo", normalise="mean")), step_table(case.data), "advantage_per_row"
    )


@handles("verl-agent", "grpo_steprows grpo_traj", "core_algos.compute_grpo_outcome_advantage")
def _(case: Case) -> Outcome:
    steps, shaper = penalised(case)
    case.take("gamma")  # recorded with every case of this peer; outcome advantages do not discount
    std, epsilon = case.flag("norm_adv_by_std", True), case.number("epsilon", 1e-6)
    weigh = case.one_of("compute_mean_std_cross_steps", WEIGH, True)
    return _outcome_estimator(
        _grpo(std, "verl-agent", weigh=weigh, epsilon=epsilon), steps, "advantage_per_row", shaper
    )


@handles("verl-agent", "rloo_steprows rloo_traj", "core_algos.compute_rloo_outcome_advantage")
def _(case: Case) -> Outcome:
    steps, shaper = penalised(case)
    case.take("gamma")
    case.take("epsilon")
    weigh = case.one_of("compute_mean_std_cross_steps", WEIGH, True)
    return _outcome_estimator(
        RLOO(StateComparison.from_preset("verl-agent", normalise="mean", weigh=weigh)),
        steps,
        "advantage_per_row",
        shaper,
    )


@handles("verl-agent", "step_discounted_returns", "compute_step_discounted_returns", "common.discounted_returns64")
def _(case: Case) -> Outcome:
    gamma = case.number("gamma")
    steps = step_table(case.data, row_order=case.origin == "peer-code")
    return Outcome({"per_row": discounted_returns(steps, gamma)}, f"discounted_returns(gamma={gamma})")


@handles("verl-agent", "penalised_scores", "apply_invalid_action_penalty")
def _(case: Case) -> Outcome:
    steps, shaper = penalised(case)
    gamma = case.number("gamma")
    values = {"episode_score_per_row": episode_returns(steps), "step_return_per_row": discounted_returns(steps, gamma)}
    return Outcome(values, f"{shaper} discounted_returns(gamma={gamma})")


def _verl_estimator(case: Case) -> GRPO | RLOO:
    epsilon = case.number("epsilon", 1e-6)
    if "rloo" in case.function:
        return RLOO(CENTRED if "vectorized" in case.function else StateComparison.from_preset("verl", normalise="mean"))
    return _grpo(case.flag("norm_adv_by_std", True), "verl", epsilon=epsilon)


@handles(
    "verl",
    "grpo rloo rloo_vectorized grpo_vectorized",
    "grpo",
    "rloo",
    "rloo_vectorized",
    "grpo_vectorized",
    "compute_grpo_outcome_advantage",
    "compute_rloo_outcome_advantage",
    "compute_rloo_vectorized_outcome_advantage",
    "compute_grpo_vectorized_outcome_advantage",
)
def _(case: Case) -> Outcome:
    estimator: GRPO | RLOO
    if "advantage_per_traj" not in case.expect:
        steps = token_row_table(case.data, case.take("rewards", "token_level_rewards"))
        estimator = _verl_estimator(case)
        return _outcome_estimator(estimator, steps, "advantage_per_row")
    case.one_of("score", {"episode_return": None})
    case.one_of("rows", {"one per trajectory, in order of first appearance": None})
    # The trajectory files name the variant in the case's id only.
    if "norm_std=False" in case.id:
        estimator = DrGRPO(StateComparison.from_preset("verl", normalise="mean"))
    else:
        estimator = _verl_estimator(case)
    return _per_trajectory(case, estimator)


def _per_trajectory(case: Case, estimator: GRPO | RLOO) -> Outcome:
    steps = step_table(case.data)
    first, rounding = first_rows(steps.episode_id), trajectory_rounding(estimator, steps)
    return Outcome(
        per_trajectory_values(case, steps, _advantage(estimator, steps)),
        str(estimator),
        {"advantage_per_traj": Rounding(rounding.bound[first], rounding.as_original[first])},
    )


def per_trajectory_values(case: Case, steps: StepTable, per_step: Floats) -> Json:
    """An advantage that is the same for all steps of a trajectory, once for each."""
    first = first_rows(steps.episode_id)
    names, advantage = [case.data["steps"][row]["traj_id"] for row in first], per_step[first]
    return {
        "traj_id": names,
        "advantage_per_traj": advantage,
        "advantage_by_traj": dict(zip(names, advantage.tolist(), strict=True)),
    }


@handles("trl", "trl_grpo", "_generate_and_score_completions")
def _(case: Case) -> Outcome:
    std = case.one_of("scale_rewards", {"group": True, "none": False})
    estimator = _grpo(std, "trl", epsilon=case.number("epsilon", 1e-4))
    return _per_trajectory(case, estimator)


@handles("trl", "trl_rloo", "_generate_and_score_completions")
def _(case: Case) -> Outcome:
    case.one_of("normalize_advantages", {False: None})
    case.take("epsilon")  # only used where advantages are normalised
    return _per_trajectory(case, RLOO())


@handles(
    "treegrpo",
    "tree_grpo tree_grpo_2norm",
    "compute_grpo_outcome_advantage (by prompt and by tree), summed",
    "compute_tree_grpo_outcome_advantage",
)
def _(case: Case) -> Outcome:
    epsilon, ddof = case.number("epsilon"), int(case.take("ddof"))
    compare = StateComparison.from_preset("verl", epsilon=epsilon, ddof=ddof)
    estimator = TreeGRPO("sum" if "intra_part_per_traj" in case.expect else "tree_2norm", "raw", compare)
    rows = case.data["steps"]
    tree = group_codes(np.array([row["tree_id"] for row in rows], object))
    found = estimator(step_table(case.data).with_columns(**{TREE: tree}))
    assert found.per_step is not None
    first = first_rows(group_codes(np.array([row["traj_id"] for row in rows], object)))
    names = [rows[row]["traj_id"] for row in first]
    parts = {"advantage": found.per_step, **{f"{name}_part": term for name, term in found.terms.items()}}
    values = {f"{name}_per_traj": dict(zip(names, part[first].tolist(), strict=True)) for name, part in parts.items()}
    return Outcome(values, str(estimator))
