"""RewardFlow: success propagated back over the graph of all states of a task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from trainers.credit.estimators.base import Advantage, register
from trainers.credit.estimators.comparison import CENTRED, Centred, Comparing
from trainers.credit.estimators.groups import Floats, episode_codes, group_diagnostics
from trainers.credit.estimators.returns import row_score, steps_in_order
from trainers.credit.graph import StateGraph
from trainers.steps import StepTable
from trainers.steps.columns import NEXT_STATE, SUCCESS


@register("rewardflow")
@dataclass(frozen=True)
class RewardFlow(Comparing):
    """Propagated rewards (arXiv 2603.18859): A = A^E + w A^S, both relative to a mean and not to a deviation.

    V(s) = max gamma^k r(s') over all s' that can be reached from s in k edges, with r(s') the reward for arriving
    there: with a single reward at success, r gamma^d(s). A step from s to s' earns V(s') - V(s), and A^S compares this
    among the steps from the same state.
    """

    gamma: Annotated[float, Field(gt=0, lt=1)] = 0.9
    """Discount per step to success (search tasks 0.95)."""
    step_weight: float = 1.0
    """w; 0 is Dr. GRPO."""
    arrival: Literal["best", "first"] = "best"
    """r(s') where several steps arrive: the greatest reward, or (authors' code) that of the first visit, which is 0
    where an episode begins."""
    longest: Literal["end", "rewardflow_code"] = "end"
    """The last step of the longest episodes: it leads to the end of the episode as all others do; or, as in the
    authors' code, nowhere, and earns its reward as it is."""
    penalise: bool = False
    """Add the ``row_score`` of a step, such as the penalty of an invalid action, to what it earns (authors' code)."""
    compare: Centred = CENTRED
    """How episodes and steps are compared."""

    needs = (NEXT_STATE, SUCCESS)
    """The state that each step led to, and whether its episode was solved."""

    own_terms, own_weight = ("step",), "step_weight"
    """The step term."""

    def __call__(self, steps: StepTable) -> Advantage:
        """One advantage per step.

        Raises:
            MissingColumn: A column that it needs is not there.
        """
        episode, diagnostics = self.compare.episodes(steps)
        graph = StateGraph.of(steps, "success")
        gain, state = self.value_gains(steps, graph), graph.node
        step = self.step_weight * self.compare.within(gain, state)
        diagnostics |= group_diagnostics(gain, state, "step_group") | graph.diagnostics()
        terms = {"episode": episode, "step": step}
        return Advantage(episode + step, diagnostics=diagnostics, terms=terms, groups={"step": state})

    def value_gains(self, steps: StepTable, graph: StateGraph) -> Floats:
        """Returns V(s') - V(s) of each step, shape (N,)."""
        leads = np.ones(len(steps), np.bool_)
        if self.longest == "rewardflow_code":
            episode = episode_codes(steps)
            lengths = np.bincount(episode)[episode]
            leads = ~(graph.last & (lengths == lengths.max(initial=0)))
        value = graph.spread(self.on_arrival(steps, graph, leads), self.gamma, leads)
        gain = np.where(leads, value[graph.following] - value[graph.node], steps.reward)
        return gain + row_score(steps) if self.penalise else gain

    def on_arrival(self, steps: StepTable, graph: StateGraph, leads: NDArray[np.bool_]) -> Floats:
        """Returns the reward for arriving at each node, at least 0, shape (M,).

        Args:
            steps: The steps.
            graph: Their graph.
            leads: Steps that arrive somewhere, shape (N,).
        """
        out = np.zeros(len(graph.group))
        if self.arrival == "best":
            np.maximum.at(out, graph.following[leads], steps.reward[leads])
            return out
        order, lengths = steps_in_order(steps)
        starts = order[(np.cumsum(lengths) - lengths)[lengths > 0]]
        time = np.empty(len(steps), np.int64)
        time[order] = np.arange(len(steps))
        visits = np.concatenate([graph.node[starts], graph.following[leads]])
        rewards = np.concatenate([np.zeros(len(starts)), np.maximum(steps.reward[leads], 0.0)])
        latest = np.argsort(-np.concatenate([2 * time[starts], 2 * time[leads] + 1]))
        out[visits[latest]] = rewards[latest]  # of equal nodes, the first visit is written last
        return out
