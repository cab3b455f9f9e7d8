"""Three arms to pull, the last of which is rewarded; ``state`` says what its state keys tell.

Registered as ``corridor_world:Corridor-v0``.
"""

from itertools import count

import gymnasium
from bandit_world import ARMS, COMMAND

from envsuite.core import Outcome, TaskSet, Tool, ToolCall, ToolEnv

NUMBERS = count()


class Corridor(ToolEnv):
    tools = (Tool("do", "Pull an arm.", COMMAND),)

    def __init__(self, split="train", render_mode=None, state="room", paid="south"):
        self.state, self.paid, self.place = state, paid, ""
        super().__init__(
            TaskSet("Corridor-v0", "builtin", "1", {"train": ("one",)}, {"one": "plain"}), split, render_mode
        )

    def _begin(self, task_id):
        self.place = ""
        return f"Task {task_id}", Outcome("ready")

    def _call(self, call: ToolCall):
        self.place += call.arguments["command"][0]
        done = len(self.place) == 3
        right = done and call.arguments["command"] == self.paid
        return Outcome("ready", reward=float(right), done=done, success=right, score=float(right))

    def _state_key(self):
        return {"room": self.place, "constant": "room", "never": str(next(NUMBERS))}[self.state]

    def _propose(self, rng):
        return ToolCall("do", {"command": ARMS[int(rng.integers(4))]})


if "Corridor-v0" not in gymnasium.registry:
    gymnasium.register("Corridor-v0", entry_point=Corridor, max_episode_steps=3)
