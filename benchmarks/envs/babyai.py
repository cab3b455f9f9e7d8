"""The figures of BabyAI-v0."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import gymnasium

from benchmarks.envs.measure import Env, Row, reset_rate, step_rates
from envsuite.babyai.env import BabyAI
from envsuite.babyai.world import COMMANDS, LEVELS
from envsuite.core.tools import Action, ToolCall

_STEPS = 20


class Minigrid(gymnasium.Env[Any, Any]):
    """minigrid alone, asked as BabyAI is."""

    def __init__(self, level: str) -> None:
        self.world: Any = gymnasium.make(LEVELS[level], disable_env_checker=True).unwrapped

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        """Begins the task that ``options`` name."""
        return self.world.reset(seed=int(str((options or {})["task_id"]).rpartition("/")[2]))

    def step(self, action: Action) -> Any:
        """Takes a step."""
        return self.world.step(COMMANDS.index(action[0].arguments["command"]))


def babyai(level: str) -> list[Row]:
    """The figures of BabyAI-v0 on the built-in test worlds of a level, in random play."""
    draw = random.Random(0)
    plays = {
        task_id: [(ToolCall("act", {"command": draw.choice(COMMANDS)}),) for _ in range(_STEPS)]
        for task_id in BabyAI(level=level).tasks.ids("test")
    }
    envs: dict[str, Env] = {
        "minigrid alone": Minigrid(level),
        "whole contract: BabyAI.step, view=agent": BabyAI(level=level),
        "whole contract: BabyAI.step, view=full": BabyAI(level=level, view="full"),
    }
    return step_rates(envs, plays) + [(f"{name}: reset", reset_rate(env, plays)) for name, env in envs.items()]
