"""An environment with one task that never begins. Registered as ``hanging_world:Hanging-v0``."""

import signal
import time

import gymnasium
from bandit_world import Bandit

from envsuite.core import TaskSet

TASKS = tuple(f"task {number}" for number in range(8))


class Hanging(Bandit):
    def __init__(self, split="train", render_mode=None):
        super().__init__(split, render_mode)
        self.tasks = TaskSet("Hanging-v0", "builtin", "1", {"train": TASKS}, dict.fromkeys(TASKS, "plain"))

    def _begin(self, task_id):
        if task_id == TASKS[0]:
            time.sleep(10_000)
        return super()._begin(task_id)


class Deaf(Hanging):
    """No signal interrupts what hangs, as in code that Python did not compile."""

    def _begin(self, task_id):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
        return super()._begin(task_id)


if "Hanging-v0" not in gymnasium.registry:
    gymnasium.register("Hanging-v0", entry_point=Hanging, max_episode_steps=2)
    gymnasium.register("Deaf-v0", entry_point=Deaf, max_episode_steps=2)
