"""One step, four arms, one of which is rewarded. Registered as ``bandit_world:Bandit-v0``."""

import gymnasium

from envsuite.core import Outcome, TaskSet, Tool, ToolCall, ToolEnv

ARMS = ("north", "east", "south", "west")
COMMAND = {
    "type": "object",
    "properties": {"command": {"type": "string"}},
    "required": ["command"],
    "additionalProperties": False,
}


class Bandit(ToolEnv):
    tools = (Tool("do", "Pull an arm.", COMMAND),)

    def __init__(self, split="train", render_mode=None):
        types = {"one": "plain", "two": "plain"}
        super().__init__(TaskSet("Bandit-v0", "builtin", "1", {"train": ("one", "two")}, types), split, render_mode)

    def _begin(self, task_id):
        self.right = "south"
        return f"Task {task_id}", Outcome("ready")

    def _call(self, call: ToolCall):
        right = call.arguments["command"] == self.right
        return Outcome(
            "done", reward=float(right), done=True, success=right, score=float(right), metrics={"pulls": 1.0}
        )

    def _state_key(self):
        return self._task_id

    def _propose(self, rng):
        return ToolCall("do", {"command": ARMS[int(rng.integers(4))]})


if "Bandit-v0" not in gymnasium.registry:
    gymnasium.register("Bandit-v0", entry_point=Bandit, max_episode_steps=1)
