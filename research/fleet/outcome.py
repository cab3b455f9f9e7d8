"""Results of a simulation: seconds of an iteration, what engines waited for, the age of what was trained on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

GENERATING, ROLLOUT_PROCESS = "generating", "rollout process"
"""Parts of an engine's time apart from waiting: generation, or the other work of a process that also plays."""


@dataclass(frozen=True)
class Totals:
    """Sums from the beginning of a simulation to one moment."""

    seconds: float
    updates: int
    engines: Mapping[str, float]
    """Seconds of all engines by what they did."""
    sequences: float
    """Running sequences, times seconds, of all engines."""
    update_busy: float
    env_busy: float
    env_waited: float
    calls: int
    steps: int
    ages: Mapping[int, float]
    redispatched: int
    failed: int
    lost: float


@dataclass(frozen=True)
class Outcome:
    """Means of the updates that were counted."""

    iteration: float
    """Seconds of an iteration."""
    engines: Mapping[str, float]
    """Share of the engines' time by what they did or waited for; the sum is 1."""
    running: float
    """Sequences that an engine decodes at a time, in the mean over all of its time."""
    training_busy: float
    """Share of the time in which the update runs."""
    cores_busy: float
    """Share of the environment cores' time in which they work."""
    queue: float
    """Seconds that a call waits for its core, in the mean."""
    steps_per_second: float
    """Environment steps a second of the whole fleet."""
    off_policy: float
    """Share of the trained response tokens that older weights sampled than those that are updated."""
    age: float
    """Updates since a trained token was sampled, in the mean."""
    oldest: int
    """The greatest such number."""
    redispatched: float
    """Episodes that were dispatched again, for each update."""
    failed: float
    """Episodes that failed for good, for each update."""
    outage: float
    """Share of the time that losses of training processes cost, repeated work included."""
    updates: int
    """Updates that were counted."""
    events: int
    """Events of the simulation."""

    @classmethod
    def between(cls, before: Totals, after: Totals, engines: int, cores: int, events: int) -> Outcome:
        """The means between two moments.

        Args:
            before: Sums at the first.
            after: Sums at the second.
            engines: Number of engines.
            cores: Number of environment cores.
            events: Events of the simulation.
        """
        seconds, updates = after.seconds - before.seconds, after.updates - before.updates
        worked = max(seconds - (after.lost - before.lost), 1e-12)
        engine_seconds = worked * engines
        ages = {age: count - before.ages.get(age, 0.0) for age, count in after.ages.items()}
        tokens = max(sum(ages.values()), 1e-12)
        calls = max(after.calls - before.calls, 1)
        return cls(
            seconds / updates,
            {name: (total - before.engines[name]) / engine_seconds for name, total in after.engines.items()},
            (after.sequences - before.sequences) / engine_seconds,
            (after.update_busy - before.update_busy) / worked,
            (after.env_busy - before.env_busy) / (worked * cores),
            (after.env_waited - before.env_waited) / calls,
            (after.steps - before.steps) / seconds,
            sum(count for age, count in ages.items() if age) / tokens,
            sum(age * count for age, count in ages.items()) / tokens,
            max((age for age, count in ages.items() if count), default=0),
            (after.redispatched - before.redispatched) / updates,
            (after.failed - before.failed) / updates,
            (seconds - worked) / max(seconds, 1e-12),
            updates,
            events,
        )

    @property
    def bottleneck(self) -> str:
        """The part that engines spend most of their time on, generating included."""
        return max(self.engines, key=lambda name: self.engines[name])

    @property
    def generating(self) -> float:
        """Share of the engines' time in which they generate."""
        return self.engines[GENERATING]
