"""Tree-GRPO: episodes compared within their task, and within the tree whose steps they share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trainers.credit.estimators.base import Advantage, register
from trainers.credit.estimators.comparison import STANDARD, Compared, Comparing
from trainers.credit.estimators.groups import Ints, episode_codes, first_rows, group_codes, group_diagnostics
from trainers.credit.estimators.returns import episode_returns
from trainers.steps import StepTable
from trainers.steps.columns import SUPPLIERS, TREE


@register("tree_grpo")
@dataclass(frozen=True)
class TreeGRPO(Comparing):
    """Tree-based group relative advantage (arXiv 2509.21240): A = A^inter + A^intra, for all steps of a leaf's path.

    A leaf is an episode. A^inter compares its return with those of all leaves of the task, A^intra with those of its
    tree, in which episodes have their first steps in common.
    """

    combine: Literal["sum", "tree_2norm", "tree_inner"] = "sum"
    """``sum`` of both terms; ``tree_2norm`` compares A^inter within the tree in place of the return, and is that;
    ``tree_inner`` is A^intra alone."""
    lone_leaf: Literal["zero", "raw"] = "zero"
    """The tree's term of a leaf alone in its tree: 0 (with ``tree_2norm``, A^inter as it is); or, as in the authors'
    code, the return itself, as if mean and deviation of the tree were 0 and 1."""
    compare: Compared = STANDARD
    """How leaves are compared, in both terms."""

    needs = (TREE,)
    """The tree of each episode."""

    @property
    def credits_lone_episodes(self) -> bool:
        """Whether an episode alone in task or tree has its raw return."""
        return "raw" in (self.compare.singleton, self.lone_leaf)

    @property
    def distinguishing(self) -> tuple[str, ...]:
        """The comparison within trees."""
        return ("intra",) if self.combine == "sum" else ()

    def __call__(self, steps: StepTable) -> Advantage:
        """One advantage per step.

        Raises:
            MissingColumn: There is no column ``tree``.
        """
        task = group_codes(steps.group_id)
        tree = group_codes(steps.group_id, steps.column(TREE, "tree_grpo", SUPPLIERS[TREE]))
        returns, once = episode_returns(steps), first_rows(episode_codes(steps))
        samples = once if self.compare.weigh == "episode" else None
        inter = self.compare.within(returns, task, samples=samples, singleton=self.compare.singleton)
        values = inter if self.combine == "tree_2norm" else returns
        intra = self.compare.within(values, tree, samples=samples, singleton=self.lone_leaf)
        diagnostics = group_diagnostics(returns[once], task[once], "group")
        diagnostics |= group_diagnostics(returns[once], tree[once], "tree")
        if self.combine == "tree_inner":
            return Advantage(intra, diagnostics=diagnostics)
        if self.combine == "sum":
            return Advantage(inter + intra, diagnostics=diagnostics, terms={"inter": inter, "intra": intra})
        if self.lone_leaf == "zero":
            intra = np.where(_alone(tree, samples), inter, intra)
        return Advantage(intra, diagnostics=diagnostics)


def _alone(group: Ints, samples: Ints | None) -> NDArray[np.bool_]:
    """Returns whether one sample is all that a row's group has, shape (N,)."""
    members = group if samples is None else group[samples]
    return np.asarray(np.bincount(members, minlength=int(group.max(initial=-1)) + 1)[group] == 1)
