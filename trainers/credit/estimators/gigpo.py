"""GiGPO: groups of episodes, and groups of steps that answer the same state."""

from __future__ import annotations

from dataclasses import dataclass

from trainers.credit.estimators.base import Advantage, register
from trainers.credit.estimators.comparison import STANDARD, Compared, ComparedSteps, Comparing
from trainers.credit.estimators.groups import Floats, Ints, group_codes, group_diagnostics, similar_codes
from trainers.credit.estimators.returns import discounted_returns
from trainers.settings import Fraction, Share
from trainers.steps import StepTable


@register("gigpo")
@dataclass(frozen=True)
class GiGPO(Comparing):
    """Group-in-group advantage (Feng et al. 2025): A = A^E + ω A^S.

    A^E is GRPO's, over the episodes of a task. A^S compares the returns to go of all steps of these episodes that
    answer the same state (several visits of one episode included): (R_t - mean) / (std + ε). A step whose state
    nobody else met has A^S = 0.
    """

    step_weight: float = 1.0
    """ω, the weight of the step term; 0 is GRPO."""
    gamma: Fraction = 0.95
    """Discount of the return to go in the step term."""
    compare: Compared = STANDARD
    """How episodes are compared, and steps unless ``compare_step`` says otherwise."""
    compare_step: ComparedSteps | None = None
    """How steps are compared: ``normalise``, ``ddof`` and ``epsilon``; as ``compare`` where not given."""
    similarity: Share | None = None
    """Join states whose keys are at least this similar (``difflib`` ratio in (0, 1]); exact match where not given.
    Greedy in row order, as the original, and meaningful only where state keys are text."""

    own_terms, own_weight = ("step",), "step_weight"
    """The step term."""

    def __call__(self, steps: StepTable) -> Advantage:
        """One advantage per step."""
        episode, diagnostics = self.compare.episodes(steps)
        group, returns = self.step_groups(steps), discounted_returns(steps, self.gamma)
        step = self.step_weight * self.step_term(returns, group)
        diagnostics |= group_diagnostics(returns, group, "step_group")
        terms = {"episode": episode, "step": step}
        return Advantage(episode + step, diagnostics=diagnostics, terms=terms, groups={"step": group})

    def step_groups(self, steps: StepTable) -> Ints:
        """Code of each row's step group, shape (N,), numbered in the order of first appearance."""
        if self.similarity is None:
            return group_codes(steps.group_id, steps.state_key)
        return similar_codes(group_codes(steps.group_id), steps.state_key, self.similarity)

    def step_term(self, returns: Floats, group: Ints) -> Floats:
        """A^S before its weight, shape (N,)."""
        return (self.compare_step or self.compare).within(returns, group)
