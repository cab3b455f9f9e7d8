"""GraphGPO: a step is credited by how near to success it leads, on the graph of all states of a task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from trainers.credit.estimators.base import Advantage, register
from trainers.credit.estimators.comparison import STANDARD, Compared, Comparing
from trainers.credit.estimators.groups import Floats, group_codes, group_diagnostics
from trainers.credit.estimators.returns import row_score
from trainers.credit.graph import Solved, StateGraph
from trainers.settings import Share
from trainers.steps import StepTable
from trainers.steps.columns import NEXT_STATE, SUCCESS


@register("graphgpo")
@dataclass(frozen=True)
class GraphGPO(Comparing):
    """Advantage from shortest distances to success (arXiv 2605.26684): A = w_E A^E + w_G A^G.

    The states of a task's episodes form a graph whose edges are their steps. With d the fewest edges to success, a step
    from s to s' earns R^G = r ω^(d(s') - d(s) + 1), and A^G compares the steps that answer the same state. Where
    success cannot be reached, d is the longest distance of the task plus one. A^E is GRPO's. The authors' code is
    ``exponent: code``, ``solved: return``, ``penalise: true``, ``compare: verl-agent``.
    """

    omega: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """ω, by which a reward shrinks with each step to success (ALFWorld 0.1, WebShop 0.2, Sokoban 0.8)."""
    graph_weight: float = 1.0
    """w_G; 0 is GRPO."""
    episode_weight: float = 1.0
    """w_E."""
    success_reward: float = 10.0
    """r."""
    exponent: Literal["change", "paper", "code"] = "change"
    """Exponent of ω: ``change`` is d(s') - d(s) + 1 (the authors' normalize_distance), ``paper`` d(s') + 1, ``code``
    d(s'). With the latter two rewards shrink below ε seven steps from success (at ω = 0.1), and steps further away get
    no credit; the first differs from them by a factor for each state, and does not fade."""
    solved: Solved = "success"
    """Which episodes end at success: those that solved their task, or (authors' code) whose return is above 0."""
    penalise: bool = False
    """Add the ``row_score`` of a step, such as the penalty of an invalid action, to R^G, too (authors' code). At
    ω = 0.1 it exceeds every difference beyond two steps from success, and turns signs."""
    similarity: Share | None = None
    """Join nodes of the graph whose keys are at least this similar; the steps that are compared have equal keys."""
    compare: Compared = STANDARD
    """How episodes and steps are compared."""

    @property
    def needs(self) -> tuple[str, ...]:
        """The state that each step led to, and whether its episode was solved."""
        return (NEXT_STATE, SUCCESS) if self.solved == "success" else (NEXT_STATE,)

    own_terms, own_weight = ("step",), "graph_weight"
    """The step term."""

    def __call__(self, steps: StepTable) -> Advantage:
        """One advantage per step.

        Raises:
            MissingColumn: A column that it needs is not there.
        """
        episode, diagnostics = self.compare.episodes(steps)
        graph = self.graph(steps)
        group = graph.node if self.similarity is None else group_codes(steps.group_id, steps.state_key)
        rewards = self.step_rewards(steps, graph)
        step = self.graph_weight * self.compare.within(rewards, group)
        diagnostics |= group_diagnostics(rewards, group, "step_group") | graph.diagnostics()
        terms = {"episode": self.episode_weight * episode, "step": step}
        return Advantage(terms["episode"] + step, diagnostics=diagnostics, terms=terms, groups={"step": group})

    def graph(self, steps: StepTable) -> StateGraph:
        """Returns the graph on which distances are measured."""
        return StateGraph.of(steps, self.solved, self.similarity)

    def step_rewards(self, steps: StepTable, graph: StateGraph) -> Floats:
        """R^G of each step, shape (N,)."""
        before, after = graph.distance[graph.node], graph.distance[graph.following]
        exponent = {"change": after - before + 1, "paper": after + 1, "code": after}[self.exponent]
        rewards = self.success_reward * np.power(self.omega, exponent.astype(np.float64))
        return np.asarray(rewards + row_score(steps), np.float64) if self.penalise else rewards
