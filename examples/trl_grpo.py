"""TRL's GRPOTrainer: python examples/trl_grpo.py MODEL STEPS [ENV ['{"url": "http://…", …}']]; needs trl."""

import json
import sys

import gymnasium
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from envsuite.core.methods import as_method  # importing anything of envsuite registers the ids

MODEL, STEPS, ENV, KWARGS = (*sys.argv[1:], *(None, None, "TextCraft-v0", "{}")[len(sys.argv) - 1 :])


class Episode:  # what TRL asks for: reset, get_reward, and a method for each tool
    def __init__(self):
        self._env = gymnasium.make(ENV, **json.loads(KWARGS))

    def reset(self, task_id, **_):
        observation, _ = self._env.reset(options={"task_id": task_id})
        self._reward, self._done = 0.0, False
        return f"{observation['task']}\n\n{observation['text']}"

    def get_reward(self):
        return self._reward

    def _act(self, call):
        if self._done:
            return "The episode has ended."
        observation, reward, terminated, truncated, _ = self._env.step([call])
        self._reward, self._done = self._reward + reward, terminated or truncated
        return observation["text"]


if (env := Episode()._env.unwrapped).tools_change:
    sys.exit(
        f"{ENV}: its tools change in mid-conversation, and TRL takes one list of them; train it with envsuite train"
    )
for tool in env.tools:
    setattr(Episode, tool.name, as_method(tool, Episode._act))
rows = [{"prompt": [{"role": "user", "content": ""}], "task_id": task} for task in env.tasks.ids("train")]
config = GRPOConfig("runs/trl", max_steps=int(STEPS), max_completion_length=4096, logging_steps=1, bf16=False)
GRPOTrainer(MODEL, args=config, train_dataset=Dataset.from_list(rows), environment_factory=Episode).train()
