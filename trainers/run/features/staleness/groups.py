"""The groups between rollout and update: admitted up to a bound, taken in the order in which they were started."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from accelerate import Accelerator

from envsuite.core.errors import UsageError
from envsuite.playing.engine import EngineFailed
from envsuite.playing.episode import EpisodePlan
from envsuite.playing.step import Episode
from trainers.policy.stateful import StateMismatch
from trainers.processes.distributed import all_gather_object
from trainers.steps.parquet import as_bytes, from_bytes


@dataclass(frozen=True)
class OpenGroup:
    """A group that was started and that no update has taken."""

    number: int
    plans: tuple[EpisodePlan, ...]
    version: int
    """Version of the newest weights when it was started."""


class GroupPool:
    """Groups that are played or wait for their update.

    At most ``(staleness + 1) * tasks`` groups are in it, over all processes, and each update takes the first ``tasks``
    of them. So one that is started under the weights of update v is taken by update v + ``staleness`` at the latest,
    whatever the length of its episodes: none is left behind because others were shorter.

    Groups are known in every process, in the same order. A process holds the episodes of its own.

    Args:
        accelerator: The run's accelerator.
        tasks: Groups that an update takes, over all processes.
        staleness: Most updates that may change the weights between a token and the update that is trained on it.
    """

    def __init__(self, accelerator: Accelerator, tasks: int, staleness: int) -> None:
        self.accelerator = accelerator
        self.capacity = (staleness + 1) * tasks
        self.staleness = staleness
        self.ended = 0
        """Episodes that have entered since this process began."""
        self._groups: dict[int, OpenGroup] = {}
        self._episodes: dict[int, dict[int, Episode]] = {}
        """Episodes of this process's groups that have ended, by group and id."""
        self._taken: list[tuple[OpenGroup, dict[int, Episode] | None]] = []
        """Groups that were taken for the next update, with their episodes where they are this process's."""
        self._versions: list[int] = []
        """Versions of the last weights that updates started from; at most ``staleness + 2``."""

    def __len__(self) -> int:
        """Number of groups in the pool, over all processes."""
        return len(self._groups)

    @property
    def room(self) -> int:
        """Number of groups that may be started."""
        return max(0, self.capacity - len(self))

    @property
    def whole(self) -> int:
        """Number of this process's groups whose episodes have all ended."""
        return sum(len(episodes) == len(self._groups[number].plans) for number, episodes in self._episodes.items())

    def record_version(self, version: int) -> None:
        """Records the version of the weights that the next update starts from."""
        if version not in self._versions:
            self._versions = [*self._versions, version][-(self.staleness + 2) :]

    def start(self, groups: Iterable[tuple[int, Sequence[EpisodePlan]]]) -> list[EpisodePlan]:
        """Enters groups, as numbers and plans, in every process; returns the plans that this process is to play.

        Raises:
            UsageError: A number is there already.
        """
        mine: list[EpisodePlan] = []
        for number, plans in groups:
            if number in self._groups:
                raise UsageError(f"group {number} was started twice")
            self._groups[number] = OpenGroup(number, tuple(plans), self._versions[-1])
            if self._is_own(number):
                self._episodes[number] = {}
                mine += plans
        return mine

    def open_plans(self) -> list[EpisodePlan]:
        """Returns the plans of this process whose episodes have not ended, in order."""
        pairs = [(plan, own) for number, own in self._episodes.items() for plan in self._groups[number].plans]
        return [plan for plan, own in pairs if plan.episode_id not in own]

    def enter(self, episode: Episode) -> None:
        """Takes an episode that has ended.

        Raises:
            UsageError: It was not started here, or has ended before: it would be counted twice.
            EngineFailed: Weights that are older than its group, or newer than any, sampled it.
        """
        group, episodes = self._groups.get(episode.group_id), self._episodes.get(episode.group_id)
        if group is None or episodes is None or episode.episode_id not in {plan.episode_id for plan in group.plans}:
            raise UsageError(f"episode {episode.episode_id} of group {episode.group_id} is not one that is played")
        if episode.episode_id in episodes:
            raise UsageError(f"episode {episode.episode_id} of group {episode.group_id} has ended twice")
        oldest, newest = _sampling_versions(episode) or (group.version, group.version)
        if oldest < group.version or newest > self._versions[-1]:
            raise EngineFailed(
                f"stale weights: the engine sampled episode {episode.episode_id} with version {oldest} to {newest}, "
                f"but was given version {group.version} before it and {self._versions[-1]} last"
            )
        episodes[episode.episode_id] = episode
        self.ended += 1

    def first(self, count: int) -> list[int]:
        """Numbers of the next ``count`` groups, of all processes."""
        return list(islice(self._groups, count))

    def lacking(self, numbers: Sequence[int]) -> int:
        """Number of this process's episodes of these groups that have not ended."""
        return sum(len(self._groups[n].plans) - len(self._episodes[n]) for n in numbers if n in self._episodes)

    def age(self, number: int) -> int:
        """Returns how many updates have changed the weights since the oldest token of a group of this process."""
        spans = map(_sampling_versions, self._episodes[number].values())
        oldest = min((span[0] for span in spans if span is not None), default=self._versions[-1])
        return sum(version > oldest for version in self._versions)

    def too_old(self, numbers: Sequence[int]) -> list[int]:
        """Those of these groups that are older than ``staleness``; every process must call this, and gets all."""
        mine = [number for number in numbers if number in self._episodes and self.age(number) > self.staleness]
        return [number for part in all_gather_object(self.accelerator, mine) for number in part]

    def take(self, numbers: Sequence[int]) -> list[Episode]:
        """Removes groups, in every process; returns the episodes of this process, in the order of their plans."""
        mine: list[Episode] = []
        for number in numbers:
            group, episodes = self._groups.pop(number), self._episodes.pop(number, None)
            self._taken.append((group, episodes))
            mine += [episodes[plan.episode_id] for plan in group.plans if episodes and plan.episode_id in episodes]
        return mine

    def put_back(self) -> None:
        """Returns the groups that were taken since :meth:`use` to their places, in every process."""
        for group, episodes in self._taken:
            self._groups[group.number] = group
            if episodes is not None:
                self._episodes[group.number] = episodes
        self._groups, self._episodes = dict(sorted(self._groups.items())), dict(sorted(self._episodes.items()))
        self._taken = []

    def use(self) -> None:
        """Forgets the groups that were taken: an update uses them."""
        self._taken = []

    def _is_own(self, number: int) -> bool:
        return bool(number % self.accelerator.num_processes == self.accelerator.process_index)

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """The groups in order, and the episodes that have ended, of every process, as Parquet."""
        episodes = [episode for by_id in self._episodes.values() for episode in by_id.values()]
        parts = all_gather_object(self.accelerator, as_bytes(episodes) if episodes else b"")
        return {
            "versions": self._versions,
            "groups": [
                {
                    "number": group.number,
                    "version": group.version,
                    "plans": [[p.episode_id, p.env, p.task_id, p.greedy, p.steps] for p in group.plans],
                }
                for group in self._groups.values()
            ],
            "episodes": [np.frombuffer(part, np.uint8).copy() for part in parts if part],
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restores the pool, with whatever number of processes the state was written.

        Raises:
            StateMismatch: An episode belongs to no group.
            DataError: The episodes are damaged.
        """
        self._versions = [int(version) for version in state["versions"]]
        self._groups, self._episodes = {}, {}
        for body in state["groups"]:
            number = int(body["number"])
            plans = tuple(
                EpisodePlan(i, number, env, task, greedy, steps=steps) for i, env, task, greedy, steps in body["plans"]
            )
            self._groups[number] = OpenGroup(number, plans, int(body["version"]))
            if self._is_own(number):
                self._episodes[number] = {}
        for part in state["episodes"]:
            for episode in from_bytes(part.tobytes(), "the checkpoint's episodes"):
                if (group := episode.group_id) not in self._groups:
                    raise StateMismatch(f"episode {episode.episode_id} is of group {group}, which is not there")
                if self._is_own(group):
                    self.enter(episode)
        self.ended = 0


def _sampling_versions(episode: Episode) -> tuple[int, int] | None:
    """The versions that sampled an episode; ``None`` of one that failed, which is not trained on."""
    return episode.versions if episode.error is None else None
