"""Each step pays twice what the one before did, so that a sum of rewards says which steps it has.

Registered as ``counting_world:Counting-v0``. The command "stop" ends an episode.
"""

from __future__ import annotations

import gymnasium
from bandit_world import COMMAND

from envsuite.core import Outcome, TaskSet, Tool, ToolCall, ToolEnv


class Counting(ToolEnv):
    tools = (Tool("do", "Do something.", COMMAND),)

    def __init__(self, split="train", render_mode=None):
        super().__init__(
            TaskSet("Counting-v0", "builtin", "1", {"train": ("one",)}, {"one": "plain"}), split, render_mode
        )

    def _begin(self, task_id):
        self.count = 0
        return "Count.", Outcome("seen nothing")

    def _call(self, call: ToolCall):
        self.count += 1
        stop = call.arguments["command"] == "stop"
        return Outcome(f"seen {self.count}", reward=2.0 ** (self.count - 1), done=stop, success=stop, score=float(stop))

    def _state_key(self):
        return str(self.count)


if "Counting-v0" not in gymnasium.registry:
    gymnasium.register("Counting-v0", entry_point=Counting, max_episode_steps=64)
