"""GAGPO: generalised advantages over values that episodes of a task give each other where they meet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainers.credit.estimators.base import Advantage, Estimator, register
from trainers.credit.estimators.comparison import STANDARD, ComparedSteps
from trainers.credit.estimators.groups import Floats, group_codes, group_diagnostics, mean_abs
from trainers.credit.estimators.returns import rewards_to_go, row_score, step_advantages
from trainers.credit.graph import StateGraph
from trainers.settings import Fraction
from trainers.steps import StepTable


@register("gagpo")
@dataclass(frozen=True)
class GAGPO(Estimator):
    """Group-value advantage (arXiv 2605.13217): A_t = δ_t + gamma λ A_{t+1} with δ_t = r_t + gamma V(s_{t+1}) - V(s_t).

    V(s) is the mean discounted return of all visits of s, 0 after the end; there is no critic and no episode term. The
    advantage is then normalised. One reading is open: over which steps. Here it is all steps of a task, as others'
    notes have it; the text could not be had, and there is no code.
    """

    gamma: Fraction = 0.95
    """Discount."""
    lam: Fraction = 0.8
    """λ; 1 is the return minus V(s_t)."""
    over: Literal["task", "none"] = "task"
    """Steps that the advantage is normalised over: those of a task, or it is left as it is."""
    compare: ComparedSteps = STANDARD
    """How steps are compared: ``normalise``, ``ddof`` and ``epsilon``."""

    credits_lone_episodes = False
    """No: steps are compared with those of other episodes, but for states that an episode comes back to."""

    def __call__(self, steps: StepTable) -> Advantage:
        """One advantage per step."""
        raw, task = self.raw(steps), group_codes(steps.group_id)
        advantage = raw if self.over == "none" else self.compare.within(raw, task)
        state = group_codes(steps.group_id, steps.state_key)
        diagnostics = group_diagnostics(raw, state, "step_group") | {"raw_abs": mean_abs(raw)}
        return Advantage(advantage, diagnostics=diagnostics, groups={"advantage": state})

    def values(self, steps: StepTable) -> Floats:
        """Returns V of the state that each step answers, shape (N,)."""
        graph = StateGraph.of(steps)
        penalised_steps = steps.with_reward(steps.reward + row_score(steps))
        return graph.mean(rewards_to_go(penalised_steps, self.gamma))[graph.node]

    def raw(self, steps: StepTable) -> Floats:
        """Returns the advantage before it is normalised, shape (N,)."""
        return step_advantages(steps, self.values(steps), self.gamma, self.lam)
