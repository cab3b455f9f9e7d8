"""Episodes of an iteration that were begun while earlier iterations were trained on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from envsuite.playing.engine import EngineFailed
from envsuite.playing.loop import Rollout
from envsuite.playing.manager import Watcher
from envsuite.playing.step import Episode
from envsuite.playing.timing import Timing
from trainers.policy.stateful import Stateful
from trainers.processes.distributed import all_gather_object
from trainers.run.features.staleness.groups import GroupPool
from trainers.run.rollouts import IterationRollout, RolloutSource
from trainers.run.shortage import OutOfMemory
from trainers.run.stopping import Abandoned


@dataclass
class _Meter:
    """Measures of one iteration, in this process."""

    began: float = field(default_factory=time.perf_counter)
    """When the groups of the iteration before were taken."""
    waited: float = 0.0
    """Seconds in which the update waited for groups."""
    dropped: int = 0
    """Groups of all processes that were too old."""
    ages: list[int] = field(default_factory=list)
    """Updates that changed the weights since the oldest token of each of this process's groups."""


@dataclass
class AsynchronousRollouts(RolloutSource):
    """Takes the groups of an iteration from a pool in which those of the next iterations are played as well.

    Episodes are played while an iteration waits for its groups; those of later groups go on after its update, under
    newer weights. The tasks of an iteration (without a curriculum by success), and the numbers of its groups and
    episodes, are those of the synchronous loop; only the weights that sampled them are older.
    """

    pool: GroupPool
    rollout: Rollout
    """Plays the episodes, which enter the pool as they end."""
    sync: Callable[[], None]
    """Gives the engine the policy's weights: requests on their way go on under the new ones."""
    version: Callable[[], int]
    """Returns the version of the policy's weights."""
    _meter: _Meter = field(default_factory=_Meter, init=False)
    _playing: bool = field(default=False, init=False)
    """Whether the rollout has been given what the pool holds."""

    def __call__(self, iteration: int) -> IterationRollout:
        """Takes ``rollout.tasks`` groups, and further ones for those without a signal; starts as many as there is room.

        Raises:
            Abandoned: The run is to stop; what was played stays in the pool.
            EngineFailed: The engine of some process failed; what was played stays in the pool.
            OutOfMemory: Memory of some process ran out; what was played stays in the pool.
            DataError: All episodes failed.
        """
        self.pool.record_version(self.version())
        self.sync()
        if not self._playing:
            self._meter = _Meter()
            self.rollout.add(self.pool.open_plans())
            self._playing = True
        tasks = self.config.rollout.tasks
        used = (self.config.iterations - iteration + 1) * tasks  # by this update and those that follow
        while room := min(tasks, self.pool.room, max(0, used - len(self.pool))):
            self._start(room)
        try:
            rollout = super().__call__(iteration)
        except (Abandoned, EngineFailed, OutOfMemory):
            self.pool.put_back()
            raise
        self.pool.use()
        meter, self._meter = self._meter, _Meter()
        seconds = self._meter.began - meter.began
        metrics = {**rollout.metrics, **self._metrics(meter, seconds)}
        return replace(rollout, metrics=metrics, seconds=seconds, covered=seconds)

    @property
    def parts(self) -> dict[str, Stateful]:
        """The pool."""
        return {"pool": self.pool}

    def settle(self) -> None:
        """Leaves this process's engine to others until the next call; every process must call this.

        Raises:
            Abandoned: The run is to stop.
            EngineFailed: The engine of some process failed.
        """
        self.stop.phase("rollout", 0, lambda watch: self.rollout.settle())

    def progress(self) -> int:
        """Number of episodes of all processes that have ended; every process must call this."""
        return sum(all_gather_object(self.accelerator, self.pool.ended))

    def close(self) -> None:
        """Closes the environments."""
        self.rollout.manager.vector.close()

    def _start(self, groups: int) -> None:
        self.rollout.add(self.pool.start(self.draw_groups(groups)))

    def _play(self, tasks: int) -> tuple[list[Episode], Timing]:
        episodes: list[Episode] = []
        meter, began = self._meter, time.perf_counter()
        while tasks:
            while len(self.pool) < tasks:
                self._start(tasks - len(self.pool))
            numbers = self.pool.first(tasks)
            self.stop.phase("rollout", self.pool.lacking(numbers), partial(self._wait, numbers))
            old = self.pool.too_old(numbers)
            self.pool.take(old)
            fresh_numbers = [number for number in numbers if number not in old]
            meter.ages += [self.pool.age(number) for number in fresh_numbers if self.is_own(number)]
            episodes += self.pool.take(fresh_numbers)
            meter.dropped += len(old)
            tasks = len(old)
        meter.waited += time.perf_counter() - began
        return episodes, self.rollout.take_timing()

    def _wait(self, numbers: Sequence[int], watch: Watcher) -> None:
        """Plays until this process's episodes of these groups have ended."""
        total = self.pool.lacking(numbers)
        while lacking := self.pool.lacking(numbers):
            if self.rollout.busy:
                self.rollout.advance()
            self.rollout.ledger.groups.clear()
            watch(total - lacking, self.rollout.oldest())

    def _metrics(self, meter: _Meter, seconds: float) -> dict[str, float]:
        """The metrics of an iteration, over all processes.

        Args:
            meter: Of this process.
            seconds: Between the last update's groups and this one's.
        """
        own = (meter.ages, self.pool.whole, meter.waited / seconds)
        ages, whole, waits = zip(*all_gather_object(self.accelerator, own), strict=True)
        all_ages = [age for part in ages for age in part]
        return {
            "async/staleness": float(np.mean(all_ages)) if all_ages else 0.0,
            "async/staleness_max": float(max(all_ages, default=0)),
            "async/dropped_groups": float(meter.dropped),
            "async/whole_groups": float(sum(whole)),
            "async/open_groups": float(len(self.pool) - sum(whole)),
            "async/update_idle": float(np.mean(waits)),
        }
