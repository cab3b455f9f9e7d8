"""Recorded cases of SPEAR: what enters the replay buffer, what recalibration leaves, the filter, the schedules."""

from __future__ import annotations

import numpy as np

from benchmarks.golden_data import Json, NotCovered, step_table
from benchmarks.golden_dispatch import Case, Outcome, computes_unit, handles
from benchmarks.golden_estimators import penalised
from trainers.credit.estimators.comparison import StateComparison
from trainers.credit.estimators.gigpo import GiGPO
from trainers.credit.estimators.groups import Floats, episode_codes, first_rows, group_codes, group_statistics
from trainers.credit.estimators.returns import episode_returns
from trainers.credit.filters import LowSpread
from trainers.credit.spear import Spear
from trainers.credit.spear.replay import ReplayBuffer, ReplayConfig, group_means
from trainers.credit.spear.schedules import cosine_fall, cosine_rise
from trainers.steps import StepTable
from trainers.steps.columns import ITERATION


def _spreads(steps: StepTable) -> Floats:
    """Population deviation, over the episodes of each group, of an episode's mean row score; by row."""
    episode = episode_codes(steps)
    per_row = group_statistics(episode_returns(steps), episode).mean
    return group_statistics(per_row, group_codes(steps.group_id), samples=first_rows(episode)).std


@handles("SPEAR", "spear_recalibration", "prepare_for_selection")
def _(case: Case) -> Outcome:
    steps, shaper = penalised(case)
    case.one_of("norm_adv_by_std", {False: None})
    if 0.0 < case.number("weight_decay_trajectory_replay", -1) <= 1.0:
        raise NotCovered("weight_decay_trajectory_replay > 0 turns the recalibration off")
    config = ReplayConfig("code", int(case.take("buffer_size")))
    baselines = int(case.take("baseline_buffer_size"))
    estimator = GiGPO(gamma=case.number("gamma"), compare=StateComparison.from_preset("verl-agent"))
    names = np.array([row["group_id"] for row in case.data["steps"]], object)
    keys = zip(steps.episode_id.tolist(), steps.t.tolist(), strict=True)
    row_of = {key: row for row, key in enumerate(keys)}
    buffer, order, iterations = ReplayBuffer(config, baselines), [], []
    for recorded in case.expect["iterations"]:
        rows = np.flatnonzero(np.isin(names, recorded["groups"]))
        part = steps.take(rows)
        part = part.with_columns(**{ITERATION: np.full(len(rows), int(recorded["iteration"]))})
        advantage = estimator(part).per_step
        assert advantage is not None
        given = recorded["gigpo_advantage_per_row"]
        # Whether a row enters is decided by the sign of the original's advantage, and rounding can decide that.
        signed = np.array([given.get(str(row), own) for row, own in zip(rows.tolist(), advantage, strict=True)])
        ids, means = group_means(part)
        buffer.enter_means(means)
        before = len(buffer.table)
        buffer.admit(part, signed, np.ones(len(part), np.bool_))
        entered = buffer.table.take(np.arange(before, len(buffer.table)))
        admitted = sorted(row_of[key] for key in zip(entered.episode_id.tolist(), entered.t.tolist(), strict=True))
        order += admitted
        spread = _spreads(part)
        iterations.append({
            "iteration": int(recorded["iteration"]),
            "groups": list(dict.fromkeys(names[rows])),
            "gigpo_advantage_per_row": dict(zip(map(str, rows.tolist()), advantage.tolist(), strict=True)),
            "admitted_rows": admitted,
            "group_means": means.tolist(),
            "group_stds": [float(spread[part.group_id == group][0]) for group in ids],
        })  # fmt: skip
    kept, recalibrated = buffer.select_rows()
    kept_keys = zip(kept.episode_id.tolist(), kept.t.tolist(), strict=True)
    by_row = {row_of[key]: value for key, value in zip(kept_keys, recalibrated.tolist(), strict=True)}
    kept_rows = [row for row in order if row in by_row]
    values = {
        "iterations": iterations,
        "p50_of_group_means": buffer.baseline,
        "buffer_rows": order,
        "kept_rows": kept_rows,
        "recalibrated_advantage_of_kept_rows": [by_row[row] for row in kept_rows],
        "effective_buffer_size": buffer.useful_count,
        f"is_full_capacity(buffer_size={config.size})": buffer.full(buffer.useful_count),
    }
    return Outcome(values, f"{shaper} {estimator} {config}")


@handles("SPEAR", "spear_rollout_filter", "rule of ray_trainer._filter_rollout, re-stated", "_filter_rollout")
def _(case: Case) -> Outcome:
    steps = step_table(case.data)
    filter_ = LowSpread(1.0 - case.number("rollout_filter_ratio"))
    names = [row["group_id"] for row in case.data["steps"]]
    spread = dict(zip(names, _spreads(steps).tolist(), strict=True))
    stay = list(dict.fromkeys(name for name, kept in zip(names, filter_(steps).tolist(), strict=True) if kept))
    values = {"group_std": spread, "kept_groups": sorted(stay, key=lambda name: -spread[name])}
    return Outcome(values, str(filter_))


@computes_unit("T", "t", "sil_warmup_gamma", "toolcall_decay_mu")
def schedule_unit(case: Json, _: list[Json]) -> Outcome:
    """A unit case of the two schedules."""
    values = {
        "sil_warmup_gamma": cosine_rise(case["t"], int(case["T"])),
        "toolcall_decay_mu": cosine_fall(case["t"], int(case["T"])),
    }
    return Outcome(values, f"cosine_rise, cosine_fall(length={case['T']})")


@computes_unit("success", "n_tool_call", "format_ok", "t", "T_decay", "reward")
def reward_unit(case: Json, _: list[Json]) -> Outcome:
    """A unit case of the composite reward: an episode with so many tool calls, and a last step that is none."""
    calls = int(case["n_tool_call"])
    rows = [
        {
            "group_id": "g", "traj_id": "e", "step_index": t, "observation": "o", "step_reward": 0.0,
            "is_action_valid": t < calls,
        }
        for t in range(calls + 1)
    ]  # fmt: skip
    action = np.array(["call"] * calls + ["refused" if case["format_ok"] else None], object)
    steps = step_table({"schema": "golden-steps/1", "steps": rows}).with_columns(
        action=action,
        success=np.full(len(rows), bool(case["success"])),
        **{ITERATION: np.full(len(rows), int(case["t"]))},
    )
    shaper = Spear(decay=int(case["T_decay"]))
    return Outcome({"reward": float(episode_returns(shaper(steps))[0])}, str(shaper))
