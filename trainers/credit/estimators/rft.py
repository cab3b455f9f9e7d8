"""Rejection sampling and imitation: what a round accepts is imitated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from trainers.credit.estimators.base import Advantage, Estimator, register
from trainers.credit.estimators.groups import mean_of
from trainers.credit.estimators.returns import episode_returns
from trainers.steps import StepTable


@register("rft")
@dataclass(frozen=True)
class RFT(Estimator):
    """Imitation of the episodes that are left (rejection sampling, Yuan et al. 2023; expert iteration).

    Each token of a step weighs w in the loss -w log p (``loss: gpg``). An iteration is a round; the filter ``accepted``
    leaves out the episodes that are rejected.
    """

    weight: Literal["one", "score"] = "one"
    """w: 1, or the return of the episode."""

    credits_lone_episodes = True
    """An episode is compared with no other."""

    def __call__(self, steps: StepTable) -> Advantage:
        """One weight per step."""
        returns = episode_returns(steps)
        weights = np.ones(len(steps)) if self.weight == "one" else returns
        return Advantage(weights, diagnostics={"return_mean": mean_of(returns)})
