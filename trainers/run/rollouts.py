"""Episodes of an iteration: tasks are drawn, played in groups, and replaced where they give no learning signal."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from accelerate import Accelerator

from envsuite.core.errors import DataError
from trainers.credit.crediting import Crediting
from trainers.distributed import every
from trainers.rollout.engine import EngineFailed, Sampling
from trainers.rollout.episode import EpisodePlan
from trainers.rollout.manager import RolloutManager
from trainers.rollout.sampler import TaskSampler
from trainers.rollout.timing import Timing
from trainers.run.config import TrainConfig
from trainers.run.counters import Counters
from trainers.run.stopping import Abandoned, Stopping
from trainers.steps import Episode, StepTable

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Rolled:
    """The rollout of one iteration in this process."""

    episodes: Sequence[Episode]
    steps: StepTable
    """Steps of the episodes, rewards shaped."""
    timing: Timing
    refilled: Mapping[str, float]
    """Metrics of the replaced groups; empty where none may be replaced."""


@dataclass(frozen=True)
class Rollouts:
    """Plays the episodes of an iteration; every process plays its share of the groups."""

    config: TrainConfig
    accelerator: Accelerator
    sampler: TaskSampler
    manager: RolloutManager
    crediting: Crediting
    """Shapes rewards, and counts the informative groups."""
    sampling: Sampling
    counters: Counters
    stop: Stopping
    sync: Callable[[], None]
    """Gives the engine the policy's weights."""

    def __call__(self, iteration: int) -> Rolled:
        """Play ``rollout.tasks`` groups, and further ones for those without a signal (DAPO's dynamic sampling).

        Raises:
            Abandoned: The run is to stop; the drawn tasks have been put back.
            EngineFailed: The engine of some process failed; the drawn tasks have been put back.
            DataError: All episodes failed.
        """
        before, groups = self.sampler.state(), self.counters.groups
        tasks, most, rounds = self.config.rollout.tasks, self.config.method.refill_rounds, 0
        try:
            episodes, timing = self._play(tasks)
            check_episodes(self.accelerator, episodes, f"iteration {iteration}")
            tables = [self.crediting.shaped(episodes, iteration)]
            lacking = tasks - self.crediting.informative_groups(tables[0]) if most else 0
            while lacking > 0 and rounds < most:
                rounds += 1
                further, more = self._play(lacking)
                episodes, timing = episodes + further, timing + more
                tables.append(self.crediting.shaped(further, iteration))
                lacking -= self.crediting.informative_groups(tables[-1])
        except (Abandoned, EngineFailed):
            self.sampler.load(before)
            self.counters.groups = groups
            raise
        played = {"rounds": rounds, "groups": self.counters.groups - groups - tasks, "lacking": max(0, lacking)}
        refilled = {f"filter/refill_{name}": float(value) for name, value in played.items()} if most else {}
        return Rolled(episodes, StepTable.joined(tables), timing, refilled)

    def _play(self, tasks: int) -> tuple[list[Episode], Timing]:
        """Plays this process's share of the episodes of ``tasks`` further groups."""
        group_size, first = self.config.rollout.group_size, self.counters.groups
        size, rank, ranks = (
            episodes_per_task(self.config),
            self.accelerator.process_index,
            self.accelerator.num_processes,
        )
        plans = [
            EpisodePlan(group * size + member, group, env, task, greedy=member >= group_size)
            for group, (env, task) in enumerate(self.sampler.draw(tasks), start=first)
            if group % ranks == rank
            for member in range(size)
        ]
        self.sync()
        seed = self.config.seed + 1
        episodes = self.stop.phase(
            "rollout", len(plans), lambda watch: self.manager.run(plans, self.sampling, seed, watch)
        )
        self.counters.groups += tasks
        return episodes, self.manager.timing


def episodes_per_task(config: TrainConfig) -> int:
    """Returns the number of episodes per task, the greedy one of a baseline included."""
    return config.rollout.group_size + config.method.greedy_baseline


def check_episodes(accelerator: Accelerator, episodes: Sequence[Episode], what: str) -> None:
    """Warns of failed episodes of all processes, which are left out and counted.

    Raises:
        DataError: All episodes failed.
    """
    errors = [error for part in every(accelerator, [e.error for e in episodes]) for error in part]
    failed = [error for error in errors if error is not None]
    if failed and accelerator.is_main_process:
        _LOG.warning("%s: %d of %d episodes failed, e.g. %s", what, len(failed), len(errors), failed[0])
    if len(failed) == len(errors):
        raise DataError(f"{what}: all {len(errors)} episodes failed, e.g. {failed[0]}")
