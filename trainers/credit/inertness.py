"""Measures each term of the advantage, and warns where the one that sets a method apart does nothing.

A method may run for days without its own part: GiGPO whose states never repeat is GRPO. Everything here is computed
from the steps of all processes, so it is the same for any number of them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainers.credit.estimators import Advantage, Estimator, ValueBased
from trainers.credit.estimators.groups import (
    ROUNDING,
    Floats,
    Ints,
    episode_codes,
    first_rows,
    group_codes,
    group_statistics,
    mean_abs,
    mean_of,
)
from trainers.credit.estimators.returns import episode_returns
from trainers.credit.shapers import Shaper
from trainers.steps import StepTable
from trainers.steps.columns import SUCCESS

LEAST = 0.01
"""Share of the steps that a term must touch."""
PATIENCE = 3
"""Number of iterations, one after the other, in which it touches fewer before the run warns."""
NEARLY_ALL = 0.99
"""Share of the steps or tasks from which on they count as all."""

Rows = NDArray[np.bool_]


def term_metrics(steps: StepTable, advantage: Advantage) -> dict[str, float]:
    """Returns what each term of ``advantage`` does, by the names of the metrics ``term/<name>``.

    Args:
        steps: The steps of all processes.
        advantage: Theirs.
    """
    metrics: dict[str, float] = {}
    once = first_rows(episode_codes(steps))
    for name, term in advantage.summands.items():
        group = advantage.groups.get(name)
        members = group_codes(steps.group_id)[once] if group is None else group
        size = np.bincount(members)
        metrics |= {
            f"{name}/touched": mean_of(_nonzero_rows(steps, advantage, term)),
            f"{name}/abs": mean_abs(term),
            f"{name}/group_size": mean_of(size[size > 0]),
            f"{name}/singletons": float((size == 1).sum() / max(len(members), 1)),
        }
    return metrics


def _nonzero_rows(steps: StepTable, advantage: Advantage, term: Floats) -> Rows:
    """Whether ``term`` of each step, or of one of its tokens, is other than 0 but for rounding, shape (N,)."""
    nonzero = np.abs(term) > ROUNDING
    if advantage.per_token is None:
        return nonzero
    return np.asarray(np.bincount(steps.response.row_of, nonzero, len(steps)) > 0.0, np.bool_)


@dataclass(frozen=True)
class Counts:
    """The steps of an iteration, or of several, counted by how a watched part of the method treats them."""

    steps: int = 0
    """Steps that it may touch."""
    touched: int = 0
    """Those that it touches; a comparison that has all steps of a task in one group touches none (``still``)."""
    alone: int = 0
    """Steps without another one to be compared with."""
    still: int = 0
    """Steps of tasks in which valid actions led to further steps, and all of them are in one group, or one state."""
    tasks: int = 0
    lone: int = 0
    """Tasks with a single episode."""
    flat: int = 0
    """Tasks whose episodes have equal returns."""
    episodes: int = 0
    won: int = 0
    """Successful episodes."""

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))

    @property
    def inert(self) -> bool:
        """Whether it touches almost no step."""
        return self.touched < LEAST * self.steps


@dataclass(frozen=True)
class Cause:
    """Why a part of a method does nothing."""

    name: str
    why: str
    """Explanation, with places for the counts."""
    advice: str
    passing: bool = False
    """Whether nothing is wrong."""


GROUP_OF_ONE = Cause(
    "group of one",
    "{lone:,} of {tasks:,} tasks have one episode, which has no other to be compared with",
    "Raise rollout.group_size, or see train/failed if episodes are lost",
)
CONSTANT_KEY = Cause(
    "constant state key",
    "in {still_share:.0%} of the steps the state key{of} (or the cluster) is the same in all steps of a task, so that "
    "steps are compared as if all answered one state",
    "If actions change the state, its key leaves out what they change: see `_state_key` of the environment, or the "
    "setting that joins states (similarity, radius)",
)
NEVER_REPEATS = Cause(
    "state key that never repeats",
    "{alone_share:.1%} of the steps answer a state (or are in a cluster) that no other step of the task has, though "
    "its episodes begin alike",
    "The state key{of} holds something that differs each time, such as a number of the step or of the episode, or a "
    "time: see `_state_key` of the environment, or the setting that joins states (similarity, radius)",
)
NO_SUCCESS = Cause(
    "no success",
    "so far none of {episodes:,} episodes succeeded, and the returns of a task are equal",
    "Without a success there is nothing to credit: try easier tasks, a better model, or a reward for parts of a task",
)
SOLVED = Cause(
    "solved tasks", "all {episodes:,} episodes succeeded", "There is nothing left to learn on these tasks", passing=True
)
EQUAL_RETURNS = Cause(
    "equal returns",
    "so far the episodes of each task have equal returns ({flat:,} of {tasks:,} tasks; {won_share:.0%} of the episodes "
    "succeeded)",
    "Tasks of middling difficulty, larger groups, or a graded reward give returns that differ",
)
NO_MATCH = Cause(
    "no match",
    "these are the steps of failed episodes in tasks that another episode solved, and hardly one matches what it did",
    "See the shaper's settings (scorer, threshold); exact matches need equal texts of action and observation",
)
UNKNOWN = Cause(
    "unknown",
    "{alone_share:.1%} of the steps have no other to be compared with, and the returns are equal in {flat:,} of "
    "{tasks:,} tasks",
    "See the metrics term/<name> and diag/<name>",
)


@dataclass(frozen=True)
class WatchedPart:
    """A part of the method that sets it apart.

    Args:
        name: For messages.
        terms: Terms of the advantage; none for all of it.
        column: Column whose values other than 0 are the effect, of a shaper.
        compares: Whether an episode alone in its group gives it nothing.
    """

    name: str
    terms: tuple[str, ...] = ()
    column: str | None = None
    compares: bool = True

    def counts(self, steps: StepTable, advantage: Advantage) -> Counts:
        """Returns what the steps of an iteration show."""
        task, episode = group_codes(steps.group_id), episode_codes(steps)
        once, heads = first_rows(episode), first_rows(task)
        returns = episode_returns(steps)
        tasks = group_statistics(returns, task, samples=once)
        won = np.asarray(steps.extra[SUCCESS], np.bool_) if SUCCESS in steps.extra else returns > 0.0
        if self.column is None:
            may = np.ones(len(steps), np.bool_)
            active, alone, still = self._term_rows(steps, advantage, task, episode)
        else:  # what succeeds elsewhere in the task may be credited in failed episodes
            may = ~won & (np.bincount(task, won) > 0.0)[task]
            active = np.asarray(steps.extra[self.column] != 0.0) & may
            alone = still = np.zeros(len(steps), np.bool_)
        return Counts(
            steps=int(may.sum()),
            touched=int((active & ~still).sum()),
            alone=int(alone.sum()),
            still=int(still.sum()),
            tasks=len(heads),
            lone=int((tasks.size[heads] == 1).sum()),
            flat=int((tasks.std[heads] == 0.0).sum()),
            episodes=len(once),
            won=int(won[once].sum()),
        )

    def _term_rows(self, steps: StepTable, advantage: Advantage, task: Ints, episode: Ints) -> tuple[Rows, Rows, Rows]:
        """Returns the steps that the terms touch, those alone in each of their groups, and those of still tasks."""
        summands = advantage.summands
        names = self.terms or tuple(summands)
        if self.terms:
            active = np.logical_or.reduce([_nonzero_rows(steps, advantage, summands[name]) for name in names])
        else:
            active = _nonzero_rows(steps, advantage, advantage.whole)
        groups = [advantage.groups[name] for name in names if name in advantage.groups]
        nothing = np.zeros(len(steps), np.bool_)
        if not groups or not len(steps):
            return active, nothing, nothing
        alone = nothing
        if len(groups) == len(names):
            alone = np.logical_and.reduce([np.bincount(group)[group] == 1 for group in groups])
        last = np.zeros(int(episode.max()) + 1, np.int64)
        np.maximum.at(last, episode, steps.t)
        moves = np.bincount(task, steps.valid & (steps.t < last[episode])) > 0.0
        still = np.zeros(len(moves), np.bool_)
        for group in (*groups, group_codes(task, steps.state_key)):
            still |= np.bincount(task[first_rows(group)], minlength=len(still)) == 1
        return active, alone, (moves & still)[task]

    def cause(self, counts: Counts) -> Cause:
        """Returns the likeliest cause that the counts support."""

        def nearly(part: int, whole: int) -> bool:
            return whole > 0 and part >= NEARLY_ALL * whole

        if self.column is not None:
            return NO_MATCH
        if self.compares and nearly(counts.lone, counts.tasks):
            return GROUP_OF_ONE
        if nearly(counts.still, counts.steps):
            return CONSTANT_KEY
        if nearly(counts.alone, counts.steps):
            return NEVER_REPEATS
        if counts.won == counts.episodes:  # though penalties may differ
            return SOLVED
        if not nearly(counts.flat, counts.tasks):
            return UNKNOWN
        return NO_SUCCESS if counts.won == 0 else EQUAL_RETURNS


class IdleTermMonitor:
    """Watches what sets a method apart, and says once for each cause that it does nothing.

    Args:
        name: The method's.
        estimator: Its estimator.
        shapers: Its shapers, by name.
        environments: Names of the environments, for messages.
    """

    def __init__(
        self, name: str, estimator: Estimator, shapers: Mapping[str, Shaper], environments: Sequence[str] = ()
    ) -> None:
        terms = estimator.distinguishing
        own = " and ".join(f"term {term!r}" for term in terms) if terms else "advantage"
        compares = (bool(terms) and not isinstance(estimator, ValueBased)) or not estimator.credits_lone_episodes
        self.parts = [WatchedPart(f"{name}: its {own}", terms, compares=compares)]
        effects = {key: shaper.effect for key, shaper in shapers.items() if shaper.effect is not None}
        self.parts += [WatchedPart(f"{key}: its credit", column=effect) for key, effect in effects.items()]
        self.columns = {*effects.values(), SUCCESS}
        """Columns of the step table that are read."""
        self.environments = " of " + ", ".join(dict.fromkeys(environments)) if environments else ""
        self._latest: dict[str, list[Counts]] = {part.name: [] for part in self.parts}
        self._reported: set[tuple[str, str]] = set()
        self._inert: set[str] = set()

    def __call__(self, steps: StepTable, advantage: Advantage) -> list[tuple[int, str]]:
        """Enters the steps of an iteration, of all processes, and returns messages, each with its level."""
        messages = []
        for part in self.parts:
            counts = part.counts(steps, advantage)
            if not counts.steps:
                continue
            latest = self._latest[part.name] = [*self._latest[part.name], counts][-PATIENCE:]
            if not counts.inert and part.name in self._inert:
                self._inert.remove(part.name)
                share = f"{counts.touched:,} of {counts.steps:,} steps"
                messages.append((logging.INFO, f"{part.name} touches {share} now, after it did nothing"))
            elif len(latest) == PATIENCE and all(iteration.inert for iteration in latest):
                together = sum(latest, Counts())
                cause = part.cause(together)
                self._inert.add(part.name)
                if (part.name, cause.name) not in self._reported:
                    self._reported.add((part.name, cause.name))
                    level = logging.INFO if cause.passing else logging.WARNING
                    messages.append((level, self._message(part, cause, together)))
        return messages

    def _message(self, part: WatchedPart, cause: Cause, counts: Counts) -> str:
        values = {field.name: getattr(counts, field.name) for field in fields(counts)} | {
            "still_share": counts.still / counts.steps,
            "alone_share": counts.alone / counts.steps,
            "won_share": counts.won / max(counts.episodes, 1),
            "of": self.environments,
        }
        verb = "compared by state" if cause is CONSTANT_KEY else "touched"
        return (
            f"{part.name} {verb} {counts.touched:,} of {counts.steps:,} steps in {PATIENCE} iterations "
            f"({counts.touched / counts.steps:.1%}). Likely cause: {cause.name}: {cause.why.format(**values)}. "
            f"{cause.advice.format(**values)}"
        )

    def state(self) -> dict[str, Any]:
        """Returns the counts and what was said as JSON values."""
        latest = {name: [list(astuple(counts)) for counts in history] for name, history in self._latest.items()}
        return {"latest": latest, "told": sorted(map(list, self._reported)), "inert": sorted(self._inert)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restores :meth:`state`; what this method does not watch is forgotten."""
        for name in self._latest:
            self._latest[name] = [Counts(*counts) for counts in state["latest"].get(name, [])]
        self._reported = {(name, cause) for name, cause in state["told"]}
        self._inert = set(state["inert"]) & set(self._latest)
