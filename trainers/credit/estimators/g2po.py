"""G2PO: values of states from the episodes that met there, and steps credited by what they change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from trainers.credit.estimators.base import Advantage, register
from trainers.credit.estimators.comparison import STANDARD, Compared, Comparing
from trainers.credit.estimators.groups import Floats, group_codes, group_diagnostics, mean_abs
from trainers.credit.estimators.returns import episode_totals, steps_to_go
from trainers.credit.graph import StateGraph
from trainers.settings import Fraction
from trainers.steps import StepTable


@register("g2po")
@dataclass(frozen=True)
class G2PO(Comparing):
    """Graph-based advantage (arXiv 2606.22995): A = A^E + w (A^N + A^D).

    V(s) is the mean over all visits of s of gamma^(L - t) R, with R the return of the visiting episode, L its length
    and t from 0. The node term A^N compares V(s') among the steps from the same state, the edge term A^D compares
    V(s') - V(s) among all steps of the task; the value of an episode's end is its return. A^E is GRPO's.
    """

    step_weight: float = 1.0
    """w; 0 is GRPO."""
    gamma: Fraction = 0.95
    """Discount."""
    end_value: Literal["return", "g2po_code"] = "return"
    """Value of an episode's end: its return; or, as in the authors' code, 10 where the return is exactly 10, else 0,
    0.1 less for the node term after an invalid action, and not a number in a task of one step."""
    compare: Compared = STANDARD
    """How episodes and steps are compared."""

    own_terms, own_weight = ("node", "edge"), "step_weight"
    """The node and the edge term."""

    def __call__(self, steps: StepTable) -> Advantage:
        """One advantage per step."""
        episode, diagnostics = self.compare.episodes(steps)
        before, after = self.values(steps)
        state, task = group_codes(steps.group_id, steps.state_key), group_codes(steps.group_id)
        node = self.compare.within(self.node_values(steps, after), state)
        edge = self.compare.within(after - before, task)
        if self.end_value == "g2po_code" and self.compare.normalise == "std":
            edge = np.where(np.bincount(task)[task] == 1, np.nan, edge)
        diagnostics |= group_diagnostics(after, state, "step_group")
        diagnostics["edge_abs"] = mean_abs(after - before)
        terms = {"episode": episode, "node": self.step_weight * node, "edge": self.step_weight * edge}
        total = episode + self.step_weight * (node + edge)
        return Advantage(total, diagnostics=diagnostics, terms=terms, groups={"node": state})

    def values(self, steps: StepTable) -> tuple[Floats, Floats]:
        """Returns V of the state that each step answers, and of the one that it leads to, both of shape (N,)."""
        graph, total = StateGraph.of(steps), episode_totals(steps)
        value = graph.mean(self.gamma ** steps_to_go(steps) * total)
        if self.end_value == "return":
            end = total
        else:
            end = np.where(total == 10.0, 10.0, 0.0)
        return value[graph.node], np.where(graph.last, end, value[graph.following])

    def node_values(self, steps: StepTable, after: Floats) -> Floats:
        """Returns what the node term compares."""
        return after if self.end_value == "return" else after - 0.1 * ~steps.valid
