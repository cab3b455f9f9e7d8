"""HGPO: step groups of equal state, and within them of equal history."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from trainers.credit.estimators.base import Advantage, register
from trainers.credit.estimators.comparison import Comparing, StateComparison, laid_over
from trainers.credit.estimators.groups import Floats, Ints, group_codes, group_diagnostics, mean_of
from trainers.credit.estimators.returns import discounted_returns, steps_in_order
from trainers.settings import Count, Fraction, NotNegative, Positive
from trainers.steps import StepTable

POPULATION = StateComparison(ddof=0)


@register("hgpo")
@dataclass(frozen=True)
class HGPO(Comparing):
    """Hierarchy-of-groups advantage (He et al. 2026, Eq. 3 to 7).

    Group k of a step holds the steps of its task that answer the same state after the same k states, k = 0 … depth:
    G_0 ⊇ G_1 ⊇ … ⊇ G_K. A_k = (R_t - mean_k) / (std_k + ε) with the discounted return to go, and
    A = Σ w_k A_k / Σ w_k with w_k = (k + 1)^alpha over the groups in which the step's advantage is not zero.
    """

    depth: Count = 2
    """K, the longest history that two steps must share (2 and 4 in the paper); 0 is GiGPO's step term."""
    alpha: NotNegative = 1.0
    """Exponent of the weights; 0 weighs all groups alike."""
    gamma: Fraction = 0.95
    """Discount of the return to go."""
    compare: Annotated[StateComparison, laid_over(POPULATION)] = POPULATION
    """How steps and episodes are compared. ``ddof`` is that of steps (authors' code: 0); episodes always have 1."""
    omit_zero: bool = True
    """Leave groups in which the step's advantage is zero out of the weighting; without it Eq. 7 as it is printed."""
    short_history: Literal["shorten", "skip"] = "shorten"
    """Steps with fewer than k steps before them: their group k is that of their whole history (Eq. 3), or they have
    none (``"skip"``, the authors' code)."""
    first_weight: Positive = 1.0
    """w_k = (k + first_weight)^alpha; the authors' code has 2."""
    weight_epsilon: NotNegative = 0.0
    """Added to Σ w_k; the authors' code has 1e-6."""
    episode_term: bool = False
    """The episode's advantage, as GRPO has it, is one more item of weight 1 (the ablation "w Eq. (1)")."""

    @property
    def distinguishing(self) -> tuple[str, ...]:
        """The groups of equal history; with ``depth`` 0 those of equal state."""
        return tuple(f"level_{k}" for k in range(1, self.depth + 1)) or ("level_0",)

    def __call__(self, steps: StepTable) -> Advantage:
        """One advantage per step."""
        returns, (groups, exists) = discounted_returns(steps, self.gamma), self.levels(steps)
        items, weights = self.items(steps, returns, groups, exists), self.weights()
        counts = items != 0.0 if self.omit_zero else np.vstack([exists, np.ones_like(items[len(exists) :], np.bool_)])
        total = weights @ counts + self.weight_epsilon
        diagnostics: dict[str, float] = {}
        for k, (group, there) in enumerate(zip(groups, exists, strict=True)):
            diagnostics |= group_diagnostics(returns[there], group[there], f"level_{k}")
            diagnostics[f"level_{k}/step_utilisation"] = mean_of(items[k] != 0.0)
        total = np.where(total > 0.0, total, 1.0)
        names = [*(f"level_{k}" for k in range(self.depth + 1)), "episode"]
        whole = (weights @ (items * counts)) / total
        terms = dict(zip(names, weights[:, None] * items * counts / total, strict=False))
        of_level = dict(zip(names, groups, strict=False))
        return Advantage(whole, diagnostics=diagnostics, terms=terms, groups=of_level)

    def levels(self, steps: StepTable) -> tuple[Ints, NDArray[np.bool_]]:
        """Group of each step at each level, and whether the step has one there; both of shape (depth + 1, N)."""
        order, lengths = steps_in_order(steps)
        previous = np.full(len(steps), -1)
        previous[order[1:]] = order[:-1]
        previous[order[np.cumsum(lengths) - lengths]] = -1
        state, code, row = group_codes(steps.state_key), steps.group_id, np.arange(len(steps))
        groups, exists = [], []
        for _ in range(self.depth + 1):
            # Equal in the last k states, and in the one before them, or both without one.
            code = group_codes(code, np.where(row >= 0, state[row], -1))
            groups.append(code)
            exists.append((row >= 0) | (self.short_history == "shorten"))
            row = np.where(row >= 0, previous[row], -1)
        return np.stack(groups), np.stack(exists)

    def items(self, steps: StepTable, returns: Floats, groups: Ints, exists: NDArray[np.bool_]) -> Floats:
        """A_k of each level, then the episode term where it takes part, shape (items, N); 0 where there is none."""
        items = [np.where(exists[k], self.compare.within(returns, group), 0.0) for k, group in enumerate(groups)]
        if self.episode_term:
            items.append(replace(self.compare, ddof=1).episodes(steps)[0])
        return np.stack(items)

    def weights(self) -> Floats:
        """w_k of each item before it is divided by their sum."""
        levels = np.asarray((np.arange(self.depth + 1) + self.first_weight) ** self.alpha, np.float64)
        return np.append(levels, np.ones(int(self.episode_term)))
