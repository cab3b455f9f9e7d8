"""RLOO: an episode's return against the mean of the others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainers.credit.estimators.base import Advantage, register
from trainers.credit.estimators.comparison import CENTRED, Centred, Comparing, units_of
from trainers.credit.estimators.groups import group_statistics
from trainers.steps import StepTable


@register("rloo")
@dataclass(frozen=True)
class RLOO(Comparing):
    """Leave-one-out advantage (Kool et al. 2019; Ahmadian et al. 2024).

    A = R(τ) - mean of the other G - 1 returns of the group, which is G / (G - 1) · (R(τ) - mean_p R).
    An episode alone in its group has no baseline: 0.
    """

    compare: Centred = CENTRED
    """How the episodes of a group are compared: ``weigh`` and ``singleton``. With ``weigh: step`` an episode's other
    rows stay in its own baseline, which is no longer leave-one-out."""

    def __call__(self, steps: StepTable) -> Advantage:
        """One advantage per step."""
        units = units_of(steps, self.compare.weigh)
        size = group_statistics(units.returns, units.group, samples=units.samples).size
        advantage = self.compare.over(units) * np.where(size > 1, size / np.maximum(size - 1, 1), 1.0)
        return Advantage(units.rows(advantage), diagnostics=units.diagnostics())
