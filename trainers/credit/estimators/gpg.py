"""GPG: centred returns, scaled up to make up for groups without a signal, which shrink the mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from trainers.credit.estimators.base import Advantage, register
from trainers.credit.estimators.comparison import CENTRED, Comparing, StateComparison, laid_over
from trainers.credit.estimators.groups import episode_codes, first_rows, group_codes, group_statistics
from trainers.credit.estimators.returns import episode_returns
from trainers.steps import StepTable

Scale = Literal["informative", "nonzero", "none"]


@register("gpg")
@dataclass(frozen=True)
class GPG(Comparing):
    """Group policy gradient (Chu et al. 2025): A = c (R(τ) - mean_p R) / F, for the loss -A log π.

    Episodes of groups with equal returns have no gradient and shrink the mean over the batch of B episodes;
    c = B / (B - M), with M such episodes, undoes that (alpha in the paper).
    """

    compare: Annotated[StateComparison, laid_over(CENTRED)] = CENTRED
    """How the episodes of a group are compared; F is 1 (paper), or with ``normalise: std`` the group's deviation."""
    scale: Scale = "informative"
    """c is B over the number of episodes in groups whose returns differ (paper), of those whose return is not 0
    (``"nonzero"``, verl), or 1 (``"none"``)."""

    def __call__(self, steps: StepTable) -> Advantage:
        """One advantage per step."""
        (values, diagnostics), alpha = self.compare.episodes(steps), self.alpha(steps)
        return Advantage(values * alpha, diagnostics={**diagnostics, "alpha": alpha})

    def alpha(self, steps: StepTable) -> float:
        """The factor c of the whole table; 1 where no episode has a signal."""
        returns, once = episode_returns(steps), first_rows(episode_codes(steps))
        if self.scale == "none" or not len(steps):
            return 1.0
        if self.scale == "nonzero":
            signal = returns[once] != 0.0
        else:
            signal = group_statistics(returns, group_codes(steps.group_id), samples=once).std[once] > 0.0
        return len(once) / int(signal.sum()) if signal.any() else 1.0
