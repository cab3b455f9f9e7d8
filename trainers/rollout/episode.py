"""One episode while it is played."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from envsuite.core import Observation
from envsuite.core.errors import EnvsuiteError
from envsuite.prompting import Codec, Conversation, NoRoom
from envsuite.prompting.conversation import ChatTokenizer
from envsuite.vector import Event
from trainers.rollout.engine import Completion
from trainers.steps import Episode, Step
from trainers.steps.records import Tokens, as_tokens


@dataclass(frozen=True)
class EpisodePlan:
    """One episode to be played."""

    episode_id: int
    group_id: int
    env: int
    """Index of the environment among those of the vector."""
    task_id: str
    greedy: bool = False
    """Take the likeliest token each time, whatever the sampling; the episode is marked so."""


@dataclass(frozen=True)
class Ending:
    """How an episode ended."""

    terminated: bool = False
    context_truncated: bool = False
    error: str | None = None
    """Why the episode failed; then neither terminated nor truncated."""


@dataclass
class Playing:
    """An episode on its way: its conversation, the steps made so far, and the answer to the last prompt."""

    plan: EpisodePlan
    env_id: str
    conversation: Conversation
    tokenizer: ChatTokenizer
    codec: Codec
    observation: Observation | None = None
    """The observation that the current prompt ends with."""
    info: dict[str, Any] = field(default_factory=dict)
    """Info of the environment's last answer."""
    steps: list[Step] = field(default_factory=list)
    prompt: Tokens = field(default_factory=lambda: as_tokens([]))
    """The last prompt that was asked."""
    completion: Completion | None = None
    """The answer to it."""
    state_key: str = ""
    """Identity of the observation that it answers."""
    asked: float | None = None
    """When the engine was asked (``time.monotonic``); ``None`` while it has no prompt of the episode."""
    action: Any = None
    parse_error: str | None = None

    @property
    def tokens(self) -> int:
        """Response tokens of the steps made."""
        return sum(len(step.response_ids) for step in self.steps)

    def parse(self, completion: Completion, tools: Any, max_calls: int) -> None:
        """Take the engine's answer to the prompt: afterwards :attr:`action` is set, or :attr:`parse_error`."""
        shown = self.codec.special_tokens
        text = self.tokenizer.decode(completion.token_ids.tolist(), skip_special_tokens=not shown)
        parsed = self.codec.parse(text, tools, max_calls)
        self.completion, self.action, self.parse_error = completion, parsed.action, parsed.error

    def observe(self, event: Event) -> None:
        """Take the environment's answer: the step is recorded, if it was one and not a reset."""
        completion, info = self.completion, event.info
        assert info is not None
        self.info = dict(info)
        if completion is None:
            return
        assert self.observation is not None
        self.steps.append(
            Step(
                t=len(self.steps),
                prompt_ids=self.prompt,
                response_ids=completion.token_ids,
                response_logprobs=completion.logprobs,
                policy_version=completion.policy_version,
                finish_reason=completion.finish_reason,
                observation=self.observation["text"],
                state_key=self.state_key,
                action=self.action,
                parse_error=self.parse_error,
                valid=info["valid"],
                reward=event.reward,
                info=dict(info),
            )
        )

    def ask(self, observation: Observation) -> Ending | None:
        """Makes the next prompt from ``observation``; returns the ending instead where no prompt can be made."""
        answered, self.observation, self.state_key = self.completion, observation, self.info["state_key"]
        try:
            if answered is None:
                self.conversation.start(observation)
            else:
                ids = answered.token_ids.tolist()
                self.conversation.add(ids, self.tokenizer.decode(ids), observation)
            self.prompt = as_tokens(self.conversation.prompt_ids())
        except NoRoom as error:
            return self.outgrown(str(error))
        except EnvsuiteError as error:
            return Ending(error=str(error))
        return None

    def outgrown(self, error: str) -> Ending:
        """Returns the ending of an episode without room for a prompt: truncated, or failed if it has no step yet."""
        return Ending(context_truncated=True) if self.steps else Ending(error=error)

    def ended(self, ending: Ending) -> Episode:
        """Returns the record of the episode."""
        sound = ending.error is None
        return Episode(
            episode_id=self.plan.episode_id,
            group_id=self.plan.group_id,
            env_id=self.env_id,
            task_id=self.plan.task_id,
            task_type=str(self.info.get("task_type", "")),
            split=str(self.info.get("split", "")),
            task="" if self.observation is None else self.observation["task"],
            steps=tuple(self.steps),
            terminated=ending.terminated,
            truncated=sound and not ending.terminated,
            success=sound and bool(self.info["success"]),
            score=float(self.info["score"]) if sound else 0.0,
            greedy=self.plan.greedy,
            error=ending.error,
            context_truncated=ending.context_truncated,
        )
