"""REINFORCE++ with the group's mean as baseline, whitened over the batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from envsuite.core.errors import unknown
from trainers.estimators.base import Advantage, register
from trainers.estimators.shared import (
    Singleton,
    Weigh,
    check_group_options,
    episode_codes,
    episode_returns,
    first_rows,
    group_codes,
    group_diagnostics,
    relative_to_group,
    samples_of,
)
from trainers.estimators.tokens import whiten
from trainers.steps import StepTable

Unit = Literal["episode", "step", "token"]


@register("reinforce_pp_baseline")
@dataclass(frozen=True)
class ReinforcePPBaseline:
    """Centred return, scaled by the batch (Hu 2025, REINFORCE++-baseline).

    A' = R(τ) - mean_p R, A = (A' - mean A') / sqrt(var A' + ε) over the batch: the group gives the baseline, the
    whole batch the scale, so that no single group's deviation is divided by.
    """

    weigh: Weigh = "episode"
    """What a sample of the group's mean is: each episode once (paper), or each step row (verl-agent)."""
    whiten_by: Unit = "episode"
    """What a sample of the batch is: each episode once, each step row, or each response token (verl; long responses
    weigh more)."""
    epsilon: float = 1e-8
    """Added to the batch's variance (verl)."""
    singleton: Singleton = "zero"
    """What a group of one sample gives before whitening: 0, or the raw return (verl, verl-agent)."""

    def __post_init__(self) -> None:
        check_group_options("reinforce_pp_baseline", "mean", self.weigh, 0, self.epsilon, self.singleton)
        if self.whiten_by not in get_args(Unit):
            raise unknown("reinforce_pp_baseline whiten_by", self.whiten_by, get_args(Unit))

    def __call__(self, steps: StepTable) -> Advantage:
        """One advantage per step."""
        returns, group, once = episode_returns(steps), group_codes(steps.group_id), first_rows(episode_codes(steps))
        centred = relative_to_group(
            returns,
            group,
            normalise="mean",
            ddof=0,
            epsilon=0.0,
            samples=samples_of(steps, self.weigh),
            singleton=self.singleton,
        )
        weight = np.ones(len(steps), np.int64) if self.whiten_by == "step" else steps.response.lengths
        if self.whiten_by == "episode":
            weight = np.zeros(len(steps), np.int64)
            weight[once] = 1
        return Advantage(
            per_step=whiten(centred, weight=weight, epsilon=self.epsilon),
            diagnostics=group_diagnostics(returns[once], group[once], "group"),
        )
