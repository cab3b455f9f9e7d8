"""PGPO: potential differences between states, which count the more the fewer episodes succeed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainers.credit.estimators.base import Advantage, Estimator, register
from trainers.credit.estimators.comparison import STANDARD, ComparedSteps
from trainers.credit.estimators.groups import (
    Floats,
    episode_codes,
    first_rows,
    group_codes,
    group_diagnostics,
    group_statistics,
    mean_of,
)
from trainers.credit.estimators.returns import (
    discounted_returns,
    episode_totals,
    next_in_episode,
    rewards_to_go,
    steps_to_go,
)
from trainers.credit.graph import StateGraph
from trainers.settings import Fraction, NotNegative
from trainers.steps import StepTable


@register("pgpo")
@dataclass(frozen=True)
class PGPO(Estimator):
    """Potential-guided advantage (arXiv 2609.02236, Eq. 1 to 11): A = A^S + β (1 - p)^alpha A^φ; no episode term.

    R_t is the return to go with discount η, and A^S compares it among the steps from the same state, as GiGPO's step
    term. Φ(s) is the mean R_t of all visits of s; A^φ compares gamma Φ(s') - Φ(s) among these steps, with the return of
    the episode in place of Φ(s') at its end. p is the share of the task's episodes whose return is above 0.
    """

    eta: Fraction = 0.95
    """η."""
    gamma: Fraction = 1.0
    """Discount."""
    alpha: NotNegative = 2.0
    """Power of the share of failures; 0 is a fixed weight."""
    beta: float = 1.0
    """β; 0 is the step term of GiGPO."""
    leave_one_out: bool = False
    """Leave the episode's own visit out of Φ (appendix D.2); a state that nobody else met has Φ = 0."""
    compare: ComparedSteps = STANDARD
    """How steps are compared: ``normalise``, ``ddof`` and ``epsilon``."""

    credits_lone_episodes = False
    """No: steps are compared with those of other episodes, but for states that an episode comes back to."""

    @property
    def distinguishing(self) -> tuple[str, ...]:
        """The potential term, or with ``beta`` 0 the step term."""
        return ("potential",) if self.beta else ("step",)

    def __call__(self, steps: StepTable) -> Advantage:
        """One advantage per step."""
        returns, state = discounted_returns(steps, self.eta), group_codes(steps.group_id, steps.state_key)
        step = self.compare.within(returns, state)
        potential = self.compare.within(self.differences(steps), state)
        weight = self.weights(steps)
        diagnostics = group_diagnostics(returns, state, "step_group")
        diagnostics["potential_weight"] = mean_of(weight)
        terms = {"step": step, "potential": weight * potential}
        groups = dict.fromkeys(terms, state)
        return Advantage(step + terms["potential"], diagnostics=diagnostics, terms=terms, groups=groups)

    def potentials(self, steps: StepTable) -> tuple[Floats, Floats]:
        """Returns Φ of the state that each step answers, and of the one it leads to (0 at the end), both shape (N,)."""
        graph, returns = StateGraph.of(steps), rewards_to_go(steps, self.eta)
        before = graph.mean(returns)[graph.node]
        if self.leave_one_out:
            peers = graph.visits[graph.node] - 1
            before = np.where(peers > 0, (before * (peers + 1) - returns) / np.maximum(peers, 1), 0.0)
        return before, next_in_episode(steps, before)

    def differences(self, steps: StepTable) -> Floats:
        """Returns gamma Φ(s') - Φ(s) of each step, shape (N,)."""
        before, after = self.potentials(steps)
        return self.gamma * np.where(steps_to_go(steps) == 1, episode_totals(steps), after) - before

    def weights(self, steps: StepTable) -> Floats:
        """Returns β (1 - p)^alpha of each step's task, shape (N,)."""
        won = (episode_totals(steps) > 0.0).astype(np.float64)
        share = group_statistics(won, group_codes(steps.group_id), samples=first_rows(episode_codes(steps))).mean
        return np.asarray(self.beta * (1.0 - share) ** self.alpha, np.float64)
