"""ReMax: an episode's return against that of the greedy policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from trainers.credit.estimators.base import Advantage, Estimator, Per, register
from trainers.credit.estimators.groups import Floats, episode_codes, first_rows, mean_of
from trainers.credit.estimators.returns import episode_returns, finite_column
from trainers.credit.estimators.tokens import token_sequences
from trainers.steps import StepTable
from trainers.steps.columns import GREEDY_RETURN, SUPPLIERS

Credit = Literal["return", "to_go"]


@register("remax")
@dataclass(frozen=True)
class ReMax(Estimator):
    """Return minus the greedy episode's (Li et al. 2023, Eq. 7): A = R(τ) - R(greedy).

    The greedy episode costs one more rollout per task, and is no part of the group; groups of one are enough.
    """

    credit: Credit = "return"
    """Return that a token is credited with: that of its episode (paper), or the return to go (``"to_go"``, verl). They
    differ only where rewards come before the end."""

    needs = (GREEDY_RETURN,)
    """The greedy episode's return."""

    @property
    def per(self) -> Per:
        """``"token"`` where each token is credited with its return to go, else ``"step"``."""
        return "token" if self.credit == "to_go" else "step"

    def __call__(self, steps: StepTable) -> Advantage:
        """One advantage per step, or with ``credit="to_go"`` per response token.

        Raises:
            MissingColumn: There is no column ``greedy_return``.
            UsageError: One of its values is not finite.
        """
        greedy = finite_column(steps, GREEDY_RETURN, "remax", SUPPLIERS[GREEDY_RETURN])
        advantage, once = episode_returns(steps) - greedy, first_rows(episode_codes(steps))
        diagnostics = {"greedy_return": mean_of(greedy[once]), "better_than_greedy": mean_of(advantage[once] > 0)}
        if self.credit == "to_go":
            tokens = self.returns(steps) - np.repeat(greedy, steps.response.lengths)
            return Advantage(per_token=tokens, diagnostics=diagnostics)
        return Advantage(per_step=advantage, diagnostics=diagnostics)

    def returns(self, steps: StepTable) -> Floats:
        """The undiscounted return to go of each response token."""
        sequences = token_sequences(steps, "episode")
        return sequences.carry(sequences.reward, 1.0)
