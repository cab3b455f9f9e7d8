"""StepPO: generalised advantages over steps, with a critic that values states before the action."""

from __future__ import annotations

from dataclasses import dataclass

from trainers.credit.estimators.base import Advantage, ValueBased, register
from trainers.credit.estimators.groups import Floats, mean_abs
from trainers.credit.estimators.returns import step_advantages, value_diagnostics
from trainers.credit.estimators.tokens import whiten
from trainers.settings import Fraction, NotNegative
from trainers.steps import StepTable


@register("steppo")
@dataclass(frozen=True)
class StepPO(ValueBased):
    """Step-level generalised advantage (Wang et al. 2026, Eq. 6, 18 and 19).

    A_t = Σ_l (gamma lam)^l δ_{t+l} with δ_t = r_t + gamma V(s_{t+1}) - V(s_t): the step is the unit of time, so that
    discounting does not depend on how many tokens a response has. After the last step V is 0, without ``bootstrap``
    also where the episode was cut off.
    """

    gamma: Fraction = 0.99
    """Discount per step."""
    lam: Fraction = 1.0
    """λ; 1 is the return minus the value."""
    whiten: bool = False
    """Subtract the mean over all steps of the batch and divide by their deviation (authors' code)."""
    epsilon: NotNegative = 1e-8
    """Added to that standard deviation."""
    bootstrap: bool = False
    """After an episode that was cut off comes, instead of 0, the last value that the critic gave in it."""

    def __call__(self, steps: StepTable) -> Advantage:
        """One advantage per step.

        Raises:
            MissingColumn: There is no column ``value``.
            UsageError: A value is not finite, or a step is there twice.
        """
        raw = self.raw(steps)
        diagnostics = {**value_diagnostics(self._value(steps), raw), "advantage_abs": mean_abs(raw)}
        advantage = whiten(raw, epsilon=self.epsilon, add_to="std") if self.whiten else raw
        return Advantage(per_step=advantage, diagnostics=diagnostics)

    def raw(self, steps: StepTable) -> Floats:
        """The advantage before whitening, shape (N,)."""
        return step_advantages(steps, self._value(steps), self.gamma, self.lam, self.bootstrap)

    def returns(self, steps: StepTable) -> tuple[Floats]:
        """Returns the critic's targets A_t + V(s_t), shape (N,)."""
        return (self.raw(steps) + self._value(steps),)

    def _value(self, steps: StepTable) -> Floats:
        return self.values[0].column(steps, "steppo")
