"""Demonstrations in prompts: episodes of an expert as text."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import gymnasium

from envsuite.core.env import ToolEnv
from envsuite.core.errors import UsageError
from envsuite.core.practice import ExpertTeacher
from envsuite.core.tools import Action, Move
from envsuite.prompting import Codec
from envsuite.remote.making import make_player, practice_of
from envsuite.vector import EnvFactory

SPLIT = "train"
"""Split whose tasks are demonstrated, whichever is played."""
_TRIES = 20
"""Tasks that are tried for each example, where the expert does not solve all."""

Turns = Callable[[gymnasium.Env[Any, Action]], Iterator[Move]]
"""Yields an expert's moves in the current episode; the caller steps the environment in between."""


def demonstrations(factory: EnvFactory, turns: Turns, codec: Codec, count: int, *, thoughts: bool) -> str:
    """Returns ``count`` episodes that an expert solves, as text.

    The tasks are those of the training split whose ids have the greatest SHA-256: the same for all, and, were the split
    measured too, not those of a sample, which have the smallest.

    Args:
        factory: Makes the environment, with the training split.
        turns: The expert.
        codec: Writes its actions.
        count: Number of episodes.
        thoughts: Write its thoughts.

    Raises:
        UsageError: It solves too few tasks.
        EnvsuiteError: The environment cannot be made, or has no training split.
    """
    examples: list[str] = []
    with closing(factory.make()) as env:
        world = env.unwrapped
        assert isinstance(world, ToolEnv)
        ids = sorted(world.tasks.ids(SPLIT), key=lambda task: hashlib.sha256(task.encode()).digest())[::-1]
        for task in ids[: _TRIES * count]:
            if (lines := _episode(env, world, task, turns, codec, thoughts)) is not None:
                examples.append(f"Example {len(examples) + 1}\n" + "\n".join(lines))
            if len(examples) == count:
                return "\n\n".join(examples)
    raise UsageError(f"its expert solves {len(examples)} of the tasks that were tried; set fewer")


def _episode(
    env: gymnasium.Env[Any, Action], world: ToolEnv, task: str, turns: Turns, codec: Codec, thoughts: bool
) -> list[str] | None:
    """Returns the lines of an episode; ``None`` if it was not solved."""
    observation, _ = env.reset(options={"task_id": task})
    lines = [observation["task"], ""]
    for move in turns(env):
        answer = codec.write(move.action, move.thought if thoughts else "", world.tools)
        lines += [f"Observation: {observation['text']}", f"Answer: {answer}"]
        observation, _, terminated, truncated, info = env.step(move.action)
        if terminated or truncated:
            return [*lines, f"Observation: {observation['text']}"] if info["success"] else None
    return None


def teacher_turns(env_id: str) -> Turns:
    """Returns the moves of an environment's teacher; of one without a teacher, those of its expert.

    Raises:
        UnknownName: There is no such environment, or it has neither.
    """
    teacher = practice_of(env_id).teacher()
    return lambda env: teacher.turns(env, random.Random(0))


def expert_turns(env_id: str) -> Turns:
    """Returns the moves of an environment's expert, without thoughts.

    Raises:
        UnknownName: It has none.
    """
    teacher = ExpertTeacher(make_player(env_id, "expert"))
    return lambda env: teacher.turns(env, random.Random(0))
