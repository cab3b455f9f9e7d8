"""BEACON: steps between two milestones of a task are compared with those of other episodes on the same stretch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from trainers.credit.estimators.base import Advantage, Milestones, register
from trainers.credit.estimators.comparison import CENTRED, Comparing, StateComparison, laid_over
from trainers.credit.estimators.groups import (
    Floats,
    Ints,
    episode_codes,
    first_rows,
    group_codes,
    group_diagnostics,
    mean_of,
)
from trainers.credit.estimators.returns import row_score, steps_in_order
from trainers.settings import Fraction
from trainers.steps import StepTable
from trainers.steps.columns import MILESTONE, SUPPLIERS


@register("beacon")
@dataclass(frozen=True)
class BEACON(Comparing):
    """Milestone advantage (arXiv 2605.06078): A = A^E + λ A^S.

    Milestones cut an episode into segments: segment k has the steps after k milestones, up to the one that reaches the
    next. A step n before its milestone earns r gamma^n, and nothing where the episode reaches no further one. A^S
    compares this with all steps of the task in segment k; A^E compares returns of episodes.
    """

    segment_weight: float = 1.0
    """λ; 0 leaves the episode term alone."""
    gamma: Fraction = 0.95
    """Discount per step to the milestone."""
    milestone_reward: float = 10.0
    """r, in units of the scaled reward."""
    penalise: bool = False
    """Add the ``row_score`` of a step, such as the penalty of an invalid action, to what it earns, too (authors'
    code)."""
    compare: Annotated[StateComparison, laid_over(CENTRED)] = CENTRED
    """How episodes and steps are compared."""
    milestones: Milestones = "world"
    """``world``: states of the world, as each environment defines them (docs/methods/beacon.md); ``expert``: the
    actions with which its expert solves the task, in their order."""

    needs = (MILESTONE,)
    """Whether each step reached a milestone."""

    @property
    def milestone_kind(self) -> Milestones:
        """The option ``milestones``."""
        return self.milestones

    own_terms, own_weight = ("segment",), "segment_weight"
    """The term of segments."""

    def __call__(self, steps: StepTable) -> Advantage:
        """One advantage per step.

        Raises:
            MissingColumn: There is no column ``milestone``.
        """
        episode, diagnostics = self.compare.episodes(steps)
        segment, rewards = self.segments(steps), self.milestone_returns(steps)
        group = group_codes(steps.group_id, segment)
        step = self.segment_weight * self.compare.within(rewards, group)
        diagnostics |= group_diagnostics(rewards, group, "segment_group")
        once, milestones = first_rows(of := episode_codes(steps)), self.milestone_mask(steps)
        counts = np.bincount(of, milestones)[of[once]]
        diagnostics |= {"milestones": mean_of(counts), "without_milestone": mean_of(counts == 0)}
        terms = {"episode": episode, "segment": step}
        return Advantage(episode + step, diagnostics=diagnostics, terms=terms, groups={"segment": group})

    def milestone_mask(self, steps: StepTable) -> NDArray[np.bool_]:
        """Returns whether each step reached a milestone, shape (N,).

        Raises:
            MissingColumn: There is no column ``milestone``.
        """
        return np.asarray(steps.column(MILESTONE, "beacon", SUPPLIERS[MILESTONE]), np.bool_)

    def segments(self, steps: StepTable) -> Ints:
        """Returns the number of milestones that its episode had reached before each step, shape (N,)."""
        order, lengths = steps_in_order(steps)
        milestones = self.milestone_mask(steps)[order].astype(np.int64)
        before = np.cumsum(milestones) - milestones
        starts = (np.cumsum(lengths) - lengths)[lengths > 0]
        out = np.empty(len(steps), np.int64)
        out[order] = before - np.repeat(before[starts], lengths[lengths > 0])
        return out

    def milestone_returns(self, steps: StepTable) -> Floats:
        """Returns r gamma^n with n the steps to the next milestone of the episode, 0 where none follows, shape (N,)."""
        order, lengths = steps_in_order(steps)
        place = np.arange(len(steps))
        ends = np.repeat(np.cumsum(lengths), lengths)
        at = np.where(self.milestone_mask(steps)[order], place, len(steps))
        following = np.minimum.accumulate(at[::-1])[::-1]
        ahead = following < ends
        out = np.empty(len(steps))
        out[order] = np.where(ahead, self.milestone_reward * self.gamma ** np.where(ahead, following - place, 0), 0.0)
        return np.asarray(out + row_score(steps), np.float64) if self.penalise else out
