"""Oracle: Q - V by Monte Carlo, the credit that every other method estimates without further episodes."""

from __future__ import annotations

from dataclasses import dataclass

from trainers.credit.estimators.base import Advantage, Estimator, States, register
from trainers.credit.estimators.groups import Floats, mean_of
from trainers.credit.estimators.returns import finite_column, row_score
from trainers.settings import AtLeastOne, Fraction
from trainers.steps import StepTable
from trainers.steps.columns import MC_VALUE, NEXT_MC_VALUE, STEP_SCORE, SUPPLIERS


@register("oracle_mc")
@dataclass(frozen=True)
class OracleMC(Estimator):
    """Advantage of the step under the policy that made it: A = r + gamma V(s') - V(s).

    V is the mean return of episodes that the run continues from the state. None of them is the
    step's own, so that given s, r and s' the estimate has no bias, whatever was sampled there; its variance is
    (gamma² Var(s') + Var(s)) / K, with the variances of the return from these states and K continuations of each.
    """

    gamma: Fraction = 1.0
    """Discount, of the continuations' returns, too."""
    continuations: AtLeastOne = 8
    """Episodes per state. They cost about this number times half the steps of an episode for each step."""
    states: States = "exact"
    """``exact``: steps share a state where nothing tells apart what may follow. ``key``: where prompt and state key are
    equal, however many steps were made; every visit of a continuation counts for the state that it visits, so that few
    continuations measure many states. Exact but for the time limit, if the state key is the whole state."""

    needs = (MC_VALUE, NEXT_MC_VALUE)
    """Values of the state that a step answers, and of the one that it leads to."""

    @property
    def continued(self) -> tuple[int, States]:
        """The options ``continuations`` and ``states``."""
        return self.continuations, self.states

    def __call__(self, steps: StepTable) -> Advantage:
        """One advantage per step; the columns ``row_score`` and ``step_score`` are added to their own row.

        Raises:
            MissingColumn: There is no column ``mc_value`` or ``next_mc_value``.
            UsageError: A value is not finite.
        """
        before, after = (finite_column(steps, name, "oracle_mc", SUPPLIERS[name]) for name in self.needs)
        score: Floats = row_score(steps)
        if STEP_SCORE in steps.extra:
            score = score + finite_column(steps, STEP_SCORE, "oracle_mc", "the shaper scpo")
        advantage = steps.reward + self.gamma * after - before + score
        diagnostics = {"value_mean": mean_of(before), "value_std": float(before.std()) if len(steps) else 0.0}
        return Advantage(advantage, diagnostics=diagnostics)
