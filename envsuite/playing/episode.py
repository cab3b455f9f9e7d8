"""One episode while it is played."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from envsuite.core import Observation
from envsuite.core.errors import EnvsuiteError
from envsuite.playing.dialog import Dialog
from envsuite.playing.step import Episode, Step
from envsuite.prompting import ParseResult, PromptTooLong
from envsuite.vector import VectorEvent, VectorSnapshot


@dataclass(frozen=True)
class Branch:
    """The state before a step of an episode: another episode can start there, with the same past."""

    steps: tuple[Step, ...]
    """Steps before it."""
    environment: VectorSnapshot
    """State of the environment."""
    dialog: tuple[Any, ...]
    """The dialog with the engine (:meth:`~envsuite.playing.dialog.Dialog.snapshot`), with the step's prompt."""
    observation: Observation
    """The observation that the step answers."""


Branches = dict[int, list[Branch]]
"""For each episode, by its id, its steps as points from which others can start, in their order."""


@dataclass(frozen=True)
class EpisodePlan:
    """One episode to be played."""

    episode_id: int
    group_id: int
    env: int
    """Index of the environment among those of the vector."""
    task_id: str
    greedy: bool = False
    """Take the likeliest token each time, whatever the sampling; the record says so."""
    seed: int | None = None
    """Seed of the environment's reset, which players that draw follow; no task follows from it."""
    branch: Branch | None = None
    """The step of another episode where it starts; its record begins with the steps before. ``None``: a reset."""
    steps: int | None = None
    """Most steps, those before a branch included; then it is truncated. ``None``: the environment's horizon alone."""


@dataclass(frozen=True)
class EpisodeEnding:
    """How an episode ended."""

    terminated: bool = False
    context_truncated: bool = False
    error: str | None = None
    """Why the episode failed; then neither terminated nor truncated."""
    unanswered: bool = False
    """It failed because the engine gave no answer."""


@dataclass(frozen=True)
class EpisodeCost:
    """Time and tokens of an episode."""

    seconds: float = 0.0
    prompt_tokens: int = 0
    """Over all of its prompts."""
    answer_tokens: int = 0
    cached_tokens: int = 0
    """Tokens of the prompts that an endpoint had computed before."""
    counted: bool = True
    """Whether the tokens of every answer were counted."""
    trials: tuple[int, ...] = (0,)
    """Number of steps before each trial of the task; a dialog may ask for several
    (:meth:`~envsuite.playing.dialog.Dialog.tries_again`)."""


