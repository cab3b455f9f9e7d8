"""Balance of an update over processes: episodes move to processes that have less to compute.

Every process has the episodes that it played. Those of one may be longer than those of another, which would then wait
for it in each optimiser step. The loss does not depend on which process computes an episode.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from accelerate import Accelerator
from numpy.typing import NDArray
from transformers import PreTrainedModel

from trainers.policy.accumulation import Batch
from trainers.policy.packing import row_sequences
from trainers.policy.partition import Ints
from trainers.policy.tree import depth_first
from trainers.processes.distributed import all_gather_object
from trainers.steps import StepTable

_WORTH_A_MOVE = 0.01  # share of the most loaded process's tokens that a move must save


@dataclass(frozen=True)
class EpisodeWork:
    """Work that some episodes add to that of their processes; every column has shape (episodes,).

    The unit is a token without attention; each token that one sees adds ``1 / span`` of it.
    """

    rank: Ints
    """Process that has the episode."""
    part: Ints
    """Its minibatch."""
    group: Ints
    episode: Ints
    shared: Ints
    """For tokens that several episodes of its group begin with, which one process computes once in a minibatch."""
    own: Ints
    """For tokens of its own. Those that groups have in common are in neither: every process computes them."""

    @classmethod
    def of(cls, table: StepTable, part: Ints, rank: int, share_prefix: bool, span: float = math.inf) -> EpisodeWork:
        """Returns the work of the episodes of ``table``, whose rows are in the minibatches ``part``.

        Args:
            table: Step rows.
            part: Minibatch of each row.
            rank: Process that has them.
            share_prefix: Whether a token that several rows begin with is computed once.
            span: :func:`attention_span` of the model; without, attention costs nothing.
        """
        columns = []
        for number in np.unique(part).tolist():
            minibatch = table.take(np.flatnonzero(part == number))
            ids, first, which = np.unique(minibatch.episode_id, return_index=True, return_inverse=True)
            group = minibatch.group_id[first]
            own, group_work = np.zeros(len(ids), np.int64), dict.fromkeys(group.tolist(), 0)
            for row, episode_cost, group_cost in zip(*_costs(minibatch, share_prefix, span), strict=True):
                own[which[row]] += episode_cost
                group_work[int(minibatch.group_id[row])] += group_cost
            shares = np.array([group_work[of] for of in group.tolist()], np.int64)
            columns.append(np.stack([np.full(len(ids), rank), np.full(len(ids), number), group, ids, shares, own]))
        return cls(*np.concatenate([np.zeros((6, 0), np.int64), *columns], axis=1))

    @classmethod
    def join(cls, works: Sequence[EpisodeWork]) -> EpisodeWork:
        """Returns the work of all processes."""
        return cls(*(np.concatenate([getattr(work, name) for work in works]) for name in cls.__dataclass_fields__))

    def take(self, mask: NDArray[np.bool_]) -> EpisodeWork:
        """Returns the episodes of ``mask``."""
        return EpisodeWork(*(getattr(self, name)[mask] for name in self.__dataclass_fields__))


def attention_span(model: PreTrainedModel) -> float:
    """Number of tokens to attend to that costs as much as the rest of a token's way through the layers."""
    config = model.config.get_text_config(decoder=True)
    if not (heads := getattr(config, "num_attention_heads", None)):
        return math.inf
    ends = (model.get_input_embeddings(), model.get_output_embeddings())  # type: ignore[no-untyped-call]
    outside = {id(p) for layer in ends if layer is not None for p in layer.parameters()}
    weights = sum(p.numel() for p in model.parameters() if id(p) not in outside)
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    return float(weights / (2 * config.num_hidden_layers * heads * width))


def _costs(table: StepTable, share_prefix: bool, span: float) -> tuple[list[int], list[int], list[int]]:
    """Returns rows, what the tokens of each cost that its episode alone needs, and those more that its group needs.

    A token that several rows begin with is counted for the first of them in the order of the tree.
    """
    sequences, rows = row_sequences(table)
    order, common = depth_first(sequences, share_prefix)
    tree_rows = rows[order]
    lengths = np.array([len(sequences[number].tokens) for number in order], np.int64)
    beyond_episode, beyond_group = (
        np.maximum(common, _shared_beyond(of[tree_rows], common)) for of in (table.episode_id, table.group_id)
    )
    row_work, group_work, common_work = (
        np.rint(count + count * (count - 1) / (2 * span)).astype(np.int64)
        for count in (lengths, beyond_episode, beyond_group)
    )
    return tree_rows.tolist(), (row_work - group_work).tolist(), (group_work - common_work).tolist()


