"""Values of the states of sampled steps, from episodes that are continued there and never trained on."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from envsuite.core.errors import UsageError
from envsuite.core.images import digest
from envsuite.playing.episode import Branches, EpisodePlan
from envsuite.playing.step import Episode
from trainers.credit.estimators.groups import Floats, Ints
from trainers.credit.estimators.returns import rewards_to_go, steps_in_order
from trainers.steps import StepTable
from trainers.steps.columns import AGENT, GREEDY, MC_VALUE, NEXT_MC_VALUE

_LOG = logging.getLogger(__name__)
_LONGEST = 1 << 16  # steps of an episode: bounds the numbers of continuations


@dataclass(frozen=True)
class Continuations:
    """Episodes that go on from the states of sampled steps, ``each`` of them per state.

    Steps of a group share a state where their prompts have the same tokens and images, the environments' snapshots are
    equal, and as many steps were made. Then what follows has the same distribution, whatever the memory shows. Where
    continuations are ``pooled``, they share one where prompts and state keys are equal, and every visit of a
    continuation counts.
    """

    each: int
    plans: Sequence[EpisodePlan]
    """State after state; each has a group of its own."""
    state: Ints
    """Number of the state that each row of the table answers, -1 for greedy episodes; shape (N,)."""
    known: Mapping[bytes, int]
    """The states' numbers, by their identities."""
    group: Ints
    """Group of the steps of each state, shape (states,)."""
    pooled: bool

    @classmethod
    def of(
        cls, steps: StepTable, each: int, plans: Mapping[int, EpisodePlan], branches: Branches, pooled: bool = False
    ) -> Continuations:
        """Plans the continuations of ``steps``.

        Args:
            steps: Steps of this process.
            each: Continuations of a state.
            plans: Plans of the steps' episodes, by their ids.
            branches: Their steps as points where others can start.
            pooled: States are told apart by their keys, and every visit counts.
        """
        if any(steps.extra.get(AGENT, ())):
            raise UsageError("continuations are for environments of one agent")
        state, numbers, group = np.full(len(steps), -1, np.int64), dict[bytes, int](), list[int]()
        new_plans: list[EpisodePlan] = []
        order, _ = steps_in_order(steps)
        for row in order[~steps.extra[GREEDY][order]].tolist():
            episode, t = int(steps.episode_id[row]), int(steps.t[row])
            point, plan = branches[episode][t], plans[episode]
            of = int(steps.group_id[row])
            world = steps.state_key[row] if pooled else (point.environment.elapsed, point.environment.world)
            key = _identity(steps, row, of, world)
            if key not in numbers:
                numbers[key] = len(numbers)
                group.append(of)
                first = (episode * _LONGEST + t) * each
                whole = EpisodePlan(first, first, plan.env, plan.task_id, branch=point, steps=plan.steps)
                new_plans += [replace(whole, episode_id=first + k) for k in range(each)]
            state[row] = numbers[key]
        return cls(each, new_plans, state, numbers, np.array(group, np.int64), pooled)

    def playouts(self, episodes: Sequence[Episode]) -> PlayedContinuations:
        """Returns what was played from the states on: ``episodes``, as planned, without what led there."""
        pairs = zip(episodes, self.plans, strict=True)
        own = [replace(e, steps=e.steps[len(plan.branch.steps) :]) for e, plan in pairs if plan.branch is not None]
        return PlayedContinuations(self, own)


@dataclass(frozen=True)
class PlayedContinuations:
    """Continuations that were played."""

    planned: Continuations
    episodes: Sequence[Episode]
    """In the order of the plans, without the steps before the states."""

    def with_oracle_values(self, steps: StepTable, continued: StepTable, gamma: float) -> StepTable:
        """Returns the steps with the columns ``mc_value`` and ``next_mc_value``; those without a value are left out.

        The value after the last step of an episode is 0, whether it was terminated or truncated.

        Args:
            steps: The table that the continuations were planned for.
            continued: Steps of ``episodes``, rewards shaped.
            gamma: Discount of the return.
        """
        here = np.append(self.values(continued, gamma), 0.0)[self.planned.state]
        order, lengths = steps_in_order(steps)
        after = np.zeros(len(steps))
        after[order[:-1]] = here[order[1:]]
        after[order[np.cumsum(lengths) - 1]] = 0.0
        has_values = np.isfinite(here) & np.isfinite(after)
        if not has_values.all():
            _LOG.warning("%d steps are left out: every continuation of their state failed", int((~has_values).sum()))
        return steps.with_columns(**{MC_VALUE: here, NEXT_MC_VALUE: after}).take(np.flatnonzero(has_values))

    def values(self, steps: StepTable, gamma: float) -> Floats:
        """Returns the mean return from each state, not a number where every continuation failed, shape (states,).

        Args:
            steps: Steps of ``episodes``, rewards shaped.
            gamma: Discount of the return.
        """
        plans = self.planned.plans
        if self.planned.pooled:
            return self._means_over_visits(steps, rewards_to_go(steps, gamma))
        first = np.flatnonzero(steps.t == _starts(steps, plans))
        returns = dict(zip(steps.episode_id[first].tolist(), rewards_to_go(steps, gamma)[first].tolist(), strict=True))
        episode_returns = [np.nan if e.error is not None else returns.get(e.episode_id, 0.0) for e in self.episodes]
        table = np.array(episode_returns, np.float64).reshape(-1, self.planned.each)
        sound = np.isfinite(table)
        count = sound.sum(1)
        return np.where(count > 0, np.where(sound, table, 0.0).sum(1) / np.maximum(count, 1), np.nan)

    def _means_over_visits(self, steps: StepTable, returns: Floats) -> Floats:
        """Returns the mean of ``returns`` over all visits of each state, shape (states,)."""
        repeats = np.repeat(self.planned.group, self.planned.each).tolist()
        of = dict(zip((plan.episode_id for plan in self.planned.plans), repeats, strict=True))
        groups = [of[episode] for episode in steps.episode_id.tolist()]
        keys = (_identity(steps, row, group, steps.state_key[row]) for row, group in enumerate(groups))
        state = np.array([self.planned.known.get(key, -1) for key in keys], np.int64)
        mask = state >= 0
        count = np.bincount(state[mask], minlength=len(self.planned.known))
        sums = np.bincount(state[mask], returns[mask], minlength=len(self.planned.known))
        return np.where(count > 0, sums / np.maximum(count, 1), np.nan)


def _starts(steps: StepTable, plans: Sequence[EpisodePlan]) -> Ints:
    """Returns the index of the first step that each row's continuation made itself, shape (N,)."""
    starts = {plan.episode_id: len(plan.branch.steps) for plan in plans if plan.branch is not None}
    return np.array([starts[episode] for episode in steps.episode_id.tolist()], np.int64)


def _identity(steps: StepTable, row: int, group: int, world: object) -> bytes:
    """Returns the identity of a row's state: the group of the sampled steps, the prompt, and ``world``."""
    images: list[bytes] = [digest(image) for image in steps.images[row]]
    prompt: NDArray[np.int32] = steps.prompt[row]
    return blake2b(prompt.tobytes() + repr((group, images, world)).encode(), digest_size=16).digest()
