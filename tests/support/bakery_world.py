"""A baker's apprentice whose tools change: after the first reply ``bake`` comes and ``knead`` goes.

Registered as ``bakery_world:Bakery-v0``. The second reply ends an episode, solved if something was baked.
"""

from __future__ import annotations

import gymnasium

from envsuite.core import Outcome, TaskSet, Tool, ToolCall, ToolEnv
from envsuite.core.tools import REPLY

KNEAD = Tool.of_string("knead", "Kneads dough.", "dough", "Which one.")
SELL = Tool.of_string("sell", "Sells a thing.", "thing", "Which one.")
BAKE = Tool.of_string("bake", "Bakes bread.", "bread", "Which one.")


class Bakery(ToolEnv):
    tools = (KNEAD, SELL, BAKE, REPLY)
    tools_change = True
    max_calls = 2

    def __init__(self, split="train", render_mode=None):
        super().__init__(TaskSet("Bakery-v0", "builtin", "1", {"train": ("rye",)}, {"rye": ""}), split, render_mode)

    def _begin(self, task_id):
        self.replies, self.baked = 0, 0
        return f"Make {task_id} bread.", Outcome("User: Begin.")

    def _offer(self):
        return ("knead", "sell", "reply") if not self.replies else ("sell", "bake", "reply")

    def _call(self, call: ToolCall):
        if call.name != "reply":
            self.baked += call.name == "bake"
            return Outcome(f"{call.name}: {next(iter(call.arguments.values()))}")
        self.replies += 1
        solved = self.replies == 2 and self.baked > 0
        return Outcome("User: Now bake.", float(solved), self.replies == 2, success=solved, score=float(solved))

    def _state_key(self):
        return f"{self.replies}-{self.baked}"

    def _propose(self, rng):
        return ToolCall("sell", {"thing": str(rng.integers(9))})


def reply(text="Done."):
    return (ToolCall("reply", {"text": text}),)


def bake():
    return (ToolCall("bake", {"bread": "rye"}),)


if "Bakery-v0" not in gymnasium.registry:
    gymnasium.register("Bakery-v0", entry_point=Bakery, max_episode_steps=20)
