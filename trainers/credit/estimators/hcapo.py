"""HCAPO: steps credited by how likely their responses are once the policy is told how the episode ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from trainers.credit.estimators.base import Advantage, register
from trainers.credit.estimators.comparison import Comparing, StateComparison, laid_over
from trainers.credit.estimators.groups import (
    Floats,
    episode_codes,
    group_codes,
    group_diagnostics,
    group_statistics,
    mean_of,
)
from trainers.credit.estimators.returns import episode_totals, next_in_episode, steps_to_go
from trainers.credit.estimators.tokens import token_means
from trainers.settings import Fraction, NotNegative, Positive
from trainers.steps import StepTable
from trainers.steps.columns import HINDSIGHT, SUCCESS

_EXACT = StateComparison(ddof=0, epsilon=0.0)


@register("hcapo")
@dataclass(frozen=True)
class HCAPO(Comparing):
    """Hindsight credit (arXiv 2603.08754, Eq. 5 to 8): A = A^E + ω max(A^H, 0 in a success).

    π_t = exp(mean log-probability of the response's tokens, told the end, / temperature); rho_t is π_t over its mean in
    the episode, clipped. A^H compares Q_t = rho_t gamma^(L - 1 - t) R among all steps of the task, with R the return of
    the episode, L its length and t from 0. A^E is GRPO's, of the population's deviation.
    """

    weight: float = 1.0
    """ω; 0 is GRPO."""
    gamma: Fraction = 0.95
    """Discount."""
    temperature: Positive = 5.0
    """T_temp, which flattens the hindsight probabilities."""
    clip_low: Fraction = 0.2
    """rho is at least 1 - clip_low."""
    clip_high: NotNegative = 0.2
    """rho is at most 1 + clip_high."""
    alpha: Fraction = 1.0
    """Q_t becomes alpha Q_t + (1 - alpha) Q_{t+1}, but for the last step's; 1 leaves it as it is (paper's variant:
    0.5)."""
    over: Literal["task", "time"] = "task"
    """The steps that A^H compares: all of the task (section 5.2, Algorithm 1), or those of the task at the same t (the
    text of Eq. 8)."""
    harmless: bool = True
    """A negative A^H in a successful episode becomes 0."""
    compare: Annotated[StateComparison, laid_over(_EXACT)] = _EXACT
    """How episodes and steps are compared; the paper leaves ``ddof`` and ``epsilon`` open."""

    needs = (HINDSIGHT, SUCCESS)
    """The log-probabilities in hindsight, and which episodes succeeded."""

    own_terms, own_weight = ("hindsight",), "weight"
    """The hindsight term."""

    def __call__(self, steps: StepTable) -> Advantage:
        """One advantage per step."""
        episode, diagnostics = self.compare.episodes(steps)
        ratio = self.ratios(steps)
        value = self.values(steps, ratio)
        term = self.weight * self.step_term(steps, value)
        won = _won(steps)
        ratio, tokens = ratio[won], steps.response.lengths[won]
        low, high = 1.0 - self.clip_low, 1.0 + self.clip_high
        diagnostics |= group_diagnostics(value, self._group_of(steps), "step_group")
        diagnostics |= {
            "ratio_mean": mean_of(ratio),
            "ratio_std": float(ratio.std()) if len(ratio) else 0.0,
            "ratio_clipped": mean_of((ratio <= low) | (ratio >= high)),
            "hindsight_logprob": mean_of(token_means(steps, HINDSIGHT, "hcapo")[won]),
            "response_length": mean_of(tokens),
        }
        return Advantage(episode + term, diagnostics=diagnostics, terms={"episode": episode, "hindsight": term})

    def ratios(self, steps: StepTable) -> Floats:
        """Returns rho of each step, shape (N,); 1 where all steps of an episode are equally likely."""
        likely, episode = token_means(steps, HINDSIGHT, "hcapo") / self.temperature, episode_codes(steps)
        # The largest of the episode cancels in the ratio, and keeps exp from 0 / 0.
        most = np.full(int(episode.max(initial=-1)) + 1, -np.inf)
        np.maximum.at(most, episode, likely)
        probability = np.exp(likely - most[episode])
        ratio = probability / group_statistics(probability, episode).mean
        return np.asarray(np.clip(ratio, 1.0 - self.clip_low, 1.0 + self.clip_high), np.float64)

    def values(self, steps: StepTable, ratio: Floats) -> Floats:
        """Returns Q of each step, smoothed, shape (N,); ``ratio`` is rho."""
        value = ratio * self.gamma ** (steps_to_go(steps) - 1.0) * episode_totals(steps)
        return self.alpha * value + (1.0 - self.alpha) * next_in_episode(steps, value, value)

    def step_term(self, steps: StepTable, value: Floats) -> Floats:
        """Returns A^H, shape (N,); ``value`` is Q."""
        term = self.compare.within(value, self._group_of(steps))
        return np.where(_won(steps), np.maximum(term, 0.0), term) if self.harmless else term

    def _group_of(self, steps: StepTable) -> np.ndarray:
        return group_codes(steps.group_id) if self.over == "task" else group_codes(steps.group_id, steps.t)


def _won(steps: StepTable) -> np.ndarray:
    return np.asarray(steps.column(SUCCESS, "hcapo", "the rollout"), np.bool_)
