"""A walk of three places, with snapshots and its exact values. Registered as ``walk_world:Walk-v0``.

Right leads on, and from the last place to the goal, which pays 1; left leads back. Each step to the left costs 0.1.
"""

from __future__ import annotations

from functools import cache

import gymnasium
from bandit_world import COMMAND

from envsuite.core import Outcome, TaskSet, Tool, ToolCall, ToolEnv

PLACES, LIMIT, COST = 3, 6, 0.1
RIGHT = 0.7
"""Probability of going right, of the policy whose values are known."""


class Walk(ToolEnv):
    tools = (Tool("do", "Go left or right.", COMMAND),)

    def __init__(self, split="train", render_mode=None):
        types = {"one": "plain", "two": "plain"}
        super().__init__(TaskSet("Walk-v0", "builtin", "1", {"train": ("one", "two")}, types), split, render_mode)

    def _begin(self, task_id):
        self.place = 0
        return f"Task {task_id}", Outcome("place 0")

    def _call(self, call: ToolCall):
        right = call.arguments["command"] == "right"
        self.place = self.place + 1 if right else max(0, self.place - 1)
        won = self.place == PLACES
        reward = 1.0 if won else 0.0 if right else -COST
        return Outcome(f"place {self.place}", reward=reward, done=won, success=won, score=float(won))

    def _state_key(self):
        return str(self.place)

    def _propose(self, rng):
        return ToolCall("do", {"command": ("left", "right")[int(rng.integers(2))]})

    def _save(self):
        return self.place

    def _resume(self, task_id, world):
        self.place = world


class Rigid(Walk):
    _save, _resume = ToolEnv._save, ToolEnv._resume


@cache
def value(place: int, steps: int, gamma: float = 1.0) -> float:
    """Expected return from a place after so many steps."""
    if place == PLACES or steps == LIMIT:
        return 0.0
    right = float(place + 1 == PLACES) + gamma * value(place + 1, steps + 1, gamma)
    left = -COST + gamma * value(max(0, place - 1), steps + 1, gamma)
    return RIGHT * right + (1.0 - RIGHT) * left


for name, made in (("Walk-v0", Walk), ("Rigid-v0", Rigid)):
    if name not in gymnasium.registry:
        gymnasium.register(name, entry_point=made, max_episode_steps=LIMIT)
