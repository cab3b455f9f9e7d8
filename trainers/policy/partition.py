"""Minibatches: the rows of all processes that one optimiser step uses.

An episode is never split: its steps are computed as one sequence, and a mean over its steps needs all of them. The
episodes are dealt group by group, one of each in turn, so that every minibatch has its share of every group and, as the
groups are spread over the processes, every process its share of every minibatch.
"""

from __future__ import annotations

import numpy as np
from accelerate import Accelerator
from numpy.typing import NDArray

from trainers.processes.distributed import all_gather_object
from trainers.steps import StepTable

Ints = NDArray[np.int64]


def minibatch_count(accelerator: Accelerator, table: StepTable, parts: int, rows: int | None) -> int:
    """Number of minibatches of one pass over the rows of all processes; every process must call this.

    Args:
        accelerator: The run's accelerator.
        table: The rows of this process.
        parts: Number of minibatches where ``rows`` is not given.
        rows: Most rows of a minibatch, to the nearest episode; ``None`` cuts into ``parts``.
    """
    if rows is None:
        return parts
    return max(1, -(-sum(all_gather_object(accelerator, len(table))) // rows))


def minibatches(accelerator: Accelerator, table: StepTable, parts: int, rng: np.random.Generator) -> list[Ints]:
    """Returns the rows of this process in each minibatch of :func:`minibatch_of`; every process must call this."""
    part = minibatch_of(accelerator, table, parts, rng)
    return [np.flatnonzero(part == number) for number in range(parts)]


def minibatch_of(accelerator: Accelerator, table: StepTable, parts: int, rng: np.random.Generator) -> Ints:
    """Returns the minibatch of each row, of ``parts`` of about equally many rows; every process must call this.

    The partition depends on ``rng`` and on the rows of all processes, not on which process holds which rows.

    Args:
        accelerator: The run's accelerator.
        table: The rows of this process; a group lies in one process.
        parts: Number of minibatches. Where there are fewer episodes, some stay empty.
        rng: In the same state in every process.
    """
    ids = np.stack([table.group_id, table.episode_id])
    episodes, row_of, steps = np.unique(ids, axis=1, return_inverse=True, return_counts=True)
    whole = np.concatenate(all_gather_object(accelerator, np.vstack([episodes, steps])), axis=1)
    whole = whole[:, np.lexsort((whole[1], whole[0]))]
    part = _deal_episodes(whole[0], whole[2], parts, rng)
    part_of = dict(zip(map(tuple, whole[:2].T.tolist()), part, strict=True))
    return np.array([part_of[tuple(pair)] for pair in episodes.T.tolist()], np.int64)[row_of.reshape(-1)]


def _deal_episodes(group: Ints, steps: Ints, parts: int, rng: np.random.Generator) -> list[int]:
    """The minibatch of each episode, given its group and number of rows."""
    _, code = np.unique(group, return_inverse=True)
    permutation = rng.permutation(len(group))
    by_group = permutation[np.argsort(code[permutation], kind="stable")]
    sizes = np.bincount(code) if len(code) else np.zeros(0, np.int64)
    turn = np.empty(len(group), np.int64)
    turn[by_group] = np.arange(len(group)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    order = np.lexsort((rng.permutation(len(sizes))[code], turn))
    ends = np.cumsum(steps[order])
    minibatch = np.empty(len(group), np.int64)
    # An episode belongs to the minibatch in which its middle lies; exact in integers.
    minibatch[order] = (2 * ends - steps[order]) * parts // max(2 * int(steps.sum()), 1)
    return minibatch.tolist()
