"""The figures of BabyAI-v0."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import gymnasium

from benchmarks.envs.measure import Row, seconds
from envsuite.babyai.env import BabyAI
from envsuite.babyai.world import COMMANDS, LEVELS
from envsuite.core.tools import ToolCall

_STEPS = 20


def babyai(level: str) -> list[Row]:
    """The figures of BabyAI-v0 on the built-in test worlds of a level, in random play."""
    ids = BabyAI(level=level).tasks.ids("test")
    draw = random.Random(0)
    plays = [[draw.choice(COMMANDS) for _ in range(_STEPS)] for _ in ids]
    inner: Any = gymnasium.make(LEVELS[level], disable_env_checker=True).unwrapped

    def ours(env: gymnasium.Env[Any, Any]) -> tuple[Callable[[str], object], Callable[[str], Any]]:
        return (
            lambda task_id: env.reset(options={"task_id": task_id}),
            lambda command: env.step((ToolCall("act", {"command": command}),)),
        )

    def played(env: tuple[Callable[[str], object], Callable[[str], Any]], count: int = _STEPS) -> int:
        (reset, step), steps = env, 0
        for task_id, commands in zip(ids, plays, strict=True):
            reset(task_id)
            for command in commands[:count]:
                steps += 1
                if step(command)[2]:
                    break
        return steps

    envs = {
        "minigrid alone": (
            lambda task_id: inner.reset(seed=int(task_id.rpartition("/")[2])),
            lambda command: inner.step(COMMANDS.index(command)),
        ),
        "whole contract: BabyAI.step, view=agent": ours(BabyAI(level=level)),
        "whole contract: BabyAI.step, view=full": ours(BabyAI(level=level, view="full")),
    }
    rows = []
    for name, env in envs.items():
        resets = seconds(lambda env=env: played(env, 0))
        rows.append((name, f"{played(env) / (seconds(lambda env=env: played(env)) - resets):,.0f} steps/s"))
        rows.append(("    reset", f"{len(ids) / resets:,.0f} resets/s"))
    return rows
