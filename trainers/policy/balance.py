"""Balance of an update over processes: episodes move to processes that have less to compute.

Every process has the episodes that it played. Those of one may be longer than those of another, which would then wait
for it in each optimiser step. The loss does not depend on which process computes an episode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from accelerate import Accelerator
from numpy.typing import NDArray

from trainers.distributed import every
from trainers.policy.accumulation import Batch
from trainers.policy.packing import merge_steps
from trainers.policy.partition import Ints
from trainers.steps import StepTable

_WORTH_A_MOVE = 0.01  # share of the most loaded process's tokens that a move must save


@dataclass(frozen=True)
class Work:
    """Tokens that some episodes add to those that their processes compute; every column has shape (episodes,)."""

    rank: Ints
    """Process that has the episode."""
    part: Ints
    """Its minibatch."""
    group: Ints
    episode: Ints
    shared: Ints
    """Tokens of the first prompt, which the episodes of a group in one process and minibatch compute once."""
    own: Ints
    """The other tokens."""

    @classmethod
    def of(cls, table: StepTable, part: Ints, rank: int, share_prefix: bool) -> Work:
        """Returns the work of the episodes of ``table``, whose rows are in the minibatches ``part``."""
        found: dict[int, list[int]] = {}
        for sequence in merge_steps(table):
            row = sequence.spans[0].row
            entry = found.setdefault(int(table.episode_id[row]), [])
            if not entry:
                shared = sequence.prompt_length - 1 if share_prefix else 0
                entry += [rank, int(part[row]), int(table.group_id[row]), int(table.episode_id[row]), shared, -shared]
            entry[-1] += len(sequence.tokens)
        return cls(*np.array(list(found.values()), np.int64).reshape(-1, 6).T)

    @classmethod
    def joined(cls, works: Sequence[Work]) -> Work:
        """Returns the work of all processes."""
        names = cls.__dataclass_fields__
        return cls(*(np.concatenate([getattr(work, name) for work in works]) for name in names))

    def take(self, chosen: NDArray[np.bool_]) -> Work:
        """Returns the chosen episodes."""
        return Work(*(getattr(self, name)[chosen] for name in self.__dataclass_fields__))


def evened(work: Work, ranks: int) -> Ints:
    """Returns the process that is to compute each episode, so that in each minibatch all compute about equally much.

    Episodes stay where they are unless a move helps; those of a group stay together where that is as good.

    Args:
        work: The episodes of all processes.
        ranks: Number of processes.
    """
    rank = work.rank.copy()
    for part in np.unique(work.part):
        inside = work.part == part
        rank[inside] = _evened(work.take(inside), ranks)
    return rank


def _evened(work: Work, ranks: int) -> Ints:
    """Moves what saves most from the process with most tokens to the one with fewest, until nothing saves enough."""
    rank, group, own = work.rank.copy(), work.group.tolist(), work.own.tolist()
    shared: dict[int, int] = {}
    held: list[dict[int, list[int]]] = [{} for _ in range(ranks)]
    for index, (at, of, tokens) in enumerate(zip(rank.tolist(), group, work.shared.tolist(), strict=True)):
        shared[of] = max(shared.get(of, 0), tokens)
        held[at].setdefault(of, []).append(index)
    loads = [sum(shared[of] + sum(own[i] for i in members) for of, members in mine.items()) for mine in held]
    while True:
        most, least = loads.index(max(loads)), loads.index(min(loads))
        best, moved = loads[most] * (1.0 - _WORTH_A_MOVE), None
        for of, members in held[most].items():
            begins = 0 if of in held[least] else shared[of]
            for chosen in [members, *([i] for i in members if len(members) > 1)]:
                tokens = sum(own[i] for i in chosen)
                ends = shared[of] if len(chosen) == len(members) else 0
                worst = max(loads[most] - tokens - ends, loads[least] + tokens + begins)
                if worst < best:
                    best, moved = worst, (of, chosen, tokens + ends, tokens + begins)
        if moved is None:
            return rank
        of, chosen, leaves, comes = moved
        loads[most] -= leaves
        loads[least] += comes
        held[most][of] = [i for i in held[most][of] if i not in chosen]
        if not held[most][of]:
            del held[most][of]
        held[least].setdefault(of, []).extend(chosen)
        rank[chosen] = least


def balanced(accelerator: Accelerator, batch: Batch, parts: Ints, epoch: int, share_prefix: bool) -> tuple[Batch, Ints]:
    """Exchanges episodes so that every process computes about as many tokens in each minibatch; all must call this.

    Args:
        accelerator: The run's accelerator.
        batch: The rows of this process; an episode lies in one process.
        parts: Minibatch of each row in each epoch, shape (epochs, rows).
        epoch: Epoch whose minibatches are balanced.
        share_prefix: ``OptimConfig.share_prefix``.

    Returns:
        The rows that this process is to compute, and their ``parts``. Where an episode moves, columns that no loss
        reads (``state_key``, ``extra``) are left out.
    """
    ranks, here = accelerator.num_processes, accelerator.process_index
    if ranks == 1:
        return batch, parts
    mine = Work.of(batch.table, parts[epoch], here, share_prefix)
    work = Work.joined(every(accelerator, mine))
    target = evened(work, ranks)
    if (target == work.rank).all():
        return batch, parts
    own = work.rank == here
    goes = dict(zip(work.episode[own].tolist(), target[own].tolist(), strict=True))
    where = np.array([goes.get(episode, here) for episode in batch.table.episode_id.tolist()], np.int64)
    needed = replace(batch, table=_needed(batch.table))
    sent: dict[int, tuple[Batch, Ints]] = {}
    for to in np.unique(where[where != here]).tolist():
        rows = np.flatnonzero(where == to)
        sent[to] = needed.take(rows), parts[:, rows]
    stay = np.flatnonzero(where == here)
    came = [parcels[here] for parcels in every(accelerator, sent) if here in parcels]
    kept = [(needed.take(stay), parts[:, stay]), *came]
    return Batch.joined([one for one, _ in kept]), np.concatenate([of for _, of in kept], axis=1)


def _needed(table: StepTable) -> StepTable:
    return replace(table, state_key=np.full(len(table), "", object), extra={})
