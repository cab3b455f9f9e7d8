"""PPO: generalised advantages over tokens, with a critic that values every token."""

from __future__ import annotations

from dataclasses import dataclass

from trainers.credit.estimators.base import Advantage, ValueBased, register
from trainers.credit.estimators.groups import Floats, mean_abs
from trainers.credit.estimators.returns import value_diagnostics
from trainers.credit.estimators.tokens import Scope, token_advantages, whiten
from trainers.settings import ConfigError, Fraction, NotNegative
from trainers.steps import StepTable


@register("ppo")
@dataclass(frozen=True)
class PPO(ValueBased):
    """Token-level generalised advantage (Schulman et al. 2016, 2017).

    A_i = Σ_l (gamma lam)^l δ_{i+l} with δ_i = r_i + gamma V_{i+1} - V_i over the response tokens of an episode, step
    after step; a step's reward is earned by its last token, and a token column ``reward`` is added.
    """

    gamma: Fraction = 1.0
    """Discount per token (Ziegler et al. 2019, for language models)."""
    lam: Fraction = 0.95
    """λ (Ziegler et al. 2019); 1 is the return to go minus the value."""
    scope: Scope = "episode"
    """How far rewards and values are carried back: through the whole episode, or (``"step"``, verl-agent) within each
    step, which then earns the return of the whole episode."""
    whiten: bool = False
    """Subtract the mean over all tokens of the batch and divide by their deviation (verl, verl-agent, StepPO)."""
    epsilon: NotNegative = 1e-8
    """Added to that variance."""
    bootstrap: bool = False
    """After an episode that was cut off comes, instead of 0, the last value that the critic gave in it."""

    per = "token"
    """Each token has a value and an advantage of its own."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bootstrap and self.scope == "step":
            raise ConfigError("ppo: bootstrap follows an episode, but scope is step; set scope: episode")

    def __call__(self, steps: StepTable) -> Advantage:
        """One advantage per response token.

        Raises:
            MissingColumn: There is no token column ``value``.
            UsageError: A value is not finite, or a step is there twice.
        """
        raw = self.raw(steps)
        diagnostics = {**value_diagnostics(self._value(steps), raw), "advantage_abs": mean_abs(raw)}
        advantage = whiten(raw, epsilon=self.epsilon) if self.whiten else raw
        return Advantage(per_token=advantage, diagnostics=diagnostics)

    def raw(self, steps: StepTable) -> Floats:
        """The advantage before whitening, one per response token."""
        return token_advantages(steps, self._value(steps), self.gamma, self.lam, self.scope, self.bootstrap)

    def returns(self, steps: StepTable) -> tuple[Floats]:
        """Returns the critic's targets A_i + V_i, one per response token."""
        return (self.raw(steps) + self._value(steps),)

    def _value(self, steps: StepTable) -> Floats:
        return self.values[0].column(steps, "ppo")
