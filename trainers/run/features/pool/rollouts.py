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
from trainers.run.features.pool.files import StoredEpisodes
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
    """Takes the episodes of an iteration from a pool, each once; every process its share of the groups.

    What is imitated (``rft``) compares no episodes: single ones are taken, and each again once all have been.
    """

    pool: Pool | StoredEpisodes
    wanted: SessionConditions
    taken: dict[str, Any] | None = None
    """Counts of what was taken, as :meth:`~trainers.pool.pool.Pool.take` says it; ``None`` before."""
    passes: int = 0
    """Times that all episodes have been taken."""

    def __call__(self, iteration: int) -> IterationRollout:
        """Takes the groups."""
        return IterationRollout(*self._play(self.config.rollout.tasks), {})

    def _play(self, tasks: int) -> tuple[list[Episode], Timing]:
        size, imitates = self.config.rollout.group_size, self.config.method.imitates
        query, episodes = Query(**vars(self.wanted), group_size=None if imitates else size), list[Episode]()
        taken, passes = self.taken, self.passes
        while left := tasks * size - len(episodes):
            begins = taken is None
            more, taken = self.pool.take(query, left, self.config.seed + passes, taken)
            episodes += more
            if len(more) < left:
                if not imitates or (begins and not more):
                    raise DataError(
                        f"pool {self.pool.folder}: {len(more) // size} whole groups of {size} are left that pool.take "
                        f"finds, and an iteration takes {tasks}; widen the query, make rollout.tasks smaller, or store "
                        "more"
                    )
                taken, passes = None, passes + 1
        self.taken, self.passes = taken, passes
        first, self.counters.groups = self.counters.groups * size, self.counters.groups + tasks
        own = [
            replace(episode, group_id=group, episode_id=number)
            for number, episode in enumerate(episodes, first)
            if self.is_own(group := number if imitates else number // size)
        ]
        return own, Timing()

    @property
    def parts(self) -> dict[str, Stateful]:
        """What has been taken."""
        return {"taken": self}

    def state(self) -> Mapping[str, Any]:
        """Returns what has been taken: a part of the checkpoint, so that consumption goes back with it."""
        return {"taken": self.taken, "passes": self.passes}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restores :meth:`state`."""
        self.taken, self.passes = state["taken"], state["passes"]

    def close(self) -> None:
        """Closes the pool."""
        self.pool.close()
