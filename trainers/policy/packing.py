"""Step rows to micro-batches: trees of tokens that are computed together.

Rows that begin alike are neighbours in the tree of all rows, depth first, and a micro-batch is the tree of some
neighbours. Where a beginning is shared by rows of two micro-batches it is computed in both; cuts are made so that this
is least.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from envsuite.core.errors import UsageError
from envsuite.playing.step import Parts
from envsuite.prompting.images import renumber_images
from trainers.policy.tree import Ints, TokenSequence, TokenTree, depth_first, laid_out
from trainers.steps import StepTable
from trainers.steps.experts import cut, fill_experts

_PASS = 1 / 64  # cost of a micro-batch besides its tokens, in budgets


def row_sequences(table: StepTable) -> tuple[list[TokenSequence], Ints]:
    """Returns prompt and response of each row with a response, numbered as ``table.response.values``; and the rows.

    The last token of a response predicts nothing, and is not computed unless another row goes on from there.

    Raises:
        UsageError: A row has a response and no prompt.
    """
    _, numbers = table.pool
    sequences: list[TokenSequence] = []
    rows = np.flatnonzero(table.response.lengths)
    lengths = (table.prompt.lengths + table.response.lengths - 1)[rows].tolist()
    experts = fill_experts(table.experts[rows].tolist(), lengths)
    for row, own in zip(rows.tolist(), experts, strict=True):
        prompt, response = table.prompt[row], table.response[row].astype(np.int64)
        if not len(prompt):
            where = f"episode {table.episode_id[row]}, step {table.t[row]}"
            raise UsageError(f"row {row} ({where}) has a response of {len(response)} tokens to an empty prompt")
        if numbers[row]:
            prompt = renumber_images(prompt, numbers[row])
        place = len(prompt) - 1 + np.arange(len(response))
        tokens = np.concatenate([prompt, response[:-1]], dtype=np.int64)
        sequences.append(TokenSequence(tokens, place, response, table.response.offsets[row] + place - place[0], own))
    return sequences, rows


def micro_batches(
    table: StepTable, budget: int, share_prefix: bool = True, walk: float | None = None, rows: bool = False
) -> Iterator[TokenTree]:
    """Trees of at most ``budget`` tokens, in which every response token of ``table`` is a target once.

    The targets of a row are in one tree, in order. A row that is longer than the budget is a tree of its own, or part
    of one that is computed in parts. The trees are those that compute the fewest tokens together.

    Args:
        table: Step rows.
        budget: Most tokens that one forward pass computes.
        share_prefix: Whether a token that several rows begin with is computed once; else every row by itself.
        walk: What a token costs in a tree that is computed in parts (:mod:`trainers.policy.walk`), relative to one in a
            micro-batch. Parts are for trees with a row that is longer than the budget, or for one tree of all rows
            where that is cheaper; ``None``: never.
        rows: Whether the model computes paths one by one (:mod:`trainers.policy.rows`): a tree's paths then share
            nothing, and ``budget`` bounds their tokens with their padding.

    Raises:
        UsageError: A row has a response and no prompt.
    """
    sequences, _ = row_sequences(table)
    order, common = depth_first(sequences, share_prefix)
    sequences = _one_choice(sequences, order, common)
    lengths = np.array([len(sequences[number].tokens) for number in order], np.int64)
    if rows:
        for part, prefix_lengths in _row_cuts(order, lengths, common, budget):
            yield laid_out(sequences, part, prefix_lengths, table.pool[0])
        return
    if not share_prefix:
        walk = None
    cuts, cost = _cut(lengths, common, budget, walk)
    if walk is not None and walk * int((lengths - common).sum()) < cost:
        yield replace(laid_out(sequences, order, common, table.pool[0]), part=budget)
        return
    for begin, end in cuts:
        tree = laid_out(sequences, order[begin:end], common[begin:end], table.pool[0])
        yield tree if walk is None or len(tree) <= budget else replace(tree, part=budget)


def _one_choice(sequences: list[TokenSequence], order: Ints, common: Ints) -> list[TokenSequence]:
    """Gives a token that several sequences begin with the experts that the first of them has, in this order."""
    new_sequences, before = list(sequences), Parts()
    for number, prefix_length in zip(order.tolist(), common.tolist(), strict=True):
        before = (*cut(before, 0, prefix_length), *cut(sequences[number].experts, prefix_length))
        new_sequences[number] = replace(sequences[number], experts=before)
    return new_sequences


def distinct_tokens(table: StepTable) -> int:
    """Number of tokens of ``table`` that a tree of all its rows has."""
    sequences, _ = row_sequences(table)
    _, common = depth_first(sequences, True)
    return sum(len(sequence.tokens) for sequence in sequences) - int(common[1:].sum())


def _row_cuts(order: Ints, lengths: Ints, common: Ints, budget: int) -> Iterator[tuple[Ints, Ints]]:
    """Cuts sequences, depth first, into batches of rows of at most ``budget`` tokens with padding, or of one row.

    A sequence that goes on from the whole of the one before is part of the same row; others share nothing.

    Returns:
        Numbers of each batch, and the beginnings that they share with the one before.
    """
    prefix_lengths = np.where(common == np.concatenate([[-1], lengths])[:-1], common, 0)
    starts = np.flatnonzero(prefix_lengths == 0)
    spans = list(zip(starts.tolist(), np.append(starts, len(order))[1:].tolist(), strict=True))
    batch: list[int] = []
    rows = 0
    # Rows of similar lengths are padded least.
    for begin, end in sorted(spans, key=lambda span: (int(lengths[span[1] - 1]), span)):
        if batch and (rows + 1) * int(lengths[end - 1]) > budget:
            yield order[batch], prefix_lengths[batch]
            batch, rows = [], 0
        batch += range(begin, end)
        rows += 1
    if batch:
        yield order[batch], prefix_lengths[batch]


def _cut(lengths: Ints, common: Ints, budget: int, walk: float | None) -> tuple[list[tuple[int, int]], float]:
    """Begin and end of each micro-batch of those that compute least together, and how many tokens they compute.

    Args:
        lengths: Of the sequences, depth first.
        common: How much each shares with the one before.
        budget: Most tokens of a micro-batch that is not computed in parts.
        walk: What a token costs in one that is; ``None``: only a sequence by itself may be longer than the budget.
    """
    count, longest = len(lengths), int(lengths.max(initial=0))
    new = np.concatenate([[0], np.cumsum(lengths - common)])
    most = budget if walk is None else max(budget, 2 * longest)
    cost, start = np.zeros(count + 1), np.zeros(count + 1, np.int64)
    for end in range(1, count + 1):
        begin = np.arange(min(np.searchsorted(new, new[end] - most), end - 1), end)
        tokens = lengths[begin] + new[end] - new[begin + 1]
        price = tokens.astype(np.float64)
        price[tokens > budget] *= np.inf if walk is None else walk
        if walk is None:
            price[-1] = tokens[-1]
        price += cost[begin] + _PASS * budget
        best = len(price) - 1 - int(price[::-1].argmin())
        cost[end], start[end] = price[best], begin[best]
    cuts = []
    while count:
        cuts.append((int(start[count]), count))
        count = cuts[-1][0]
    return cuts[::-1], float(cost[-1]) - len(cuts) * _PASS * budget
