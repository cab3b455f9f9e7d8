"""VETTA: turns credited by a turn's value, and the tokens of a turn against each other by a value of each token."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainers.credit.estimators.base import Advantage, CriticValue, ValueBased, register
from trainers.credit.estimators.groups import Floats
from trainers.credit.estimators.returns import explained_variance, step_advantages, value_diagnostics
from trainers.credit.estimators.tokens import row_means, token_advantages
from trainers.settings import Fraction, NotNegative
from trainers.steps import StepTable


@register("vetta")
@dataclass(frozen=True)
class VETTA(ValueBased):
    """Turn advantage plus a centred token advantage (Eq. 3 to 7): A_j = A^turn + alpha (A^tok_j - mean over the turn).

    A^turn is StepPO's generalised advantage over the turns of an episode, A^tok PPO's over all response tokens of the
    episode, each with a value of its own from one critic. After the last turn both are 0, without ``bootstrap`` also
    where the episode was cut off. The critic's targets are V + A of each level, before the tokens are centred.
    """

    gamma: Fraction = 0.95
    """Discount per turn."""
    lam: Fraction = 0.95
    """λ over turns."""
    gamma_token: Fraction = 1.0
    """Discount per token."""
    lam_token: Fraction = 1.0
    """λ over tokens."""
    alpha: NotNegative = 1.0
    """Weight of the tokens' difference to their turn; 0 is StepPO's advantage."""
    bootstrap: bool = False
    """After an episode that was cut off comes, instead of 0, the last value that the critic gave in it."""

    per = "token"
    """Each token has an advantage of its own."""

    values = (CriticValue(per="step"), CriticValue(per="token"))
    """The turn's value, read before its response, and a value of the text before each token."""

    own_terms, own_weight = ("token",), "alpha"
    """How the tokens of a turn differ; the turn's advantage is StepPO's."""

    def __call__(self, steps: StepTable) -> Advantage:
        """One advantage per response token.

        Raises:
            MissingColumn: There is no column, or no token column, ``value``.
            UsageError: A value is not finite, or a step is there twice.
        """
        (of_turn, of_token), (turn, token) = self._read(steps), self.levels(steps)
        terms = {"turn": np.repeat(turn, steps.response.lengths), "token": self.alpha * self.residual(steps, token)}
        of_tokens = {"token_explained_variance": explained_variance(of_token, of_token + token)}
        diagnostics = value_diagnostics(of_turn, turn) | of_tokens
        return Advantage(per_token=terms["turn"] + terms["token"], diagnostics=diagnostics, terms=terms)

    def levels(self, steps: StepTable) -> tuple[Floats, Floats]:
        """Returns A^turn, shape (N,), and A^tok before it is centred, one per response token."""
        of_turn, of_token = self._read(steps)
        return (
            step_advantages(steps, of_turn, self.gamma, self.lam, self.bootstrap),
            token_advantages(steps, of_token, self.gamma_token, self.lam_token, bootstrap=self.bootstrap),
        )

    def residual(self, steps: StepTable, token: Floats) -> Floats:
        """Returns A^tok minus its mean over the tokens of the turn."""
        return np.asarray(token - row_means(steps, token)[steps.response.row_of], np.float64)

    def returns(self, steps: StepTable) -> tuple[Floats, Floats]:
        """Returns the critic's targets: A^turn + V of each turn, and A^tok + V of each token."""
        (of_turn, of_token), (turn, token) = self._read(steps), self.levels(steps)
        return turn + of_turn, token + of_token

    def _read(self, steps: StepTable) -> tuple[Floats, Floats]:
        turn, token = self.values
        return turn.column(steps, "vetta"), token.column(steps, "vetta")