def _shared_beyond(owner: Ints, common: Ints) -> Ints:
    """Returns how many tokens of each sequence are those of the next one, in their order, that has another owner.

    Args:
        owner: Owner of each sequence.
        common: Number of tokens that each sequence begins with like the one before.
    """
    counts = np.zeros(len(owner), np.int64)
    least = 0
    for number in range(len(owner) - 1, -1, -1):
        counts[number] = least
        if number:
            least = min(least, int(common[number])) if owner[number - 1] == owner[number] else int(common[number])
    return counts


def spread_episodes(work: EpisodeWork, ranks: int) -> Ints:
    """Returns the process that is to compute each episode, so that in each minibatch all compute about equally much.

    Episodes stay where they are unless a move helps; those of a group stay together where that is as good.

    Args:
        work: The episodes of all processes.
        ranks: Number of processes.
    """
    rank = work.rank.copy()
    for part in np.unique(work.part):
        inside = work.part == part
        rank[inside] = _even_out(work.take(inside), ranks)
    return rank


def _even_out(work: EpisodeWork, ranks: int) -> Ints:
    """Moves what saves most from the process with most tokens to the one with fewest, until nothing saves enough."""
    rank, group, own = work.rank.copy(), work.group.tolist(), work.own.tolist()
    work_of: dict[int, int] = {}
    rank_groups: list[dict[int, list[int]]] = [{} for _ in range(ranks)]
    for index, (at, of, tokens) in enumerate(zip(rank.tolist(), group, work.shared.tolist(), strict=True)):
        work_of[of] = max(work_of.get(of, 0), tokens)
        rank_groups[at].setdefault(of, []).append(index)
    loads = [sum(work_of[of] + sum(own[i] for i in members) for of, members in mine.items()) for mine in rank_groups]
    while True:
        most, least = loads.index(max(loads)), loads.index(min(loads))
        best, move = loads[most] * (1.0 - _WORTH_A_MOVE), None
        for of, members in rank_groups[most].items():
            begins = 0 if of in rank_groups[least] else work_of[of]
            for episodes in [members, *([i] for i in members if len(members) > 1)]:
                tokens = sum(own[i] for i in episodes)
                ends = work_of[of] if len(episodes) == len(members) else 0
                worst = max(loads[most] - tokens - ends, loads[least] + tokens + begins)
                if worst < best:
                    best, move = worst, (of, episodes, tokens + ends, tokens + begins)
        if move is None:
            return rank
        of, episodes, leaves, comes = move
        loads[most] -= leaves
        loads[least] += comes
        rank_groups[most][of] = [i for i in rank_groups[most][of] if i not in episodes]
        if not rank_groups[most][of]:
            del rank_groups[most][of]
        rank_groups[least].setdefault(of, []).extend(episodes)
        rank[episodes] = least


def balance_batch(
    accelerator: Accelerator,
    batch: Batch,
    parts: Ints,
    epoch: int,
    share_prefix: bool,
    span: float = math.inf,
    experts: bool = False,
) -> tuple[Batch, Ints]:
    """Exchanges episodes so that every process has about as much to compute in each minibatch; all must call this.

    Args:
        accelerator: The run's accelerator.
        batch: The rows of this process; an episode lies in one process.
        parts: Minibatch of each row in each epoch, shape (epochs, rows).
        epoch: Epoch whose minibatches are balanced.
        share_prefix: Whether a token that several rows begin with is computed once.
        span: :func:`attention_span` of the model; without, attention costs nothing.
        experts: Whether an episode that moves takes the experts of its tokens along.

    Returns:
        The rows that this process is to compute, and their ``parts``. Where an episode moves, columns that no loss
        reads (``state_key``, ``extra``) are left out.
    """
    ranks, here = accelerator.num_processes, accelerator.process_index
    if ranks == 1:
        return batch, parts
    mine = EpisodeWork.of(batch.table, parts[epoch], here, share_prefix, span)
    work = EpisodeWork.join(all_gather_object(accelerator, mine))
    target = spread_episodes(work, ranks)
    if (target == work.rank).all():
        return batch, parts
    own = work.rank == here
    goes = dict(zip(work.episode[own].tolist(), target[own].tolist(), strict=True))
    where = np.array([goes.get(episode, here) for episode in batch.table.episode_id.tolist()], np.int64)
    table = replace(batch.table, state_key=np.full(len(batch.table), "", object), extra={})
    batch = replace(batch, table=table)
    outbox: dict[int, tuple[Batch, Ints]] = {}
    for to in np.unique(where[where != here]).tolist():
        rows = np.flatnonzero(where == to)
        parcel = batch.take(rows)
        if not experts:
            parcel = replace(parcel, table=parcel.table.without_experts())
        outbox[to] = (parcel, parts[:, rows])
    stay = np.flatnonzero(where == here)
    pieces = [(batch.take(stay), parts[:, stay])]
    pieces += [parcels[here] for parcels in all_gather_object(accelerator, outbox) if here in parcels]
    return Batch.join([piece for piece, _ in pieces]), np.concatenate([of for _, of in pieces], axis=1)
