"""Replay of the policy's own good episodes (SPEAR, section 4.1): admission, expiry and recalibrated advantages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from envsuite.core.errors import UsageError
from trainers.credit.estimators.groups import (
    ROUNDING,
    Floats,
    Ints,
    episode_codes,
    first_rows,
    group_codes,
    group_statistics,
)
from trainers.credit.estimators.returns import episode_returns
from trainers.settings import AtLeastOne, Count, Fraction
from trainers.steps import Ragged, StepTable
from trainers.steps.columns import ITERATION

RETURN = "return"
"""Column of the buffer: the return that the row's episode had, R^i of SPEAR's Eq. 20."""

USEFUL_FACTOR = 1.5
"""How many times its size SPEAR's code fills the buffer."""

BASELINES = 10_240
"""N_DR: the median is taken over the means of this many groups, the latest ones."""

MOST_AGE = 5
"""SPEAR's code forgets what was played more iterations ago."""


@dataclass(frozen=True)
class ReplayConfig:
    """Settings of SPEAR's self-imitation. Defaults are the paper's."""

    rules: Literal["paper", "code", "rounds"] = "paper"
    """``paper``: episodes whose return lies above their group's mean are admitted (Eq. 6, and the sign of Eq. 4
    whatever the estimator), recalibration keeps Ã > 0 (Eq. 8), all that is stored counts towards ``size``, and group
    means beyond :data:`BASELINES` expire one by one (Algorithm 1). ``code``, SPEAR's: each step whose own advantage is
    positive; Ã ≥ 0; what lies above the median, which must exceed 1.5 times the size; the oldest iterations as a whole,
    before the new one is entered, so that there may be more for a while; what is older than 5 iterations is forgotten.
    ``rounds``, for ``rft``: what the last ``size`` iterations accepted is imitated in each update.
    """
    size: AtLeastOne = 2048
    """N_D: how many episodes (steps, with ``rules: code``; iterations, with ``rules: rounds``) fill the buffer."""
    warmup: Count = 100
    """T_warm-up: iterations over which the weight of self-imitation rises to 1 (ALFWorld 100, WebShop 200,
    mathematics 300)."""
    mask: Fraction = 0.02
    """λ: share of an episode's tokens that covariance clipping masks; 0 turns it off."""
    cov: tuple[float, float] | None = None
    """ω_lb and ω_ub: covariances between them are clipped; by default the means of the first iteration's greatest 2 %
    and 0.02 % (Table 8: 2 and 60)."""

    def __post_init__(self) -> None:
        if self.cov is not None and not self.cov[0] <= self.cov[1]:
            raise UsageError(f"replay: cov is {list(self.cov)}; its first number is the lower one")


def group_means(steps: StepTable) -> tuple[Ints, Floats]:
    """Ids of the groups, and the mean over each group's episodes of an episode's mean row score."""
    if not len(steps):
        return np.zeros(0, np.int64), np.zeros(0)
    score, episode = episode_returns(steps), episode_codes(steps)
    first = first_rows(episode)
    per_episode = group_statistics(score, episode).mean[first]
    group = group_codes(steps.group_id)[first]
    own = first_rows(group)
    return steps.group_id[first][own], group_statistics(per_episode, group).mean[own]


