"""One demonstration: an episode, and what it follows from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from envsuite import __version__
from envsuite.core.env import Observation, StepInfo, ToolEnv
from envsuite.core.errors import DataError, UsageError
from envsuite.core.tools import Action, Tool, ToolCall, UnparsedAction, check_action, offered_tools


@dataclass(frozen=True)
class DemonstrationStep:
    """One step of a player, and the environment's answer to it."""

    action: Action
    """The calls; an :class:`~envsuite.core.tools.UnparsedAction` where what the player gave was no action."""
    observation: Observation
    """The environment's answer."""
    reward: float
    valid: bool
    thought: str = ""
    """The player's reasoning before the action."""


@dataclass(frozen=True)
class Demonstration:
    """An episode of one task, with what is needed to play it again."""

    env_id: str
    source: str
    split: str
    task_id: str
    task_type: str
    manifest: str
    """Hash of the environment's task set, :attr:`envsuite.core.TaskSet.hash`."""
    env_options: Mapping[str, Any]
    """Arguments of ``gymnasium.make`` besides split and url, as plain JSON."""
    versions: Mapping[str, str]
    """Versions of envsuite and of the environment's components."""
    player: str
    """Name of the player, e.g. ``"expert"`` or ``"person"``."""
    seed: int | None
    """Seed of the order in which tasks were played; ``None`` where somebody chose them."""
    tools: tuple[Tool, ...] = field(compare=False)
    """Those that could be called at some time of the episode."""
    max_calls: int
    first: Observation
    """The observation of the reset."""
    steps: tuple[DemonstrationStep, ...]
    success: bool
    score: float
    """The task's graded result, 0 to 1."""

    @property
    def reward(self) -> float:
        """Returns the sum of the rewards."""
        return float(sum(step.reward for step in self.steps))

    @property
    def invalid(self) -> int:
        """Returns the number of steps that the environment refused."""
        return sum(not step.valid for step in self.steps)

    @classmethod
    def of(
        cls,
        env: ToolEnv,
        first: Observation,
        steps: Sequence[DemonstrationStep],
        info: StepInfo,
        *,
        env_options: Mapping[str, Any],
        player: str,
        seed: int | None = None,
    ) -> Demonstration:
        """Returns the demonstration of an episode in ``env``.

        Args:
            env: The environment.
            first: The observation of the reset.
            steps: The steps since.
            info: The info of the last step; of the reset if there is none.
            env_options: Arguments with which the environment was made, besides split and url.
            player: Name of the player.
            seed: Seed of the order of tasks.

        Raises:
            UsageError: Observations have images, or an argument is not JSON.
        """
        if env.images:
            raise UsageError(
                f"{env.tasks.env_id} shows images here, and demonstrations are text; make it without images"
            )
        try:
            orjson.dumps(dict(env_options))
        except TypeError as error:
            raise UsageError(f"an argument of {env.tasks.env_id} cannot be written as JSON ({error})") from error
        return cls(
            env_id=env.tasks.env_id,
            source=env.tasks.source,
            split=info["split"],
            task_id=info["task_id"],
            task_type=info["task_type"],
            manifest=env.tasks.hash,
            env_options=dict(env_options),
            versions={"envsuite": __version__, **info["versions"]},
            player=player,
            seed=seed,
            tools=_tools_of(env, (first, *(step.observation for step in steps))),
            max_calls=env.max_calls,
            first=first,
            steps=tuple(_writable(step, env) for step in steps),
            success=info["success"],
            score=info["score"],
        )

    def to_json(self) -> str:
        """Returns the demonstration as JSON, which :meth:`from_json` reads."""
        body = {name: getattr(self, name) for name in _PLAIN}
        body["tools"] = [[tool.name, tool.description, tool.parameters] for tool in self.tools]
        body["first"] = self.first
        body["steps"] = [
            {
                **_action_fields(step.action), "text": step.observation["text"],
                "commands": step.observation["commands"], "reward": step.reward, "valid": step.valid,
                "thought": step.thought,
                **({"tools": step.observation["tools"]} if "tools" in step.observation else {}),
            }
            for step in self.steps
        ]  # fmt: skip
        return orjson.dumps(body, option=orjson.OPT_SORT_KEYS).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Demonstration:
        """Returns the demonstration that :meth:`to_json` wrote.

        Raises:
            DataError: It is not one.
        """
        try:
            body = orjson.loads(text)
            _check(body)
            task = body["first"]["task"]
            return cls(
                **{name: body[name] for name in _PLAIN},
                tools=tuple(Tool(*tool) for tool in body["tools"]),
                first=_observation(body["first"], task),
                steps=tuple(_step(step, task) for step in body["steps"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"not a demonstration ({type(error).__name__}: {error})") from error


_PLAIN: Mapping[str, type | tuple[type, ...]] = {
    "env_id": str, "source": str, "split": str, "task_id": str, "task_type": str, "manifest": str,
    "env_options": dict, "versions": dict, "player": str, "seed": (int, type(None)), "max_calls": int,
    "success": bool, "score": (int, float),
}  # fmt: skip
"""Fields that are JSON as they are, with their types."""


def _check(body: Any) -> None:
    """Refuses values of the wrong kind, which would fail far from here."""
    for name, kind in _PLAIN.items():
        if not isinstance(body[name], kind):
            raise ValueError(f"{name} is {body[name]!r}")
    for observation in (body["first"], *body["steps"]):
        if not all(isinstance(text, str) for text in (observation["text"], *observation["commands"])):
            raise ValueError("an observation has a text, and commands that are texts")
    if not isinstance(body["first"]["task"], str):
        raise ValueError(f"task is {body['first']['task']!r}")


def _observation(body: Mapping[str, Any], task: str) -> Observation:
    observation = Observation(task=task, text=body["text"], commands=tuple(body["commands"]))
    if "tools" in body:
        observation["tools"] = tuple(body["tools"])
    return observation


def _tools_of(env: ToolEnv, observations: Sequence[Observation]) -> tuple[Tool, ...]:
    """Returns the tools of an episode: those that can be called at one of its observations, in their order."""
    return tuple({tool.name: tool for view in observations for tool in offered_tools(env.tools, view)}.values())


def _step(body: Mapping[str, Any], task: str) -> DemonstrationStep:
    action: Action
    if "problem" in body:
        action = UnparsedAction(body["problem"])
    else:
        action = tuple(ToolCall(call["name"], dict(call["arguments"])) for call in body["calls"])
        if not all(isinstance(call.name, str) for call in action):
            raise ValueError("the name of a call is not text")
    if not isinstance(body["valid"], bool) or not isinstance(body["thought"], str):
        raise ValueError("a step has a truth value `valid` and a text `thought`")
    reward = float(body["reward"])
    return DemonstrationStep(action, _observation(body, task), reward, body["valid"], body["thought"])


def _action_fields(action: Action) -> dict[str, Any]:
    if isinstance(action, UnparsedAction):
        return {"problem": action.problem}
    return {"calls": [{"name": call.name, "arguments": call.arguments} for call in action]}


def _writable(step: DemonstrationStep, env: ToolEnv) -> DemonstrationStep:
    """Returns the step with an action that can be written as JSON: calls that cannot are no action."""
    if isinstance(step.action, UnparsedAction):
        return step
    try:
        orjson.dumps(_action_fields(step.action))
    except TypeError:
        problem = check_action(step.action, env.tools, env.max_calls) or "the arguments are not JSON"
        return replace(step, action=UnparsedAction(problem))
    return replace(step, action=tuple(step.action))
