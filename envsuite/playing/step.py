"""The step record: the unit of everything in training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envsuite.core import Action
from envsuite.core.images import Pixels, digest

Tokens = NDArray[np.int32]
"""Token ids."""
Logprobs = NDArray[np.float32]
Versions = NDArray[np.int64]
"""Numbers of optimiser steps that weights had seen."""
Experts = NDArray[np.integer[Any]]
"""(tokens, routers, k): numbers of experts, uint8 or int16; the greatest number of the format where none is known."""
Parts = tuple[Experts, ...]
"""The experts of a sequence's tokens, one part after the other; none where they are not known."""


REFUSALS = {
    "cut": "the completion does not parse, and reached the token limit",
    "unparsed": "the completion does not parse",
    "tool": "there is no tool of that name",
    "arguments": "the arguments do not fit the tool",
    "world": "the world refuses a well-formed action",
}
"""The stages that refuse an action, and what each means."""


def as_tokens(ids: Sequence[int] | NDArray[np.integer[Any]]) -> Tokens:
    """``ids`` as an array; one that is an array of token ids already is not copied."""
    return np.asarray(ids, np.int32)


@dataclass(frozen=True, eq=False)
class Step:
    """One interaction step: what the policy saw, what it produced, what the environment answered.

    Token ids are what the engine saw and produced; nothing is tokenised twice. The token columns may be given as any
    sequence, and are held as arrays.
    """

    t: int
    """Index of the step in its episode, from 0."""
    prompt_ids: Tokens
    response_ids: Tokens
    response_logprobs: Logprobs
    """Log-probability of each response token under the distribution that it was sampled from, temperature included;
    of a greedy episode, at temperature 1."""
    policy_version: Versions
    """Number of optimiser steps that the weights had seen which sampled each response token; they differ within a
    response whose weights changed on the way. One number stands for all tokens."""
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
    prompt_text: str | None = None
    """Messages as JSON, of an engine that takes messages: such a step has no tokens. ``None`` where it has."""
    images: tuple[Pixels, ...] = ()
    """Images of the prompt, in their order: ids of ``prompt_ids`` below -1 are parts of them
    (:mod:`envsuite.prompting.images`)."""
    shown: int = 0
    """How many of them, the last ones, are of the observation that the step answers."""
    response_text: str | None = None
    """The answer to them, with thought and calls in tags."""
    agent: str = ""
    """The agent whose step it is; "" in an environment of one agent."""
    experts: Parts = ()
    """Experts that each token of prompt and response but the last went to when a mixture sampled the response; none
    where the engine did not tell. Files do not hold them."""

    def __post_init__(self) -> None:
        ids = as_tokens(self.response_ids)
        versions = np.broadcast_to(np.asarray(self.policy_version, np.int64), ids.shape)
        object.__setattr__(self, "prompt_ids", as_tokens(self.prompt_ids))
        object.__setattr__(self, "response_ids", ids)
        object.__setattr__(self, "response_logprobs", np.asarray(self.response_logprobs, np.float32))
        object.__setattr__(self, "policy_version", versions)

    def __eq__(self, other: object) -> bool:
        """Whether every field but the experts is equal."""
        if not isinstance(other, Step):
            return NotImplemented
        names = [f.name for f in fields(self) if f.name not in ("images", "experts")]
        pairs = [(getattr(self, name), getattr(other, name)) for name in names]
        if list(map(digest, self.images)) != list(map(digest, other.images)):
            return False
        return all(np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b for a, b in pairs)

    __hash__ = None  # type: ignore[assignment]

    @property
    def refusal(self) -> str | None:
        """Why the action is invalid, one of :data:`REFUSALS`; ``None`` where it is valid."""
        if self.valid:
            return None
        names = None if self.action is None else [call.name for call in self.action]
        return refusal(names, self.finish_reason, str(self.info.get("error", "")))


def refusal(names: Sequence[str] | None, finish_reason: str, error: str) -> str:
    """Why an invalid action was refused, one of :data:`REFUSALS`.

    Args:
        names: Tools that it calls; ``None`` where the completion does not parse.
        finish_reason: That of the completion.
        error: What the environment says.
    """
    if names is None:
        return "cut" if finish_reason == "length" else "unparsed"
    if error.startswith("unknown tool "):
        return "tool"
    return "arguments" if any(error.startswith(f"{name}: ") for name in names) else "world"


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
    """The task came to its end."""
    truncated: bool
    """The episode was cut: at the step limit, at its token limit, or where it outgrew the context."""
    success: bool
    score: float
    """The task's graded result, 0 to 1."""
    error: str | None = None
    """Why the episode failed (crashed worker, deadline); such an episode is counted and never trained on."""
    greedy: bool = False
    """Played greedily, as a baseline; such an episode is never trained on, and counts in no metric of training."""
    context_truncated: bool = False
    """Truncated because the next prompt had no room in the model's context or in the budget of the memory; one whose
    first prompt had none has :attr:`error`, too."""
    unanswered: bool = False
    """Failed because the engine gave no answer (an endpoint that is down, a spent budget); such an episode says nothing
    of the policy, and counts in no rate of success."""
    last_observation: str = ""
    """Text of the environment's last answer, which no step answers; "" of an episode that failed."""

    tree: int = -1
    """Id of the episode that its tree was grown from; -1 where it is in none."""
    shared: int = 0
    """How many of its first steps are those of an earlier episode of its tree, which sampled their tokens."""

    @property
    def total_reward(self) -> float:
        """Undiscounted sum of the rewards."""
        return float(sum(step.reward for step in self.steps))

    @property
    def own_rewards(self) -> list[float]:
        """Rewards of the steps, each for the agent that made it.

        With several agents a step earns what its agent is given until the agent's next turn, for the steps of others,
        too. What an agent is given before its first turn is lost.
        """
        rewards = [0.0 if step.agent else step.reward for step in self.steps]
        turn: dict[str, int] = {}
        for number, step in enumerate(self.steps):
            if step.agent:
                turn[step.agent] = number
                for agent, reward in step.info["rewards"].items():
                    if agent in turn:
                        rewards[turn[agent]] += reward
        return rewards

    @property
    def versions(self) -> tuple[int, int] | None:
        """Versions of the oldest and the newest weights that sampled its tokens; ``None`` where it has no token."""
        versions = [step.policy_version for step in self.steps if len(step.policy_version)]
        return (min(int(v.min()) for v in versions), max(int(v.max()) for v in versions)) if versions else None
