"""Reward shapers: what training adds to the environment's own reward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import numpy as np

from envsuite.core.errors import UsageError, unknown
from trainers.estimators.shared import ROW_SCORE
from trainers.registry import Registry
from trainers.steps import StepTable

Reach = Literal["episode", "row"]


class Shaper(Protocol):
    """A step table with another reward: its settings are its fields."""

    def __call__(self, steps: StepTable) -> StepTable:
        """The shaped steps, in the same order."""
        ...


SHAPERS: Registry[Shaper] = Registry("shaper")


@SHAPERS.register("invalid_action_penalty")
@dataclass(frozen=True)
class InvalidActionPenalty:
    """Take a fixed amount from the reward of each step whose action was malformed or refused."""

    coef: float = 0.1
    """What an invalid action costs, in units of the environment's reward."""
    reach: Reach = "episode"
    """``"episode"``: part of the step's reward, so it counts in the return of the episode and of earlier steps.
    ``"row"``: taken from the invalid step's own scores after summing and discounting (verl-agent)."""

    def __post_init__(self) -> None:
        if not self.coef >= 0.0:
            raise UsageError(f"invalid_action_penalty: coef is {self.coef}; it is subtracted, so give it as >= 0")
        if self.reach not in get_args(Reach):
            raise unknown("invalid_action_penalty reach", self.reach, get_args(Reach))

    def __call__(self, steps: StepTable) -> StepTable:
        """The steps, the invalid ones with the penalty."""
        penalty = np.where(steps.valid, 0.0, -self.coef)
        if self.reach == "episode":
            return steps.with_reward(steps.reward + penalty)
        if ROW_SCORE in steps.extra:
            penalty = penalty + steps.extra[ROW_SCORE]
        return steps.with_columns(**{ROW_SCORE: penalty})
