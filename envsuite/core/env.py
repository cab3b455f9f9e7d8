"""The environment contract: :class:`ToolEnv`."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from types import MappingProxyType
from typing import Any, NamedTuple, NotRequired, Self, TypedDict

import gymnasium
import numpy as np
from gymnasium.envs.registration import load_env_creator

from envsuite.core import boundary
from envsuite.core.errors import UsageError, unknown
from envsuite.core.images import Images, Pixels
from envsuite.core.options import EnvOptions
from envsuite.core.snapshots import EnvSnapshot, check_snapshot
from envsuite.core.spaces import AnyText, TextTuple, ToolCalls
from envsuite.core.tasks import TaskSet
from envsuite.core.tools import (
    Action,
    Tool,
    ToolCall,
    UnparsedAction,
    check_action,
    offered_tools,
    shorten_reason,
    with_integers,
)


class Observation(TypedDict):
    """An observation: the input of the agent."""

    task: str
    """The instruction; constant over an episode."""
    text: str
    """The world's current text."""
    commands: tuple[str, ...]
    """Admissible commands; ``()`` for open-ended actions."""
    images: NotRequired[tuple[Pixels, ...]]
    """Images of the world now; there only in environments that are made to show them."""
    tools: NotRequired[tuple[str, ...]]
    """Names of the tools that can be called now; there only in environments whose tools change."""


class StepInfo(TypedDict):
    """The info of a step."""

    valid: bool
    """Whether the action was well-formed and executable."""
    error: str | None
    """Why it was not, or ``None``; ``observation["text"]`` says so too, in the world's own words if it has any."""
    success: bool
    """Whether the task is solved."""
    score: float
    """Graded result in [0, 1]."""
    task_id: str
    task_type: str
    split: str
    state_key: str
    """Identity of the current observation, for grouping steps."""
    metrics: dict[str, float]
    """Further metrics that the environment's papers report."""
    versions: dict[str, str]
    """Versions behind the episode: ``source``, ``data``, and those of further components."""
    agent: NotRequired[str]
    """The agent whose turn is next; there only in environments of several agents."""
    rewards: NotRequired[dict[str, float]]
    """Reward of each agent for the step, which add up to the step's reward; with ``agent``."""


@dataclass(frozen=True)
class Outcome:
    """The result of one call, or of a reset, in the world."""

    text: str
    reward: float = 0.0
    done: bool = False
    """Whether the task has terminated (solved or lost)."""
    error: str | None = None
    """Why the world refused the call, which then changed nothing; ``None`` if it did not."""
    commands: tuple[str, ...] = ()
    success: bool = False
    score: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)


class TaskIdentity(NamedTuple):
    """Instruction of a task, and its identity in the original benchmark."""

    goal: str
    """The instruction, as the agent reads it."""
    identity: dict[str, Any]
    """Plain JSON; see :meth:`ToolEnv.identity`."""


