"""REINFORCE++: no group and no critic; the batch is the baseline."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainers.credit.estimators.base import Advantage, Estimator, register
from trainers.credit.estimators.groups import Floats, mean_of
from trainers.credit.estimators.tokens import Scope, token_sequences, whiten
from trainers.settings import Fraction, NotNegative
from trainers.steps import StepTable


@register("reinforce_pp")
@dataclass(frozen=True)
class ReinforcePP(Estimator):
    """Whitened return to go per token (Hu 2025, REINFORCE++).

    G_i = Σ_{j≥i} gamma^{j-i} r_j over the response tokens of the episode, A = (G - mean) / sqrt(var + ε) over all
    tokens of the batch. A step's reward is earned by its last token; a token column ``reward`` is added.
    """

    gamma: Fraction = 1.0
    """Discount per token; the paper has none."""
    scope: Scope = "episode"
    """How far rewards are carried back: through the whole episode, or (``"step"``, verl-agent) within each step,
    which then earns the return of the whole episode."""
    epsilon: NotNegative = 1e-8
    """Added to the variance (verl)."""

    per = "token"
    """Each token has an advantage of its own."""

    def __call__(self, steps: StepTable) -> Advantage:
        """One advantage per response token."""
        returns = self.returns(steps)
        diagnostics = {"return_mean": mean_of(returns), "return_std": float(np.std(returns)) if len(returns) else 0.0}
        return Advantage(per_token=whiten(returns, epsilon=self.epsilon), diagnostics=diagnostics)

    def returns(self, steps: StepTable) -> Floats:
        """G, one per response token in the order of ``response.values``."""
        sequences = token_sequences(steps, self.scope)
        return sequences.carry(sequences.reward, self.gamma)
