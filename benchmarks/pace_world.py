"""``benchmarks.pace_world:Pace-v0``: episodes of stated lengths, whose steps take stated times and no CPU.

The id of a task says all: ``MEDIAN SIGMA EPISODE``, where the latencies of the steps are lognormal with this median in
milliseconds and this sigma, and the length is lognormal with mean 12 and sigma 0.8, at most 50 steps.
"""

from __future__ import annotations

import math
import time
from itertools import product

import gymnasium
import numpy as np

from envsuite.core import Observation, Outcome, StepInfo, TaskSet, Tool, ToolCall, ToolEnv
from envsuite.core.tools import Action

MEAN_STEPS, SIGMA_STEPS, MOST_STEPS = 12.0, 0.8, 50
MEDIANS, SIGMAS, EPISODES = (0, 20, 100, 500), (0.5, 1.0, 1.5), 256
"""Medians in milliseconds, and sigmas, of the latencies; episodes of each pair."""


def task_of(median: int, sigma: float, episode: int) -> str:
    """The id of a task."""
    return f"{median} {sigma:g} {episode}"


TASKS = TaskSet(
    "Pace-v0",
    "builtin",
    "1",
    {"train": tuple(task_of(*one) for one in product(MEDIANS, SIGMAS, range(EPISODES)))},
    {task_of(*one): f"{one[0]} {one[1]:g}" for one in product(MEDIANS, SIGMAS, range(EPISODES))},
)


def length(episode: int) -> int:
    """Steps of an episode, the same for every latency."""
    mu = math.log(MEAN_STEPS) - SIGMA_STEPS**2 / 2
    drawn = np.random.default_rng([episode, 0]).lognormal(mu, SIGMA_STEPS)
    return int(np.clip(round(drawn), 1, MOST_STEPS))


def latencies(task_id: str) -> list[float]:
    """Seconds that the reset and each step of a task take."""
    median, sigma, episode = task_id.split()
    drawn = np.random.default_rng([int(episode), 1]).lognormal(0.0, float(sigma), length(int(episode)) + 1)
    return [float(seconds) for seconds in int(median) / 1000 * drawn]


class Pace(ToolEnv):
    """Waits, and counts its steps."""

    tools = (Tool("go", "Go on.", {"type": "object", "properties": {}, "additionalProperties": False}),)

    def __init__(self, split: str | None = "train", render_mode: str | None = None) -> None:
        super().__init__(TASKS, split, render_mode)
        self.taken = 0
        self._seconds = [0.0]

    def _begin(self, task_id: str) -> tuple[str, Outcome]:
        self.taken, self._seconds = 0, latencies(task_id)
        time.sleep(self._seconds[0])
        return "Go.", Outcome("go")

    def _call(self, call: ToolCall) -> Outcome:
        return Outcome("go", reward=1.0)

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, StepInfo]:  # type: ignore[override]
        """Takes its time; ends the episode after as many steps as it has, whatever they are."""
        self.taken += 1
        time.sleep(self._seconds[self.taken])
        observation, reward, _, truncated, info = super().step(action)
        self._done = self.taken == len(self._seconds) - 1
        return observation, reward, self._done, truncated, info

    def _state_key(self) -> str:
        return str(self.taken)

    def _propose(self, rng: np.random.Generator) -> ToolCall:
        return ToolCall("go", {})


if "Pace-v0" not in gymnasium.registry:
    gymnasium.register("Pace-v0", entry_point=Pace)
