"""The manager of rollouts: plays plans with an engine and a vector of environments."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from envsuite.core.errors import UsageError
from envsuite.playing.dialog import Dialog, DialogFactory
from envsuite.playing.engine import BaseEngine, Sampling
from envsuite.playing.episode import Branches, EpisodePlan
from envsuite.playing.loop import Keeper, Rollout
from envsuite.playing.step import Episode
from envsuite.playing.timing import Timing
from envsuite.vector import Vector, Wait

_LOOK = 0.1  # seconds between two looks at progress
Watcher = Callable[[int, Wait | None], None]
"""Called with the number of finished episodes, and the oldest question to environments or engine without an answer."""


class RolloutManager:
    """Plays episodes with an engine and a vector of environments.

    Args:
        engine: Generates tokens, or answers messages.
        vector: Runs environments; its slots bound how many episodes run at a time.
        env_ids: Gymnasium id of each environment of the vector, for the records.
        make_dialog: Makes the dialog of an episode with the engine.
        episode_tokens: An episode that has written so many response tokens is cut; ``None`` for no limit.
        attempts: Times that an episode is started whose environment or engine fails, or does not answer in time.
        engine_deadline: Seconds that the engine may take for one answer.
        clock: Seconds, monotonic; those of :class:`~envsuite.vector.Wait`.
    """

    def __init__(
        self,
        engine: BaseEngine[Any, Any],
        vector: Vector,
        env_ids: Sequence[str],
        make_dialog: DialogFactory,
        *,
        episode_tokens: int | None = None,
        attempts: int = 2,
        engine_deadline: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.engine = engine
        self.vector = vector
        self.env_ids = tuple(env_ids)
        self.episode_tokens = episode_tokens
        self.make_dialog = make_dialog
        self.attempts = attempts
        self.engine_deadline = engine_deadline
        self.clock = clock
        self.timing = Timing()
        """Wall time of the last rollout by cause, and what it gave up."""

    def close(self) -> None:
        """Ends the environments."""
        self.vector.close()

    def dialogs(self, plan: EpisodePlan) -> dict[str, Dialog]:
        """Returns the dialog of each agent of a new episode with the engine; the only agent of an environment is ""."""
        tools, max_calls = self.vector.tools(plan.env), self.vector.max_calls(plan.env)
        if not (agents := self.vector.agents(plan.env)):
            return {"": self.make_dialog(plan, tools, max_calls)}
        return {
            agent: self.make_dialog(plan, tuple(tool for tool in tools if tool.name in names), max_calls)
            for agent, names in agents.items()
        }

    def open(
        self, sampling: Sampling, seed: int, keep: Keeper | None = None, branches: Branches | None = None
    ) -> Rollout:
        """Returns a rollout without plans, to which they can be added at any time; at most one may have some at a time.

        Args:
            sampling: How tokens are drawn.
            seed: As for :meth:`stream`.
            keep: Called with each episode when it has ended.
            branches: Takes the steps of each episode that has ended, as points where others can start; those of a
                branch begin where it started. The vector must take snapshots.
        """
        if branches is not None and not self.vector.snapshots:
            raise UsageError("branches are kept of a vector that takes snapshots; make_vector(…, snapshots=True)")
        if branches is not None and any(self.vector.agents(env) for env in range(len(self.env_ids))):
            raise UsageError("episodes of several agents cannot branch")
        rollout = Rollout(self, sampling, seed, keep, branches)
        self.timing = rollout.timing
        return rollout

    def stream(
        self,
        plans: Sequence[EpisodePlan],
        sampling: Sampling,
        seed: int,
        watch: Watcher | None = None,
        keep: Keeper | None = None,
        branches: Branches | None = None,
    ) -> Iterator[list[Episode]]:
        """Play every plan once; yield each group as soon as its last episode has ended, in the order of ``plans``.

        An episode whose environment or engine fails, or does not answer within its deadline, is started again in a
        fresh environment, with the same task and seeds, ``attempts`` times in all. What it had sampled is dropped, and
        counted in :attr:`timing`. One that fails each time has ``error`` set and the steps made last. An episode that
        was lost with the worker process of another one is started again in any case. One that outgrows the context is
        truncated there and counts like any other. Between two groups the caller may give the engine new weights:
        episodes on their way go on under them.

        Args:
            plans: The episodes to play.
            sampling: How tokens are drawn.
            seed: Each response is a function of weights, prompt, this seed, episode id and step.
            watch: Called with progress.
            keep: Called with each episode when it has ended.
            branches: As for :meth:`open`.
        """
        rollout = self.open(sampling, seed, keep, branches)
        rollout.add(plans)
        last_count, due = -1, 0.0
        while rollout.busy:
            rollout.advance()
            if watch is not None and (rollout.ledger.ended != last_count or self.clock() >= due):
                last_count, due = rollout.ledger.ended, self.clock() + _LOOK
                watch(rollout.ledger.ended, rollout.oldest())
            while rollout.ledger.groups:
                yield rollout.ledger.groups.popleft()

    def run(
        self,
        plans: Sequence[EpisodePlan],
        sampling: Sampling,
        seed: int,
        watch: Watcher | None = None,
        keep: Keeper | None = None,
        branches: Branches | None = None,
    ) -> list[Episode]:
        """Play every plan once, as :meth:`stream` does; episodes come back in the order of ``plans``."""
        groups = self.stream(plans, sampling, seed, watch, keep, branches)
        episodes = {episode.episode_id: episode for group in groups for episode in group}
        return [episodes[plan.episode_id] for plan in plans]
