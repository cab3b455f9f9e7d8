"""Plays the episodes of later iterations between the updates, in turns with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from envsuite.vector import Wait
from trainers.rollout.engine import Sampling
from trainers.rollout.episode import EpisodePlan
from trainers.rollout.manager import RolloutManager
from trainers.rollout.timing import Timing
from trainers.steps import Episode


class Player:
    """Plays with the run's engine while it is waited for; unfinished episodes go on later, under newer weights.

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

    def renew(self) -> None:
        """Syncs the engine: requests on their way go on under the new weights.

        Raises:
            EngineFailed: The engine does not take them.
        """
        self._sync()

    def start(self, plans: Sequence[EpisodePlan]) -> None:
        """Queues episodes for free slots."""
        self._rollout.add(plans)

    def play(self) -> list[Episode]:
        """Advances the episodes once; returns those that have ended, after a second at most if there is none.

        Raises:
            EngineFailed: It cannot go on.
        """
        if self._rollout.busy:
            self._rollout.advance()
        self._rollout.ledger.groups.clear()
        ended, self._ended = self._ended, []
        return ended

    def oldest(self) -> Wait | None:
        """Returns the oldest question to environments or engine without an answer."""
        return self._rollout.oldest()

    def timing(self) -> Timing:
        """Returns the seconds of the rollout's parts since the last call."""
        return self._rollout.timed()

    def settle(self) -> None:
        """Waits until the engine has answered what it was asked; the answers' steps are taken, and no others."""
        self._rollout.settle()

    def close(self) -> None:
        """Closes the environments."""
        self.manager.vector.close()
