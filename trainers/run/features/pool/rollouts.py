"""A run and a datapool: episodes that are played go into it, or those that are trained on come out of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from envsuite.core.errors import DataError
from envsuite.playing.episode import EpisodeCost, EpisodePlan
from envsuite.playing.step import Episode
from envsuite.playing.timing import Timing
from trainers.policy.stateful import Stateful
from trainers.pool import Pool, PoolWriter, Query, SessionConditions
from trainers.run.features.pool.settings import PoolConfig
from trainers.run.rollouts import IterationRollout, RolloutSource
from trainers.settings import ConfigError


class EpisodeStore:
    """Stores episodes as they end.

    Args:
        config: The pool.
        name: The run, as their source.
        ranks: Processes of the run.

    Raises:
        ConfigError: Several processes would write.
        UsageError: Another process writes it, or the hook cannot be loaded.
    """

    def __init__(self, config: PoolConfig, name: str, ranks: int) -> None:
        if ranks > 1:
            raise ConfigError(f"pool.folder has one writer, and the run {ranks} processes; leave out pool, or use one")
        self._writer = PoolWriter(config.folder, program=f"the run {name}", hook=config.hook)
        self._source, self._start = name, uuid4().hex[:8]

    def __call__(self, plan: EpisodePlan, episode: Episode, effort: EpisodeCost) -> None:
        """Stores an episode; a run that goes on from a checkpoint plays some again, which are sessions of their own."""
        about = {"source": self._source, "group_id": f"{self._start}/{plan.group_id}"}
        self._writer.store(f"{self._source}/{self._start}/{plan.episode_id}", episode, **about)

    def close(self) -> None:
        """Closes the pool."""
        self._writer.close()


@dataclass
class PooledRollouts(RolloutSource):
    """Takes the episodes of an iteration from a pool, each once; every process its share of the groups."""

    pool: Pool
    wanted: SessionConditions
    taken: dict[str, Any] | None = None
    """Counts of what was taken, as :meth:`~trainers.pool.pool.Pool.take` says it; ``None`` before."""

    def __call__(self, iteration: int) -> IterationRollout:
        """Takes the groups."""
        return IterationRollout(*self._play(self.config.rollout.tasks), {})

    def _play(self, tasks: int) -> tuple[list[Episode], Timing]:
        size = self.config.rollout.group_size
        query = Query(**vars(self.wanted), group_size=size)
        episodes, counts = self.pool.take(query, tasks * size, self.config.seed, self.taken)
        if len(episodes) < tasks * size:
            raise DataError(
                f"pool {self.pool.folder}: {len(episodes) // size} whole groups of {size} are left that pool.take "
                f"finds, and an iteration takes {tasks}; widen the query, make rollout.tasks smaller, or store more"
            )
        self.taken = counts
        first, self.counters.groups = self.counters.groups, self.counters.groups + tasks
        numbers = {group: first + i for i, group in enumerate(dict.fromkeys(episode.group_id for episode in episodes))}
        places = range(first * size, (first + tasks) * size)
        own = [
            replace(episode, group_id=numbers[episode.group_id], episode_id=number)
            for number, episode in zip(places, episodes, strict=True)
            if self.is_own(numbers[episode.group_id])
        ]
        return own, Timing()

    @property
    def parts(self) -> dict[str, Stateful]:
        """What has been taken."""
        return {"taken": self}

    def state(self) -> Mapping[str, Any]:
        """Returns what has been taken: a part of the checkpoint, so that consumption goes back with it."""
        return {"taken": self.taken}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restores :meth:`state`."""
        self.taken = state["taken"]

    def close(self) -> None:
        """Closes the pool."""
        self.pool.close()