@dataclass
class RunningEpisode:
    """An episode on its way: its dialogs with the engine, and its steps so far."""

    plan: EpisodePlan
    env_id: str
    dialogs: Mapping[str, Dialog]
    """The dialog of each agent with the engine; that of the only one under ""."""
    agent: str = ""
    """The agent whose turn it is; "" in an environment of one agent."""
    observation: Observation | None = None
    """The observation that the current prompt ends with."""
    info: dict[str, Any] = field(default_factory=dict)
    """Info of the environment's last answer."""
    text: str = ""
    """Text of its observation."""
    steps: list[Step] = field(default_factory=list)
    state_key: str = ""
    """Identity of the observation that the engine answers."""
    asked_at: float | None = None
    """When the engine was asked (``time.monotonic``); ``None`` while it has no prompt of the episode."""
    parsed: ParseResult | None = None
    """The action in the engine's last answer; ``None`` before the first one of a trial."""
    trials: list[int] = field(default_factory=list)
    """Number of steps before each trial that has begun."""
    inherited: int = 0
    """Tokens of the answers before the step where it started."""
    branches: list[Branch] = field(default_factory=list)
    """Its own steps as points where other episodes can start, in a rollout that records them."""
    began: float = field(default_factory=time.monotonic)
    """When it was started (``time.monotonic``)."""

    def __str__(self) -> str:
        """Names episode, task and step, for messages."""
        return f"episode {self.plan.episode_id} (task {self.plan.task_id}), step {len(self.steps) + 1}"

    @property
    def dialog(self) -> Dialog:
        """The dialog of the agent whose turn it is."""
        return self.dialogs[self.agent]

    def tries_again(self) -> bool:
        """Tells the dialogs that the trial is over; returns whether another one follows."""
        return any(dialog.tries_again(bool(self.info["success"])) for dialog in self.dialogs.values())

    @property
    def tokens(self) -> int:
        """Number of tokens of the answers of all agents."""
        return sum(dialog.tokens for dialog in self.dialogs.values())

    @property
    def sampled_tokens(self) -> int:
        """Number of tokens of the answers; those before the step where the episode started are not counted."""
        return self.tokens - self.inherited

    @property
    def cost(self) -> EpisodeCost:
        """Returns time and tokens of the episode so far."""
        seconds, dialogs = time.monotonic() - self.began, self.dialogs.values()
        return EpisodeCost(
            seconds,
            sum(dialog.prompt_tokens for dialog in dialogs),
            self.tokens,
            sum(dialog.cached_tokens for dialog in dialogs),
            all(dialog.counted for dialog in dialogs),
            tuple(self.trials) or (0,),
        )

    def read(self, completion: Any) -> ParseResult | None:
        """Take the engine's answer to the prompt; returns the action in it, or ``None``: the next trial begins."""
        self.parsed = self.dialog.read(completion)
        return self.parsed

    def observe(self, event: VectorEvent) -> None:
        """Take the environment's answer: the step is recorded, if it was one and not a reset."""
        info, observation = event.info, event.observation
        assert info is not None and observation is not None
        self.info, self.text = dict(info), observation["text"]
        if self.parsed is None:
            self.trials.append(len(self.steps))
            self.agent = info.get("agent", "")
            return
        assert self.observation is not None
        self.steps.append(
            Step(
                t=len(self.steps),
                **self.dialog.columns(),
                observation=self.observation["text"],
                shown=len(self.observation.get("images", ())),
                state_key=self.state_key,
                action=self.parsed.action,
                parse_error=self.parsed.error,
                valid=info["valid"],
                reward=event.reward,
                info=dict(info),
                agent=self.agent,
            )
        )
        self.agent = info.get("agent", "")

    def start_at(self, branch: Branch, event: VectorEvent) -> EpisodeEnding | None:
        """Goes on from a step of another episode; returns the ending instead where the environment is not as it was."""
        assert event.observation is not None
        if event.observation["text"] != branch.observation["text"]:
            return EpisodeEnding(
                error=f"SnapshotDiffers: {self.env_id} restored a snapshot with another observation than it was taken "
                f"with: {event.observation['text'][:80]!r}, not {branch.observation['text'][:80]!r}"
            )
        self.steps = list(branch.steps)
        self.dialog.restore(branch.dialog)
        self.inherited = self.dialog.tokens
        self.observation, self.state_key = event.observation, self.info["state_key"]
        return None

    def add_branch(self, event: VectorEvent) -> None:
        """Records the state before the next step, as a point where other episodes can start."""
        assert event.snapshot is not None and self.observation is not None
        self.branches.append(Branch(tuple(self.steps), event.snapshot, self.dialog.snapshot(), self.observation))

    def ask(self, observation: Observation) -> EpisodeEnding | None:
        """Makes the next prompt from ``observation``; returns the ending instead where no prompt can be made."""
        self.observation, self.state_key = observation, self.info["state_key"]
        try:
            self.dialog.ask(observation)
        except PromptTooLong as error:
            return self.context_ending(str(error))
        except EnvsuiteError as error:
            return EpisodeEnding(error=str(error))
        return None

    def context_ending(self, error: str) -> EpisodeEnding:
        """Returns the ending of an episode without room for a prompt: truncated, or failed if it has no step yet."""
        return EpisodeEnding(context_truncated=True, error=None if self.steps else error)

    def finish(self, ending: EpisodeEnding) -> Episode:
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
            unanswered=ending.unanswered,
            last_observation=self.text if sound else "",
        )