class ToolEnv(gymnasium.Env[Observation, Action]):
    """An environment whose actions are tool calls and whose observations are text, and images where it has them.

    A subclass sets :attr:`tools` and implements :meth:`_begin`, :meth:`_call` and :meth:`_state_key`, and where its
    world allows it :meth:`_save` and :meth:`_resume`. This class implements the common parts: drawing a task,
    checking an action, executing several calls, the info dictionary.

    Args:
        tasks: The tasks, already filtered.
        split: The split from which a reset draws; with ``None``, each reset must name its task.
        render_mode: ``"ansi"`` or ``None``.
        versions: Versions of components besides the data, e.g. the engine; part of every info.
        images: Whether observations have ``images``, those of :meth:`_view`.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012
    tools: tuple[Tool, ...]
    max_calls: int = 1
    _made_with: tuple[tuple[Any, ...], dict[str, Any]]
    agents: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    """Agents that take turns -> names of the tools of each; empty where there is one agent.

    Such an environment puts ``agent`` and ``rewards`` into each info, and refuses a tool of another agent than the one
    whose turn it is.
    """
    tools_change: bool = False
    """Whether some of :attr:`tools` can be called at some times only: then :meth:`_offer` names those of now."""
    takes: type[EnvOptions] = EnvOptions
    """The options of the environment, which its constructor takes by name: ``self.takes.of(given)`` checks them.

    A constructor may have parameters instead; then clients of a server may give those that are options, too.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Returns an environment that knows what it is made with, for :meth:`__reduce__`."""
        env = super().__new__(cls)
        env._made_with = (args, kwargs)
        return env

    def __init__(
        self,
        tasks: TaskSet,
        split: str | None,
        render_mode: str | None = None,
        versions: Mapping[str, str] | None = None,
        images: bool = False,
    ) -> None:
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise unknown("render mode", str(render_mode), self.metadata["render_modes"])
        self.tasks = tasks
        self.split = split
        self.render_mode = render_mode
        self.versions = {"source": tasks.source, "data": tasks.version, **(versions or {})}
        self._split_ids = () if split is None else tasks.ids(split)
        self._next = 0
        self._task_id = self._task_type = self._task_split = ""
        self._done = True
        self._last: Observation | None = None
        self._instruction = ""
        self.images = images
        more: dict[str, Any] = {"images": Images()} if images else {}
        more |= {"tools": TextTuple()} if self.tools_change else {}
        parts = {"task": AnyText(), "text": AnyText(), "commands": TextTuple(), **more}
        self.observation_space = gymnasium.spaces.Dict(parts)  # type: ignore[assignment]
        self.action_space = ToolCalls(self.tools, self.max_calls, self._propose)

    @classmethod
    def argument_schemas(cls) -> dict[str, dict[str, Any]]:
        """Returns the JSON Schema of each argument of the constructor that clients of a server may give."""
        forms, parameters = cls.takes.schema(client=True), inspect.signature(cls).parameters
        if any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters.values()):
            return forms
        return {name: form for name, form in forms.items() if name in parameters}

    @abstractmethod
    def _begin(self, task_id: str) -> tuple[str, Outcome]:
        """Starts ``task_id``; returns the instruction and the first outcome. All randomness derives from the id."""

    @abstractmethod
    def _call(self, call: ToolCall) -> Outcome:
        """Executes one valid call."""

    def _execute(self, action: Action) -> Outcome:
        """Executes valid calls in order, until one ends the episode."""
        outcome = _shorten_error(self._call(action[0]))
        for call in action[1:]:
            if outcome.done:
                break
            outcome = _join_outcomes(outcome, _shorten_error(self._call(call)))
        return outcome

    @abstractmethod
    def _state_key(self) -> str:
        """Returns the identity of the current observation."""

    def _offer(self) -> tuple[str, ...]:
        """Returns the names of the tools that can be called now; asked for by each observation where tools change."""
        raise UsageError(f"{type(self).__name__} has tools that do not change")

    def _view(self) -> tuple[Pixels, ...]:
        """Returns the images of the world as it is now; asked for by each observation that shows images."""
        raise UsageError(f"{type(self).__name__} has no images")

    @abstractmethod
    def _propose(self, rng: np.random.Generator) -> ToolCall:
        """Returns a random call that fits a tool's schema, for ``action_space.sample``."""

    @property
    def observation(self) -> Observation:
        """The current observation.

        Raises:
            UsageError: No episode is running.
        """
        if self._done or self._last is None:
            raise UsageError(f"{type(self).__name__} has no running episode; call reset() first")
        return self._last

    @property
    def offered(self) -> tuple[Tool, ...]:
        """The tools that can be called now; all of them before the first reset, and where they do not change."""
        return self.tools if self._last is None else offered_tools(self.tools, self._last)

    @property
    def done(self) -> bool:
        """Whether no episode is running: none was started, or the last one has ended."""
        return self._done

    @property
    def episode(self) -> dict[str, Any]:
        """The part of ``info`` about the whole episode: ``task_id``, ``task_type``, ``split``, ``versions``."""
        return {
            "task_id": self._task_id,
            "task_type": self._task_type,
            "split": self._task_split,
            "versions": self.versions.copy(),
        }

    def goal(self, task_id: str) -> str:
        """Returns the instruction of a task, without starting an episode.

        Raises:
            UnknownTask: The task does not exist.
            UsageError: An episode is running, and the environment has to start the task to read it.
            DataError: Its data is damaged.
        """
        self._describe(task_id)
        return self._goal(task_id)

    def _goal(self, task_id: str) -> str:
        """Returns the instruction of a task; by default by starting its world, so environments override it."""
        if not self._done:
            raise UsageError(f"{type(self).__name__}.goal called in an episode; call it before reset")
        return self._begin(task_id)[0]

    def identity(self, task_id: str) -> dict[str, Any]:
        """Returns what identifies a task in the original benchmark, as plain JSON.

        File and SHA-256, or goal index, and the like: the same for the same task on every machine, and nothing of the
        machine. Empty where the id alone identifies the task.

        Raises:
            UnknownTask: The task does not exist.
            DataError: Its data is damaged.
        """
        self._describe(task_id)
        return self._identity(task_id)

    def _identity(self, task_id: str) -> dict[str, Any]:
        """Returns what identifies a task; environments of a benchmark override it."""
        return {}

    def identify_tasks(self, task_ids: Sequence[str]) -> list[TaskIdentity]:
        """Returns goal and identity of several tasks.

        Raises:
            UnknownTask: A task does not exist.
        """
        return [TaskIdentity(self.goal(task_id), self.identity(task_id)) for task_id in task_ids]

    @property
    def restorable(self) -> bool:
        """Whether the environment can be snapshot and restored."""
        kind = type(self)
        return kind._save is not ToolEnv._save or kind.snapshot is not ToolEnv.snapshot

    def snapshot(self) -> object:
        """Returns the episode's state, for :meth:`restore` of any environment made with the same arguments.

        Raises:
            UsageError: No episode has been started, or the environment cannot be snapshot.
        """
        if self._last is None:
            raise UsageError(f"{type(self).__name__}.snapshot called before reset; call reset() first")
        return EnvSnapshot(
            of=self._of(),
            task_id=self._task_id,
            task=self._instruction,
            text=self._last["text"],
            commands=[*self._last["commands"]],
            done=self._done,
            world=self._save(),
        )

    def restore(self, token: object) -> Observation:
        """Restores a snapshot; returns the observation that was current when it was taken.

        Where that fails, the episode goes on.

        Raises:
            UsageError: ``token`` is not a :meth:`snapshot`, or one of another environment, of other data, or of other
                versions of its components.
            UnknownTask: The environment does not have its task.
        """
        snapshot = check_snapshot(token, self._of(), type(self).__name__)
        split_and_type = self._describe(snapshot["task_id"])
        with boundary.boundary(self._where(snapshot["task_id"])):
            self._resume(snapshot["task_id"], snapshot["world"])
        self._task_split, self._task_type = split_and_type
        self._task_id, self._instruction, self._done = snapshot["task_id"], snapshot["task"], snapshot["done"]
        return ToolEnv._observe(self, Outcome(snapshot["text"], commands=tuple(snapshot["commands"])))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles how the environment was made, and its episode.

        The copy is made with the same arguments and goes on with the episode where that can be restored; else it has
        none, and the next reset is that of the environment.
        """
        kind, token = type(self), self.snapshot() if self.restorable and self._last is not None else None
        return _copy, (f"{kind.__module__}:{kind.__qualname__}", *self._made_with, self.spec, self._next, token)

    def _where(self, task_id: str) -> str:
        return f"task {task_id} of {self.tasks.env_id}"

    def _of(self) -> dict[str, str]:
        """Returns what a snapshot of the environment is of."""
        return {"environment": self.tasks.env_id, **self.versions}

    def _save(self) -> Any:
        """Returns the state of the world, as plain data that can be pickled, for :meth:`_resume`."""
        raise UsageError(f"{type(self).__name__} cannot be snapshot")

    def _resume(self, task_id: str, world: Any) -> None:
        """Goes on with ``task_id`` from what :meth:`_save` returned; where that fails, the present world stays.

        It is from an environment of the same id and the same versions.
        """
        raise UsageError(f"{type(self).__name__} cannot be restored")

    def reset(  # type: ignore[override]
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, StepInfo]:
        """Starts an episode.

        Args:
            seed: Chooses the task: the same seed gives the same episode everywhere.
            options: ``{"task_id": …}`` chooses the task by id, from any split.

        Without either, starts the next task of the split in its order: the first one, or the one after the task that
        the last seed chose.

        Raises:
            UnknownTask: The id does not exist.
            UsageError: An option is unknown, or the split is empty.
        """
        task_id = self._draw(seed, options or {})
        try:
            outcome = self._start(task_id)
            return self._observe(outcome), self._info(outcome)
        except BaseException as error:
            boundary.settle(error, self._where(task_id))
            raise

    def _start(self, task_id: str) -> Outcome:
        """Starts an episode of ``task_id``; where that fails, the last one goes on."""
        split_and_type = self._describe(task_id)
        instruction, outcome = self._begin(task_id)
        self._instruction = boundary.text(instruction)
        self._task_split, self._task_type = split_and_type
        self._task_id = task_id
        self._done = False
        return outcome

    def _draw(self, seed: int | None, options: Mapping[str, Any]) -> str:
        """Returns the id of the task that a reset starts."""
        super().reset(seed=seed)
        if extra := set(options) - {"task_id"}:
            raise UsageError(f"unknown reset option {sorted(extra)}; known: task_id")
        if (task_id := options.get("task_id")) is None:
            if not self._split_ids:
                if self.split is None:
                    raise UsageError(f"{self.tasks.env_id} was made without split; reset(options={{'task_id': …}})")
                there = ", ".join(f"{name} {len(ids)}" for name, ids in self.tasks.splits.items())
                raise UsageError(f"split {self.split!r} of {self.tasks.env_id} has no tasks; there are: {there}")
            index = self._next if seed is None else int(self.np_random.integers(len(self._split_ids)))
            self._next = (index + 1) % len(self._split_ids)  # a seed determines the following episodes, too
            task_id = self._split_ids[index]
        return task_id

    def _describe(self, task_id: str) -> tuple[str, str]:
        """Returns split and type of a task; :class:`~envsuite.core.errors.UnknownTask` where there is none."""
        return self.tasks.split_of(task_id), self.tasks.types[task_id]

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, StepInfo]:  # type: ignore[override]
        """Executes the calls of ``action`` in order, until one ends the episode.

        An invalid action changes nothing and costs one step; the observation's text says why. Of several calls, the
        texts are joined by a blank line, the rewards added; the step is valid if every call was.

        Raises:
            UsageError: Before the first :meth:`reset`, or after the episode has ended.
        """
        if self._done or self._last is None:
            when = "after the episode has ended" if self._last is not None else "before reset"
            raise UsageError(f"{type(self).__name__}.step called {when}; call reset() first")
        tools = self.offered
        if (problem := check_action(action, tools, self.max_calls)) is not None:
            return self._refuse(problem, self._last["commands"])
        try:
            outcome = self._execute(with_integers(action, tools))
            reward, score = outcome.reward, outcome.score
            if not (type(reward) is type(score) is float and isfinite(reward + score)):
                reward = boundary.number(reward, "the reward of _call")
                boundary.number(score, "the score of _call")
            self._done = outcome.done
            return self._observe(outcome), reward, outcome.done, False, self._info(outcome)
        except BaseException as error:
            boundary.settle(error, self._where(self._task_id))
            raise

    def refuse(self, problem: str) -> tuple[Observation, float, bool, bool, StepInfo]:
        """Consumes a step for an output that could not be parsed as an action.

        The state of the world does not change; the observation states ``problem``, as for an invalid action.

        Raises:
            UsageError: As :meth:`step`.
        """
        return self.step(UnparsedAction(problem))

    def _refuse(self, problem: str, commands: tuple[str, ...]) -> tuple[Observation, float, bool, bool, StepInfo]:
        text = f"Invalid action: {problem}. Tools: {', '.join(tool.name for tool in self.offered)}."
        outcome = Outcome(text, error=problem, commands=commands)
        return self._observe(outcome), 0.0, False, False, self._info(outcome)

    def render(self) -> str | None:
        """Returns the task and the last text if ``render_mode`` is ``"ansi"``."""
        if self.render_mode is None or self._last is None:
            return None
        return f"{self._last['task']}\n\n{self._last['text']}"

    def _observe(self, outcome: Outcome) -> Observation:
        text, commands = outcome.text, outcome.commands
        if not (text.isascii() and "".join(commands).isascii()):
            text, commands = boundary.text(text), tuple(map(boundary.text, commands))
        self._last = {"task": self._instruction, "text": text, "commands": commands}
        if self.images:
            self._last["images"] = self._view()
        if self.tools_change:
            self._last["tools"] = self._offer()
        return self._last

    def _info(self, outcome: Outcome) -> StepInfo:
        key = self._state_key()
        return {
            "valid": outcome.error is None,
            "error": None if outcome.error is None else boundary.text(outcome.error),
            "success": outcome.success,
            "score": outcome.score,
            "task_id": self._task_id,
            "task_type": self._task_type,
            "split": self._task_split,
            "state_key": key if key.isascii() else boundary.text(key),
            "metrics": outcome.metrics,
            "versions": self.versions.copy(),
        }


def _copy(kind: str, args: tuple[Any, ...], kwargs: dict[str, Any], spec: Any, place: int, token: object) -> ToolEnv:
    """Returns the environment that was pickled, which ``token`` continues where it is not ``None``."""
    env: Any = load_env_creator(kind)(*args, **kwargs)
    env.spec, env._next = spec, place
    if token is not None:
        env.restore(token)
    return env  # type: ignore[no-any-return]


def _shorten_error(outcome: Outcome) -> Outcome:
    """Returns an outcome with its error shortened, in its text too: a world may quote a command of any length."""
    if outcome.error is None or (error := shorten_reason(outcome.error)) == outcome.error:
        return outcome
    return replace(outcome, text=outcome.text.replace(outcome.error, error), error=error)


def _join_outcomes(first: Outcome, second: Outcome) -> Outcome:
    errors: Sequence[str] = [e for e in (first.error, second.error) if e is not None]
    text, reward = f"{first.text}\n\n{second.text}", first.reward + second.reward
    return replace(second, text=text, reward=reward, error="; ".join(errors) or None)
