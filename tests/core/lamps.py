"""A small real environment: a row of lamps, to be switched on one by one, in any order."""

from __future__ import annotations

import numpy as np

from envsuite.core import Outcome, TaskSet, Tool, ToolCall, ToolEnv

SWITCH = Tool(
    "switch",
    "Switch a lamp on.",
    {
        "type": "object",
        "properties": {"lamp": {"type": "integer", "minimum": 0}},
        "required": ["lamp"],
        "additionalProperties": False,
    },
)
LOOK = Tool("look", "Say which lamps are on.", {"type": "object", "properties": {}, "additionalProperties": False})

TASKS = TaskSet(
    env_id="Lamps-v0",
    source="builtin",
    version="1",
    splits={"train": ("two", "three"), "test": ("four", "five", "six"), "empty": ()},
    types={"two": "small", "three": "small", "four": "large", "five": "large", "six": "large"},
)
SIZES = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6}


class Lamps(ToolEnv):
    """Reward 1 when every lamp is on; a lamp that is on, or does not exist, refuses."""

    tools = (SWITCH, LOOK)
    max_calls = 3

    def __init__(self, split: str = "train", render_mode: str | None = None) -> None:
        super().__init__(TASKS, split, render_mode)
        self.lamps: tuple[bool, ...] = ()

    def _begin(self, task_id: str) -> tuple[str, Outcome]:
        self.lamps = (False,) * SIZES[task_id]
        return f"Switch {task_id} lamps on.", self._look()

    def _call(self, call: ToolCall) -> Outcome:
        if call.name == "look":
            return self._look()
        lamp = call.arguments["lamp"]
        if lamp >= len(self.lamps) or self.lamps[lamp]:
            return Outcome(f"No lamp {lamp} is off.", error=f"no lamp {lamp} is off", commands=self._commands())
        self.lamps = (*self.lamps[:lamp], True, *self.lamps[lamp + 1 :])
        return self._look()

    def _look(self) -> Outcome:
        done = all(self.lamps)
        return Outcome(
            text="".join("o" if lamp else "." for lamp in self.lamps),
            reward=float(done),
            done=done,
            commands=self._commands(),
            success=done,
            score=sum(self.lamps) / len(self.lamps),
            metrics={"lamps_on": float(sum(self.lamps))},
        )

    def _commands(self) -> tuple[str, ...]:
        return tuple(f"switch {i}" for i, lamp in enumerate(self.lamps) if not lamp)

    def _state_key(self) -> str:
        return str(self.lamps)

    def _propose(self, rng: np.random.Generator) -> ToolCall:
        return ToolCall("switch", {"lamp": int(rng.integers(8))})

    def _save(self) -> tuple[bool, ...]:
        return self.lamps

    def _resume(self, task_id: str, world: tuple[bool, ...]) -> None:
        self.lamps = world
