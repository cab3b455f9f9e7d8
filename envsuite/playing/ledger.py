"""Accounts for the episodes of a rollout: how often each has failed, which have ended, and which groups are whole."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Sequence

from envsuite.playing.episode import EpisodePlan
from envsuite.playing.step import Episode

_LOSSES = 8  # losses with the process of another episode that an episode survives: bounds a machine that kills them all


class Ledger:
    """The plans of a rollout, and what became of them.

    Args:
        attempts: Times that an episode is started whose environment or engine fails.
    """

    def __init__(self, attempts: int) -> None:
        self.attempts = attempts
        self.groups: deque[list[Episode]] = deque()
        """Whole groups that nobody has taken yet."""
        self.ended = 0
        """Episodes that have ended."""
        self._failures: Counter[int] = Counter()
        """Times that an episode has failed, by its id, losses with the process of another one left out."""
        self._losses: Counter[int] = Counter()
        """Those losses."""
        self._missing: Counter[int] = Counter()
        self._place: dict[int, int] = {}
        self._parts: defaultdict[int, list[Episode]] = defaultdict(list)

    def add(self, plans: Sequence[EpisodePlan]) -> None:
        """Enters plans; a group is whole when all of its plans that have been entered until then have ended."""
        self._missing.update(plan.group_id for plan in plans)
        self._place.update((plan.episode_id, number) for number, plan in enumerate(plans, start=len(self._place)))

    def enter_failure(self, episode_id: int, collateral: bool) -> bool:
        """Enters a failure; returns whether the episode may be started again.

        Args:
            episode_id: The episode.
            collateral: Whether it was lost with the process of another one.
        """
        (self._losses if collateral else self._failures)[episode_id] += 1
        return self._failures[episode_id] < self.attempts and self._losses[episode_id] < _LOSSES

    def enter(self, episode: Episode) -> None:
        """Enters an episode that has ended; a group that has its last one now is whole."""
        self.ended += 1
        group_id = episode.group_id
        self._parts[group_id].append(episode)
        self._missing[group_id] -= 1
        if not self._missing[group_id]:
            del self._missing[group_id]
            group = sorted(self._parts.pop(group_id), key=lambda episode: self._place[episode.episode_id])
            for member in group:
                del self._place[member.episode_id]
                for counts in (self._failures, self._losses):
                    counts.pop(member.episode_id, None)
            self.groups.append(group)
