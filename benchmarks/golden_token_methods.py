"""Recorded cases of the methods that credit tokens, or whiten over them, with the options that reproduce each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from benchmarks.golden_data import NotCovered, TokenRows, response_mask, step_table, token_row_table, token_run_table
from benchmarks.golden_dispatch import Case, Outcome, handles
from benchmarks.golden_estimators import WEIGH, penalised, per_trajectory_values
from trainers.credit.estimators.comparison import StateComparison
from trainers.credit.estimators.gpg import GPG
from trainers.credit.estimators.groups import Floats
from trainers.credit.estimators.opo import OPO
from trainers.credit.estimators.ppo import PPO
from trainers.credit.estimators.reinforce_pp import ReinforcePP
from trainers.credit.estimators.reinforce_pp_baseline import ReinforcePPBaseline
from trainers.credit.estimators.remax import ReMax
from trainers.credit.estimators.tokens import Scope, whiten
from trainers.steps import StepTable
from trainers.steps.columns import GREEDY_RETURN, VALUE

_RAW = StateComparison.from_preset("verl", normalise="mean")


def _dense(case: Case, flat: Floats, key: str) -> Floats:
    """Flat tokens as the recorded [rows][columns].

    At observation tokens between response tokens, which step tables do not have, the recording is taken as it is.
    """
    rows = TokenRows.of(case.data, "float64")
    out = rows.dense(torch.from_numpy(np.ascontiguousarray(flat)))
    places = np.arange(rows.width)[None, :]
    last = np.where(rows.mask, places, -1).max(axis=1, keepdims=True)
    between = ~rows.mask & (places < last)
    if key in case.expect and between.any():
        out[between] = np.array(case.expect[key], np.float64)[between]
    return out


def _dense_rows(case: Case) -> StepTable:
    return token_row_table(case.data, case.take("rewards", "token_level_rewards"), dense=True)


def _reinforce_pp(case: Case, steps: StepTable, scope: Scope, label: object = "") -> Outcome:
    estimator = ReinforcePP(gamma=case.number("gamma"), scope=scope)
    values = {
        "advantage": _dense(case, estimator(steps).tokens(steps), "advantage"),
        "returns": _dense(case, estimator.returns(steps), "returns"),
    }
    return Outcome(values, f"{label} {estimator}".strip())


@handles("verl", "reinforce_plus_plus", "reinforce_plus_plus", "compute_reinforce_plus_plus_outcome_advantage")
def _(case: Case) -> Outcome:
    return _reinforce_pp(case, _dense_rows(case), "episode")


@handles("verl-agent", "reinforce_plus_plus", "compute_reinforce_plus_plus_outcome_advantage")
def _(case: Case) -> Outcome:
    rewards = case.take("rewards", "token_level_rewards_dense")  # the recordings do not say it
    # The fork lets the running return start anew at observation tokens: each run of tokens stands alone.
    return _reinforce_pp(case, token_run_table(case.data, rewards), "step")


@handles("verl-agent", "reinforce_plus_plus_steprows", "core_algos.compute_reinforce_plus_plus_outcome_advantage")
def _(case: Case) -> Outcome:
    steps, shaper = penalised(case)
    case.take("epsilon")
    return _reinforce_pp(case, steps, "step", shaper)


def _baseline(case: Case, steps: StepTable, estimator: ReinforcePPBaseline, label: object = "") -> Outcome:
    advantage = estimator(steps)
    dense = _dense(case, advantage.tokens(steps), "advantage")
    values = {"advantage_per_row": advantage.per_step, "advantage": dense}
    return Outcome(values, f"{label} {estimator}".strip())


@handles(
    "verl",
    "reinforce_plus_plus_baseline",
    "reinforce_plus_plus_baseline",
    "compute_reinforce_plus_plus_baseline_outcome_advantage",
)
def _(case: Case) -> Outcome:
    if "advantage_per_traj" not in case.expect:
        steps = token_row_table(case.data, case.take("rewards", "token_level_rewards"))
        return _baseline(case, steps, ReinforcePPBaseline(_RAW, "token"))
    case.one_of("score", {"episode_return": None})
    case.one_of("rows", {"one per trajectory, in order of first appearance": None})
    estimator, steps = ReinforcePPBaseline(_RAW), step_table(case.data)
    advantage = estimator(steps).per_step
    assert advantage is not None
    return Outcome(per_trajectory_values(case, steps, advantage), str(estimator))


@handles("StepPO", "reinforce_plus_plus_baseline_traj", "compute_reinforce_plus_plus_baseline_outcome_advantage")
def _(case: Case) -> Outcome:
    return _baseline(case, step_table(case.data), ReinforcePPBaseline(_RAW, "token"))


@handles(
    "verl-agent",
    "reinforce_plus_plus_baseline_steprows",
    "core_algos.compute_reinforce_plus_plus_baseline_outcome_advantage",
)
def _(case: Case) -> Outcome:
    steps, shaper = penalised(case)
    case.take("gamma")
    case.take("epsilon")
    weigh = case.one_of("compute_mean_std_cross_steps", WEIGH, True)
    return _baseline(case, steps, ReinforcePPBaseline(replace(_RAW, weigh=weigh), "token"), shaper)


@handles("verl", "remax", "remax", "compute_remax_outcome_advantage")
def _(case: Case) -> Outcome:
    if "reward_baselines" not in case.data:
        raise NotCovered("the input has no 'reward_baselines'")
    steps = _dense_rows(case).with_columns(**{GREEDY_RETURN: np.array(case.data["reward_baselines"], np.float64)})
    estimator = ReMax(credit="to_go")
    values = {
        "advantage": _dense(case, estimator(steps).tokens(steps), "advantage"),
        "returns": _dense(case, estimator.returns(steps), "returns"),
    }
    return Outcome(values, str(estimator))


@handles("verl", "opo", "opo", "compute_opo_outcome_advantage")
def _(case: Case) -> Outcome:
    steps = token_row_table(case.data, case.take("rewards", "token_level_rewards"))
    estimator = OPO(_RAW)
    return Outcome({"advantage_per_row": estimator(steps).per_step}, str(estimator))


@handles("verl", "gpg_adv", "compute_gpg_outcome_advantage")
def _(case: Case) -> Outcome:
    steps = token_row_table(case.data, case.take("rewards", "token_level_rewards"))
    estimator = GPG(_RAW, "nonzero")
    return Outcome({"advantage_per_row": estimator(steps).per_step}, str(estimator))


def _ppo(case: Case, steps: StepTable, scope: Scope, label: object = "") -> Outcome:
    gamma, lam = case.number("gamma"), case.number("lam")
    value = TokenRows.of(case.data, "float64").column("values").numpy()
    steps, estimator = steps.with_token_columns(**{VALUE: value}), PPO(gamma, lam, scope, whiten=True)
    values = {
        "advantage": _dense(case, estimator(steps).tokens(steps), "advantage"),
        "returns": _dense(case, estimator.returns(steps)[0], "returns"),
        "advantage_before_whitening": _dense(case, estimator.raw(steps), "advantage_before_whitening"),
    }
    return Outcome(values, f"{label} {estimator}".strip())


@handles("verl", "gae_token", "compute_gae_advantage_return", "gae")
def _(case: Case) -> Outcome:
    return _ppo(case, _dense_rows(case), "episode")


@handles("verl-agent", "gae_token", "compute_gae_advantage_return")
def _(case: Case) -> Outcome:
    rewards = case.take("rewards", "token_level_rewards_dense")  # the recordings do not say it
    mask = response_mask(case.data)
    # The fork carries values through observation tokens too: every place is a token, whitened are those of the mask.
    filled = {**case.data, "response_mask": np.ones_like(mask).tolist()}
    value = np.array(case.data["values"], np.float64).ravel()
    steps = token_row_table(filled, rewards, dense=True).with_token_columns(**{VALUE: value})
    estimator = PPO(case.number("gamma"), case.number("lam"), "episode")
    raw = estimator.raw(steps)[mask.ravel()]
    values = {
        "advantage": _dense(case, whiten(raw), "advantage"),
        "returns": _dense(case, estimator.returns(steps)[0][mask.ravel()], "returns"),
        "advantage_before_whitening": _dense(case, raw, "advantage_before_whitening"),
    }
    return Outcome(values, f"{estimator} whiten()")


@handles("verl-agent", "gae_steprows", "core_algos.compute_gae_advantage_return")
def _(case: Case) -> Outcome:
    steps, shaper = penalised(case)
    case.take("epsilon")
    return _ppo(case, steps, "step", shaper)


@handles("StepPO", "token_gae_multistep", "compute_token_gae_advantage_return")
def _(case: Case) -> Outcome:
    return _ppo(case, step_table(case.data), "episode")
