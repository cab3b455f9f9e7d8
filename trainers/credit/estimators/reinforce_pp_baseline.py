"""REINFORCE++ with the group's mean as baseline, whitened over the batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from trainers.credit.estimators.base import Advantage, register
from trainers.credit.estimators.comparison import CENTRED, Centred, Comparing, units_of
from trainers.credit.estimators.tokens import whiten
from trainers.settings import NotNegative
from trainers.steps import StepTable

Unit = Literal["episode", "step", "token"]


@register("reinforce_pp_baseline")
@dataclass(frozen=True)
class ReinforcePPBaseline(Comparing):
    """Centred return, scaled by the batch (Hu 2025, REINFORCE++-baseline).

    A' = R(τ) - mean_p R, A = (A' - mean A') / sqrt(var A' + ε) over the batch: the group gives the baseline, the
    whole batch the scale, so that no single group's deviation is divided by.
    """

    compare: Centred = CENTRED
    """How the episodes of a group are compared, before whitening: ``weigh`` and ``singleton``."""
    whiten_by: Unit = "episode"
    """The samples of the batch: each episode once, each step row, or each response token (verl; long responses weigh
    more)."""
    epsilon: NotNegative = 1e-8
    """Added to the batch's variance (verl)."""

    def __call__(self, steps: StepTable) -> Advantage:
        """One advantage per step."""
        units = units_of(steps, self.compare.weigh)
        deviation = self.compare.over(units)
        if self.whiten_by == "episode":
            weight = np.zeros(len(deviation), np.int64)
            weight[units.once] = 1
            advantage = units.rows(whiten(deviation, weight=weight, epsilon=self.epsilon))
        else:
            weight = np.ones(len(steps), np.int64) if self.whiten_by == "step" else steps.response.lengths
            advantage = whiten(units.rows(deviation), weight=weight, epsilon=self.epsilon)
        return Advantage(advantage, diagnostics=units.diagnostics())
