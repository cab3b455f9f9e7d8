"""Reward shapers: they change the environment's own reward for training."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import numpy as np

from trainers.credit.estimators.groups import Floats
from trainers.credit.estimators.returns import env_reward
from trainers.credit.estimators.tokens import row_means
from trainers.settings import NotNegative, Positive, check_fields
from trainers.settings.registry import Registry
from trainers.steps import StepTable
from trainers.steps.columns import OLD, REFERENCE, ROW_SCORE, SUPPLIERS, TOKEN_REWARD

Reach = Literal["episode", "row"]
Divergence = Literal["k1", "abs", "k2", "k3"]
Per = Literal["step", "token"]

DIAGNOSTIC = "shape/"
"""Prefix of a shaper's diagnostic columns; their means over the steps are logged."""


class Shaper(ABC):
    """Changes the rewards of steps: its settings are its fields, and calling it returns the shaped steps."""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def needs(self) -> tuple[str, ...]:
        """Columns that the shaper reads besides the table's own (:mod:`trainers.steps.columns`)."""
        return ()

    @property
    def effect(self) -> str | None:
        """Column that the shaper writes in failed episodes of tasks with a success, where it does; it is watched."""
        return None

    @abstractmethod
    def __call__(self, steps: StepTable) -> StepTable:
        """The shaped steps, in the same order; rows are those of whole groups."""


SHAPERS: Registry[Shaper] = Registry("shaper", group="trainers.shapers")


@SHAPERS.register("scale")
@dataclass(frozen=True)
class Scale(Shaper):
    """Multiply the environment's reward, which is at most 1 for a solved task.

    Published settings reward a success with 10 and charge an invalid action 0.1. Penalties and credits of other shapers
    are in units of the scaled reward; their order does not matter.
    """

    factor: Positive = 10.0
    """Reward of a solved task (GiGPO, HGPO, SCPO: 10)."""

    def __call__(self, steps: StepTable) -> StepTable:
        """Returns the steps with the environment's part of their reward multiplied."""
        return steps.with_reward(steps.reward + (self.factor - 1.0) * env_reward(steps))


@SHAPERS.register("invalid_action_penalty")
@dataclass(frozen=True)
class InvalidActionPenalty(Shaper):
    """Take a fixed amount from the reward of each step whose action was malformed or refused."""

    coef: NotNegative = 0.1
    """Cost of an invalid action, in units of the scaled reward."""
    reach: Reach = "episode"
    """``"episode"``: part of the step's reward, so it counts in the return of the episode and of earlier steps.
    ``"row"``: taken from the invalid step's own scores after summing and discounting (verl-agent)."""

    def __call__(self, steps: StepTable) -> StepTable:
        """Returns the steps, with the penalty on the invalid ones."""
        penalty = np.where(steps.valid, 0.0, -self.coef)
        if self.reach == "episode":
            return steps.with_reward(steps.reward + penalty)
        if ROW_SCORE in steps.extra:
            penalty = penalty + steps.extra[ROW_SCORE]
        return steps.with_columns(**{ROW_SCORE: penalty})


@SHAPERS.register("kl_penalty")
@dataclass(frozen=True)
class KLPenalty(Shaper):
    """Take the divergence from the reference policy, times ``coef``, from the reward (Ouyang et al. 2022, Eq. 2).

    The reference is the model that the run starts from. With d = log π_old - log π_ref of a sampled token, it pays
    ``k1``: d, ``abs``: |d|, ``k2``: d²/2, ``k3``: exp(-d) - 1 + d (Schulman 2020). π_old is the policy of the
    importance ratio (``optim.old_logprobs``): the trainer's, as π_ref is, unless the engine computes alike.
    """

    coef: NotNegative = 0.001
    """Penalty per nat (verl's default)."""
    estimator: Divergence = "k1"
    """Estimator of the divergence."""
    per: Per = "step"
    """``"step"``: the sum over a step's tokens is taken from the reward of the step, which every method reads.
    ``"token"``: each token pays its own, which only methods with rewards per token read (reinforce_pp, ppo, remax)."""

    needs = (REFERENCE, OLD)
    """The log-probabilities of the reference, and of the policy where the engine's are others."""

    def __call__(self, steps: StepTable) -> StepTable:
        """Returns the steps with the penalty on their rewards, or on those of their tokens.

        Raises:
            MissingColumn: There is no token column ``ref_logprob``.
        """
        kl = self.divergence(steps)
        steps = steps.with_columns(**{f"{DIAGNOSTIC}kl": row_means(steps, kl)})
        if self.per == "step":
            return steps.with_reward(steps.reward - self.coef * np.bincount(steps.response.row_of, kl, len(steps)))
        rewards = steps.token_extra[TOKEN_REWARD].values if TOKEN_REWARD in steps.token_extra else 0.0
        return steps.with_token_columns(**{TOKEN_REWARD: rewards - self.coef * kl})

    def divergence(self, steps: StepTable) -> Floats:
        """Returns the estimate of the divergence at each response token, in the order of ``response.values``."""
        reference = steps.token_column(REFERENCE, "kl_penalty", SUPPLIERS[REFERENCE]).astype(np.float64)
        d = steps.token_extra.get(OLD, steps.logprob).values.astype(np.float64) - reference
        if self.estimator == "k1":
            return d
        if self.estimator == "abs":
            return np.abs(d)
        return 0.5 * d * d if self.estimator == "k2" else np.expm1(-d) + d
