"""Plays episodes beside the updates: the interface, and a player that takes turns with the update in one process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from envsuite.vector import Wait
from trainers.rollout.engine import Sampling
from trainers.rollout.episode import EpisodePlan
from trainers.rollout.manager import RolloutManager
from trainers.rollout.timing import Timing
from trainers.steps import Episode


@dataclass(frozen=True)
class Effort:
    """Time of a player since the last call of :meth:`Player.effort`."""

    timing: Timing
    """Seconds of the rollout's parts."""
    idle: float | None = None
    """Seconds in which it had no episode to go on with; ``None``: it plays while it is waited for, and only then."""
    restarts: int = 0
    """Times that it was started anew."""


class Player(ABC):
    """Plays episodes, which go on under new weights when it gets some."""

    @abstractmethod
    def renew(self, version: int) -> None:
        """Go on with the policy's present weights, of this version; every process must call this.

        Raises:
            EngineFailed: The engine does not take them.
        """

    @abstractmethod
    def start(self, plans: Sequence[EpisodePlan]) -> None:
        """Queue episodes, to be played with the present weights or newer ones."""

    @abstractmethod
    def play(self) -> list[Episode]:
        """Returns the episodes that have ended, after a second at most if there is none.

        Raises:
            EngineFailed: It cannot go on.
        """

    @abstractmethod
    def oldest(self) -> Wait | None:
        """Returns the oldest question to environments or engine without an answer."""

    @abstractmethod
    def effort(self) -> Effort:
        """Returns what it took since the last call."""

    def settle(self) -> None:
        """Leaves the engine of this process to others until the next call of another method."""
        return

    @abstractmethod
    def close(self) -> None:
        """Ends what was started."""


class TurnsPlayer(Player):
    """Plays with the run's engine while it is waited for; unfinished episodes stay where they are until the next time.

    Args:
        manager: Plays the episodes.
        sampling: How tokens are drawn.
        seed: As in :meth:`RolloutManager.stream`.
        sync: Gives the engine the policy's weights; every process must call it.
    """

    def __init__(self, manager: RolloutManager, sampling: Sampling, seed: int, sync: Callable[[], None]) -> None:
        self.manager = manager
        self._sync = sync
        self._ended: list[Episode] = []
        self._rollout = manager.open(sampling, seed, lambda plan, episode, effort: self._ended.append(episode))

    def renew(self, version: int) -> None:
        """Syncs the engine: requests on their way go on under the new weights."""
        self._sync()

    def start(self, plans: Sequence[EpisodePlan]) -> None:
        """Queues episodes for free slots."""
        self._rollout.add(plans)

    def play(self) -> list[Episode]:
        """Advances the episodes once; returns those that have ended."""
        if self._rollout.busy:
            self._rollout.advance()
        self._rollout.ledger.groups.clear()
        ended, self._ended = self._ended, []
        return ended

    def oldest(self) -> Wait | None:
        """The oldest question without an answer."""
        return self._rollout.oldest()

    def effort(self) -> Effort:
        """Returns the timing since the last call."""
        return Effort(self._rollout.timed())

    def settle(self) -> None:
        """Waits until the engine has answered what it was asked; the answers' steps are taken, and no others."""
        self._rollout.settle()

    def close(self) -> None:
        """Closes the environments."""
        self.manager.vector.close()
