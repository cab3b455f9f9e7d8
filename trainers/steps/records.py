"""The step record: the unit of everything in training."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from envsuite.core import Action


@dataclass(frozen=True)
class Step:
    """One interaction step: what the policy saw, what it produced, what the environment answered.

    Token ids are what the engine saw and produced; nothing is tokenised twice.
    """

    t: int
    """Index of the step in its episode, from 0."""
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    response_logprobs: tuple[float, ...]
    """Log-probability of each response token under the distribution it was sampled from at temperature 1."""
    policy_version: int
    """Number of optimiser steps that the sampling weights had seen."""
    finish_reason: str
    """``"stop"`` or ``"length"``."""
    observation: str
    """Text of the observation that the step answers."""
    state_key: str
    """Identity of that observation."""
    action: Action | None
    """The parsed action; ``None`` where the completion did not parse."""
    parse_error: str | None
    """Why the completion is not an action."""
    valid: bool
    """The action was well-formed and executable."""
    reward: float
    """The environment's own reward for the step."""
    info: dict[str, Any] = field(default_factory=dict)
    """:class:`envsuite.core.StepInfo` after the step."""


@dataclass(frozen=True)
class Episode:
    """One episode: its steps and how it ended."""

    episode_id: int
    group_id: int
    """Episodes of one task from one initial state share a group."""
    env_id: str
    task_id: str
    task_type: str
    split: str
    task: str
    """The instruction."""
    steps: tuple[Step, ...]
    terminated: bool
    truncated: bool
    success: bool
    score: float
    error: str | None = None
    """Why the episode failed (crashed worker, deadline); such an episode is counted and never trained on."""
    greedy: bool = False
    """Played greedily, as a baseline; such an episode is never trained on, and counts in no metric of training."""

    @property
    def total_reward(self) -> float:
        """Undiscounted sum of the rewards."""
        return float(sum(step.reward for step in self.steps))
