"""EMPG: an episode's advantage counts more at steps of which the policy is certain, and less where it is not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainers.credit.estimators.base import Advantage, register
from trainers.credit.estimators.comparison import STANDARD, Compared, Comparing
from trainers.credit.estimators.groups import Floats, mean_abs, mean_of
from trainers.credit.estimators.returns import next_in_episode
from trainers.credit.estimators.tokens import token_means
from trainers.settings import NotNegative
from trainers.steps import StepTable
from trainers.steps.columns import ENTROPY

_FLAT = 1e-8
"""Added to the range of the entropies, as in the paper: where all are equal each counts as the smallest."""


@register("empg")
@dataclass(frozen=True)
class EMPG(Comparing):
    """Entropy-modulated advantage (arXiv 2509.09265): A = A^E g(h_t) + ζ f(h_{t+1}), less its mean over all steps.

    h is the step's mean token entropy, scaled to [0, 1] over all steps of the update; g = exp(-k h) over its mean, and
    f = exp(-k' h) of the next step, which the last step of an episode has none of. A^E is GRPO's.
    """

    k: NotNegative = 1.0
    """How much less an uncertain step counts; 0 lets all count alike."""
    k_future: NotNegative = 1.0
    """k' of the bonus."""
    zeta: NotNegative = 0.05
    """ζ, the bonus for a step after which the policy is certain; 0 is none."""
    compare: Compared = STANDARD
    """How the episodes of a group are compared."""

    needs = (ENTROPY,)
    """The entropy at each response token."""

    @property
    def credits_lone_episodes(self) -> bool:
        """By the bonus, which differs from step to step."""
        return self.zeta > 0.0

    own_terms, own_weight = ("bonus",), "zeta"
    """The bonus; how the advantage of an episode is scaled is no term of its own."""

    def __call__(self, steps: StepTable) -> Advantage:
        """One advantage per step."""
        episode, diagnostics = self.compare.episodes(steps)
        scale, bonus = self.scale(steps), self.bonus(steps)
        episode_term = episode * scale
        mean = mean_of(episode_term + bonus)
        whole = mean_abs(episode_term) + mean_abs(bonus)
        diagnostics |= {
            "entropy": mean_of(token_means(steps, ENTROPY, "empg")),
            "scale_std": float(scale.std()) if len(steps) else 0.0,
            "scale_max": float(scale.max(initial=0.0)),
            "bonus_share": mean_abs(bonus) / whole if whole else 0.0,
            "mean_removed": mean,
        }
        terms = {"episode": episode_term, "bonus": bonus, "centring": np.full(len(steps), -mean)}
        return Advantage(episode_term + bonus - mean, diagnostics=diagnostics, terms=terms)

    def uncertainty(self, steps: StepTable) -> Floats:
        """Returns h of each step, from 0 to 1, shape (N,)."""
        entropy = token_means(steps, ENTROPY, "empg")
        low, high = entropy.min(initial=np.inf), entropy.max(initial=-np.inf)
        return np.asarray((entropy - low) / (high - low + _FLAT), np.float64)

    def scale(self, steps: StepTable) -> Floats:
        """Returns g of each step, shape (N,); its mean is 1."""
        weight = np.exp(-self.k * self.uncertainty(steps))
        return weight / weight.mean() if len(steps) else weight

    def clarity(self, steps: StepTable) -> Floats:
        """Returns f of each step, shape (N,)."""
        return np.asarray(np.exp(-self.k_future * self.uncertainty(steps)), np.float64)

    def bonus(self, steps: StepTable) -> Floats:
        """Returns ζ f of the step that follows each, 0 where none does, shape (N,)."""
        return next_in_episode(steps, self.zeta * self.clarity(steps))
