"""Curricula: tasks are drawn by their success so far, and episodes of later iterations take more steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from trainers.settings import AtLeastOne, Decay, Share


@dataclass(frozen=True)
class SuccessCurriculum:
    """Draws tasks by their success so far: a group compares most where about half of its episodes succeed."""

    floor: Share = 0.1
    """Least probability with which a pass over the split plays a task."""
    decay: Decay = 0.9
    """What the counts of a task or of a type weigh when an iteration adds to them."""


@dataclass(frozen=True)
class HorizonCurriculum:
    """Raises the most steps of an episode by stages (ScalingInter-RL, Xi et al. 2025, arXiv 2509.08755)."""

    steps: Annotated[list[AtLeastOne], Field(min_length=1)] = field(default_factory=lambda: [10, 20, 30])
    """Most steps of an episode, stage after stage. The environment's own horizon holds as well."""
    every: AtLeastOne = 100
    """Iterations of a stage; the last one lasts to the end of the run."""

    def limit(self, iteration: int) -> int:
        """Returns the most steps of an episode that begins in an iteration; the first one is 1."""
        return self.steps[min((iteration - 1) // self.every, len(self.steps) - 1)]


@dataclass(frozen=True)
class Curricula:
    """The curricula of ``rollout.curriculum``, by name."""

    success: SuccessCurriculum | None = None
    """How tasks are drawn by their success; ``None``: all alike."""
    horizon: HorizonCurriculum | None = None
    """Most steps of an episode; ``None``: those of its environment."""


class SuccessRates:
    """Smoothed success rates of tasks and of their types.

    The rate is (s + q) / (n + 1) after s successes in n episodes, both decayed. The prior q of a task is the rate of
    its type, and that of a type is 1/2: a task that was never played counts as its type does.

    Args:
        config: Floor and decay.
        types: Type of each task, for each pool.
    """

    def __init__(self, config: SuccessCurriculum, types: Sequence[Mapping[str, str]]) -> None:
        self.config = config
        self.tasks: dict[int, tuple[int, str]] = {}
        """Pool and task of each group whose outcomes are not known yet."""
        self._types = types
        self._counts: dict[str, NDArray[np.float64]] = {}
        """Successes and episodes of each type and task, shape (2,)."""

    def rate(self, pool: int, task: str) -> float:
        """Returns the success rate of a task."""
        rate = 0.5
        for key in self._keys(pool, task):
            successes, episodes = self._counts.get(key, (0.0, 0.0))
            rate = float((successes + rate) / (episodes + 1.0))
        return rate

    def probability(self, pool: int, task: str) -> float:
        """Returns floor + (1 - floor) 4p(1 - p), the probability with which a pass over the pool plays a task."""
        rate = self.rate(pool, task)
        return self.config.floor + (1.0 - self.config.floor) * 4.0 * rate * (1.0 - rate)

    def learn(self, outcomes: Sequence[tuple[int, bool]]) -> float:
        """Counts the outcomes of an iteration: group and success of each episode, over all processes.

        Returns:
            The mean rate that the groups' tasks had before.
        """
        groups, new = sorted({group for group, _ in outcomes}), dict[str, NDArray[np.float64]]()
        mean = float(np.mean([self.rate(*self.tasks[group]) for group in groups]))
        for group, success in outcomes:
            for key in self._keys(*self.tasks[group]):
                new[key] = new.get(key, np.zeros(2)) + np.array([success, 1.0])
        for key, counts in new.items():
            self._counts[key] = self.config.decay * self._counts.get(key, np.zeros(2)) + counts
        self.tasks = {group: task for group, task in self.tasks.items() if group > groups[-1]}
        return mean

    def _keys(self, pool: int, task: str) -> tuple[str, str]:
        return f"{pool}/type/{self._types[pool].get(task, '')}", f"{pool}/task/{task}"

    def state(self) -> dict[str, Any]:
        """Returns counts, and the tasks whose outcomes are not known yet, as JSON values."""
        counts = {key: pair.tolist() for key, pair in self._counts.items()}
        return {"counts": counts, "tasks": [[group, *task] for group, task in self.tasks.items()]}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restores :meth:`state`."""
        self._counts = {key: np.array(pair) for key, pair in state["counts"].items()}
        self.tasks = {group: (pool, task) for group, pool, task in state["tasks"]}
