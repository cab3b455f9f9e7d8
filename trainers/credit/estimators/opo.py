"""OPO: the baseline that minimises the variance of the gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from trainers.credit.estimators.base import Advantage, register
from trainers.credit.estimators.comparison import CENTRED, Comparing, StateComparison, laid_over, units_of
from trainers.credit.estimators.groups import ROUNDING, group_statistics, mean_abs
from trainers.steps import StepTable


@register("opo")
@dataclass(frozen=True)
class OPO(Comparing):
    """Return minus the optimal baseline (Hao et al. 2025, On-Policy RL with Optimal Reward Baseline, section 3).

    A = R(τ) - Σ_j L_j R(τ_j) / Σ_j L_j over the episodes j of the group, L_j their response tokens: the squared
    gradient of a response grows with its length, so long episodes weigh more in the baseline.
    """

    compare: Annotated[StateComparison, laid_over(CENTRED, "singleton")] = CENTRED
    """How the episodes of a group are compared: ``singleton``."""

    def __call__(self, steps: StepTable) -> Advantage:
        """One advantage per step."""
        units = units_of(steps, "episode")
        returns, group, once = units.returns, units.group, units.once
        length = np.bincount(units.episode, steps.response.lengths, len(once))
        stats = group_statistics(returns, group, samples=units.samples)
        of_group = group[once]
        total = np.bincount(of_group, length)[group]
        # Relative to the plain mean, which is also what is left where a group has no tokens.
        shift = np.bincount(of_group, length * (returns - stats.mean)[once])[group] / np.where(total > 0, total, 1)
        advantage = np.where(stats.std > 0, returns - (stats.mean + shift), returns - stats.mean)
        advantage[abs(advantage) <= ROUNDING * np.maximum(1.0, abs(returns))] = 0.0
        if self.compare.singleton == "raw":
            advantage = np.where(stats.size == 1, returns, advantage)
        diagnostics = {**units.diagnostics(), "baseline_shift_abs": mean_abs(units.rows(shift))}
        return Advantage(units.rows(advantage), diagnostics=diagnostics)
