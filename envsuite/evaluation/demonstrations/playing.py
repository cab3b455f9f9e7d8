"""Plays demonstrations, and plays them again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from envsuite.core.env import StepInfo, ToolEnv
from envsuite.core.errors import DataError, UsageError
from envsuite.core.tools import Action
from envsuite.evaluation.demonstrations.demonstration import Demonstration, DemonstrationStep


def demonstrate(
    env: ToolEnv,
    task_id: str,
    act: Callable[[ToolEnv], Action],
    horizon: int | None,
    *,
    env_options: Mapping[str, Any],
    player: str,
    seed: int | None = None,
) -> Demonstration:
    """Plays one episode.

    Args:
        env: The environment, without a limit of steps.
        task_id: The task.
        act: Returns the next action, as :meth:`envsuite.core.Player.act` does. Where it raises ``UsageError``, having
            no move left, the episode ends.
        horizon: Most steps; ``None`` for no limit.
        env_options: Arguments with which the environment was made, besides split and url.
        player: Name of the player.
        seed: Seed of the order of tasks.

    Raises:
        UnknownTask: The task does not exist.
        WorkerLost: The environment is lost.
    """
    first, info = env.reset(options={"task_id": task_id})
    steps: list[DemonstrationStep] = []
    while not env.done and (horizon is None or len(steps) < horizon):
        try:
            action = act(env)
        except UsageError:
            break
        step, info = take_step(env, action)
        steps.append(step)
    return Demonstration.of(env, first, steps, info, env_options=env_options, player=player, seed=seed)


def take_step(env: ToolEnv, action: Action, thought: str = "") -> tuple[DemonstrationStep, StepInfo]:
    """Takes a step in ``env``; returns it, and its info."""
    observation, reward, _, _, info = env.step(action)
    return DemonstrationStep(action, observation, float(reward), info["valid"], thought), info


def replay(env: ToolEnv, demonstration: Demonstration) -> Demonstration:
    """Plays the actions of a demonstration again, and returns the episode that follows from them.

    Raises:
        DataError: Something differs from the demonstration; the message says what, and at which step.
        UnknownTask: The environment does not have the task.
    """
    first, info = env.reset(options={"task_id": demonstration.task_id})
    _check_same("observation", first, demonstration.first, 0, demonstration)
    steps = []
    for number, old_step in enumerate(demonstration.steps, 1):
        if env.done:
            raise DataError(
                f"task {demonstration.task_id!r} of {demonstration.env_id} ends after step {number - 1} here{_HINT}"
            )
        step, info = take_step(env, old_step.action, old_step.thought)
        for name in ("observation", "reward", "valid"):
            _check_same(name, getattr(step, name), getattr(old_step, name), number, demonstration)
        steps.append(step)
    _check_same("success", info["success"], demonstration.success, len(steps), demonstration)
    _check_same("score", info["score"], demonstration.score, len(steps), demonstration)
    conditions = {name: getattr(demonstration, name) for name in ("env_options", "player", "seed")}
    return Demonstration.of(env, first, steps, info, **conditions)


_HINT = "; make the environment with the arguments (env_options) and versions of the demonstration"


def _check_same(name: str, here: object, there: object, number: int, demonstration: Demonstration) -> None:
    if here != there:
        if isinstance(here, dict) and isinstance(there, dict):
            name, here, there = next((key, here[key], there[key]) for key in there if here[key] != there[key])
        raise DataError(
            f"task {demonstration.task_id!r} of {demonstration.env_id}, step {number}: {name} is {_short(here)} here "
            f"and {_short(there)} in the demonstration{_HINT}"
        )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:119]}…"
