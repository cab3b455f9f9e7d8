"""GRPO: an episode's return relative to its group; the advantage of DAPO and GSPO, too.

What DAPO adds (Yu et al. 2025, sections 3.1 to 3.3) lies in the loss and in which groups are trained on: clip-higher,
the mean over all tokens and the filter for groups without variance are settings of its recipe. What GSPO adds (Zheng et
al. 2025, Eq. 5 to 7) is the importance ratio of a whole sequence, the setting ``ratio: sequence`` of its recipe.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainers.credit.estimators.base import Advantage, register
from trainers.credit.estimators.comparison import STANDARD, Compared, Comparing
from trainers.steps import StepTable


@register("dapo")
@register("gspo")
@register("grpo")
@dataclass(frozen=True)
class GRPO(Comparing):
    """Group-relative advantage (Shao et al. 2024, section 4.1.2, outcome supervision).

    A = (R(τ) - mean_p R) / (std_p R + ε) over the episodes p of one task; every step of an episode gets the
    advantage of the episode. A group without variance, and an episode alone in its group, teach nothing: 0.
    """

    compare: Compared = STANDARD
    """How the episodes of a group are compared."""

    def __call__(self, steps: StepTable) -> Advantage:
        """One advantage per step."""
        values, diagnostics = self.compare.episodes(steps)
        return Advantage(values, diagnostics=diagnostics)
