"""How code of others fails, in each kind of environment; ``broken_worlds:Broken-v0`` and ``BrokenGym-v0``."""

import asyncio
import json
import math
import sys

import gymnasium

from envsuite.core import Outcome, TaskSet, Tool, ToolCall, ToolEnv


class Leaving(BaseException):
    """An exception that programs are not meant to catch, as pytest and PyO3 have them."""


def cancelled():
    async def work():
        asyncio.current_task().cancel()
        await asyncio.sleep(0)

    asyncio.run(work())


def leaving():
    raise Leaving("I go")


FAILURES = {
    "nan": (lambda: math.nan, "nan"),
    "infinite": (lambda: -math.inf, "-inf"),
    "text": (lambda: "0.5", "'0.5'"),
    "list": (lambda: [1], "[1]"),
    "exit": (lambda: sys.exit("usage: tool [-h] PATH"), "SystemExit was raised: usage: tool [-h] PATH"),
    "cancelled": (cancelled, "CancelledError was raised"),
    "leaving": (leaving, "Leaving was raised: I go"),
    "json": (lambda: json.loads("{bad judge answer")["score"], "JSONDecodeError"),
    "key": (lambda: {}["score"], "KeyError: 'score'"),
}
"""Name -> what is done instead of returning a reward, and what is told of it."""
NAMES = tuple(FAILURES)
COMMAND = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
FILE = """
from broken_worlds import FAILURES
from envsuite import Environment
env = Environment({"train": ["half \\ud83d a pair", "b"]}, goal=lambda task: task, steps=5)

@env.start
def start(task):
    return {}, "half \\ud83d a pair"

@env.tool
def do(world, command: str):
    "Does it."
    world["said"] = command
    where, _, kind = command.partition(" ")
    if where == "tool":
        FAILURES[kind][0]()
    return "whole \\ud83d\\ude00, half \\ude00"

@env.reward
def reward(world):
    where, _, kind = world["said"].partition(" ")
    return FAILURES[kind][0]() if where == "reward" else None

@env.state_key
def key(world):
    where, _, kind = world.get("said", "").partition(" ")
    return FAILURES[kind][0]() if where == "key" else "half \\ud83d"
"""


class Broken(ToolEnv):
    tools = (Tool("do", "Does it.", COMMAND),)

    def __init__(self, split="train", render_mode=None):
        super().__init__(TaskSet("Broken-v0", "builtin", "1", {"train": ("a",)}, {"a": "x"}), split, render_mode)

    def _begin(self, task_id):
        return "Go.", Outcome("half \ud83d a pair")

    def _call(self, call: ToolCall):
        kind = call.arguments["command"].partition(" ")[2]
        return Outcome("half \ude00", FAILURES[kind][0]() if kind in FAILURES else 0.0)

    def _state_key(self):
        return "half \ud83d"

    def _propose(self, rng):
        return ToolCall("do", {"command": "go"})


class BrokenGym(gymnasium.Env):
    """Each action is a failure; the last one is none."""

    observation_space = gymnasium.spaces.Text(100)
    action_space = gymnasium.spaces.Discrete(len(NAMES) + 1)

    def reset(self, *, seed=None, options=None):
        return "half \ud83d a pair", {}

    def step(self, action):
        return "half \ude00", FAILURES[NAMES[action]][0]() if action < len(NAMES) else 0.0, False, False, {}


for _id, _kind in {"Broken-v0": Broken, "BrokenGym-v0": BrokenGym}.items():
    if _id not in gymnasium.registry:
        gymnasium.register(_id, entry_point=_kind, max_episode_steps=20)