class ReplayBuffer:
    """Replay buffer: one process's episodes to imitate, and the group means of all processes.

    Args:
        config: Size and rules.
        baselines: N_DR.
    """

    def __init__(self, config: ReplayConfig, baselines: int = BASELINES) -> None:
        self.config, self._baselines = config, baselines
        self._as_code = config.rules == "code"
        self.table = _empty()
        """Stored rows, by episode and step; the columns ``return`` and ``iteration`` hold their quality and age."""
        self._means: list[Floats] = []

    # -- the baseline ------------------------------------------------------------------------------------------------

    def enter_means(self, means: Floats) -> None:
        """Enter the group means of an iteration (of all processes), and forget the oldest beyond the limit."""
        limit = self._baselines
        if self._as_code:
            while self._means and sum(map(len, self._means)) > limit:
                self._means.pop(0)
            self._means.append(means)
            return
        self._means.append(means)
        excess = sum(map(len, self._means)) - limit
        while excess > 0:
            oldest = self._means.pop(0)
            if len(oldest) > excess:
                self._means.insert(0, oldest[excess:])
            excess -= len(oldest)

    @property
    def baseline(self) -> float:
        """P50 of the group means (Eq. 7); 0 while there are none."""
        together = np.concatenate([np.zeros(0), *self._means])
        return float(np.median(together)) if len(together) else 0.0

    # -- what is stored ----------------------------------------------------------------------------------------------

    def admit(self, steps: StepTable, advantage: Floats, keep: NDArray[np.bool_]) -> int:
        """Stores the rows that the rules select; returns how many episodes (or steps) were added.

        Args:
            steps: An iteration's rows, shaped, with the column ``iteration``.
            advantage: Advantage of each row, shape (N,).
            keep: Rows that may be stored: those that no filter left out, shape (N,).

        Raises:
            MissingColumn: There is no column ``iteration``.
        """
        score = episode_returns(steps)
        if self.config.rules == "rounds":
            good, score = np.ones(len(steps), np.bool_), advantage
        elif self._as_code:
            good = advantage > 0.0
        else:
            once = first_rows(episode_codes(steps))
            above = score - group_statistics(score, group_codes(steps.group_id), samples=once).mean
            good = above > ROUNDING * np.maximum(1.0, np.abs(score))
        rows = np.flatnonzero(good & keep)
        iteration = np.asarray(steps.column(ITERATION, "replay", "the trainer"), np.int64)
        new = _slim(steps.take(rows), score[rows], iteration[rows])
        before = self._count(self.table)
        self.table = StepTable.join([self.table, new])
        return self._count(self.table) - before

    def forget(self, iteration: int) -> int:
        """Drops rows that are too old at ``iteration``; returns the number of dropped rows."""
        if self.config.rules == "paper":
            return 0
        young = iteration - self.table.extra[ITERATION] <= (MOST_AGE if self._as_code else self.config.size)
        self.table = self.table.take(np.flatnonzero(young))
        return int((~young).sum())

    @property
    def entry_count(self) -> int:
        """Number of episodes (steps, with ``rules: code``) in the buffer."""
        return self._count(self.table)

    @property
    def useful_count(self) -> int:
        """Number of them that count towards ``size``."""
        return int((self.recalibrate() > 0.0).sum()) if self._as_code else self.entry_count

    def full(self, count: int) -> bool:
        """Whether the buffer is full, given ``count`` summed over all processes."""
        return count > USEFUL_FACTOR * self.config.size if self._as_code else count >= self.config.size

    def recalibrate(self) -> Floats:
        """Returns Ã = R - P50 of each row of the buffer (Eq. 7); rounding errors are set to 0."""
        score = self.table.extra[RETURN]
        above: Floats = score - self.baseline
        return np.where(np.abs(above) <= ROUNDING * np.maximum(1.0, np.abs(score)), 0.0, above)

    def select_rows(self) -> tuple[StepTable, Floats]:
        """Returns the rows that are imitated, and their recalibrated advantages."""
        advantage = self.recalibrate()
        rows = np.flatnonzero(advantage >= 0.0 if self._as_code else advantage > 0.0)
        return self.table.take(rows), advantage[rows]

    def clear(self) -> None:
        """Empty the buffer; the group means stay."""
        self.table = _empty()

    def _count(self, table: StepTable) -> int:
        return len(table) if self._as_code else len(np.unique(table.episode_id))

    # -- on disk -----------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, NDArray[Any]]:
        """Returns the full state of the buffer as arrays."""
        table = self.table
        return {
            "group_id": table.group_id,
            "episode_id": table.episode_id,
            "t": table.t,
            "iteration": table.extra[ITERATION],
            "return": table.extra[RETURN],
            "prompt": table.prompt.values,
            "prompt_offsets": table.prompt.offsets,
            "response": table.response.values,
            "response_offsets": table.response.offsets,
            "logprob": table.logprob.values,
            "means": np.concatenate([np.zeros(0), *self._means]),
            "means_of_iteration": np.array([len(means) for means in self._means], np.int64),
        }

    def restore(self, state: Mapping[str, NDArray[Any]], rank: int = 0, ranks: int = 1) -> None:
        """Restores a buffer from its :meth:`state`, or the share of it whose groups are ``rank``'s."""
        response = Ragged(state["response"], state["response_offsets"])
        whole = _table(
            state["group_id"], state["episode_id"], state["t"], Ragged(state["prompt"], state["prompt_offsets"]),
            response, Ragged(state["logprob"], response.offsets), state["return"], state["iteration"],
        )  # fmt: skip
        self.table = whole.take(np.flatnonzero(whole.group_id % ranks == rank))
        ends = np.cumsum(state["means_of_iteration"])
        self._means = np.split(state["means"], ends[:-1]) if len(ends) else []


def joined_states(states: Sequence[Mapping[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    """Joins the states of several processes, whose group means are the same, into one."""
    buffer = ReplayBuffer(ReplayConfig())
    tables = []
    for state in states:
        buffer.restore(state)
        tables.append(buffer.table)
    whole = StepTable.join(tables)
    buffer.table = whole.take(np.lexsort((whole.t, whole.episode_id)))
    return buffer.state()


def _slim(steps: StepTable, score: Floats, iteration: Ints) -> StepTable:
    """Returns the rows with only the columns that an update needs; drops texts, which take most of the memory."""
    order = np.lexsort((steps.t, steps.episode_id))
    steps = steps.take(order)
    return _table(
        steps.group_id, steps.episode_id, steps.t, steps.prompt, steps.response, steps.logprob,
        score[order], iteration[order],
    )  # fmt: skip


def _table(
    group: Ints, episode: Ints, t: Ints, prompt: Ragged, response: Ragged, logprob: Ragged, score: Floats, age: Ints
) -> StepTable:
    blank = np.empty(len(group), object)
    blank[:] = ""
    return StepTable(
        group, episode, t, np.zeros(len(group)), blank, np.ones(len(group), np.bool_), prompt, response, logprob,
        extra={RETURN: score, ITERATION: age},
    )  # fmt: skip


def _empty() -> StepTable:
    none, ids = np.zeros(0, np.int64), Ragged.of([], np.int64)
    return _table(none, none, none, ids, ids, Ragged.of([], np.float32), np.zeros(0), none)
