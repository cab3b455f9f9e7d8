"""Step rows to micro-batches: trees of tokens that are computed together.

Rows that begin alike are neighbours in the tree of all rows, depth first, and a micro-batch is the tree of some
neighbours. Where a beginning is shared by rows of two micro-batches it is computed in both; cuts are made where that is
least.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from envsuite.core.errors import UsageError
from envsuite.prompting.images import renumbered
from trainers.policy.tree import Ints, TokenSequence, TokenTree, depth_first, laid_out
from trainers.steps import StepTable

_FULL = 0.75  # of the budget, after which a micro-batch may end where the next shares least with it


def row_sequences(table: StepTable) -> tuple[list[TokenSequence], Ints]:
    """Returns prompt and response of each row with a response, numbered as ``table.response.values``; and the rows.

    The last token of a response predicts nothing, and is not computed unless another row goes on from there.

    Raises:
        UsageError: A row has a response and no prompt.
    """
    _, numbers = table.pool
    sequences: list[TokenSequence] = []
    rows = np.flatnonzero(table.response.lengths)
    for row in rows.tolist():
        prompt, response = table.prompt[row], table.response[row].astype(np.int64)
        if not len(prompt):
            where = f"episode {table.episode_id[row]}, step {table.t[row]}"
            raise UsageError(f"row {row} ({where}) has a response of {len(response)} tokens to an empty prompt")
        if numbers[row]:
            prompt = renumbered(prompt, numbers[row])
        place = len(prompt) - 1 + np.arange(len(response))
        tokens = np.concatenate([prompt, response[:-1]], dtype=np.int64)
        sequences.append(TokenSequence(tokens, place, response, table.response.offsets[row] + place - place[0]))
    return sequences, rows


def micro_batches(table: StepTable, budget: int, share_prefix: bool, walk: float | None = None) -> Iterator[TokenTree]:
    """Trees of at most ``budget`` tokens, in which every response token of ``table`` is a target once.

    The targets of a row are in one tree, in order. A row that is longer than the budget is a tree of its own.

    Args:
        table: Step rows.
        budget: Most tokens that one forward pass computes.
        share_prefix: Whether a token that several rows begin with is computed once; else every row by itself.
        walk: What a token costs in a tree that is computed in parts (:mod:`trainers.policy.walk`), relative to one in a
            micro-batch. Where parts save anything, or a row is longer than the budget, there is one tree of all rows;
            ``None``: never.

    Raises:
        UsageError: A row has a response and no prompt.
    """
    sequences, _ = row_sequences(table)
    order, common = depth_first(sequences, share_prefix)
    lengths = np.array([len(sequences[number].tokens) for number in order], np.int64)
    cuts = list(_cut(lengths, common, budget))
    if walk is not None and share_prefix and len(lengths):
        twice = sum(int(common[begin]) for begin, _ in cuts[1:])  # computed in more than one micro-batch
        distinct = int((lengths - common).sum())
        if lengths.max() > budget or distinct + twice > walk * distinct:
            yield replace(laid_out(sequences, order, common, table.pool[0]), part=budget)
            return
    for begin, end in cuts:
        yield laid_out(sequences, order[begin:end], common[begin:end], table.pool[0])


def _cut(lengths: Ints, common: Ints, budget: int) -> Iterator[tuple[int, int]]:
    """Begin and end of each micro-batch, given the lengths of sequences and what they share with the one before."""
    own, begin = (lengths - common).tolist(), 0
    while begin < len(lengths):
        tokens, end, full = int(lengths[begin]), begin + 1, begin + 1
        while end < len(lengths) and tokens + own[end] <= budget:
            tokens += own[end]
            end += 1
            if tokens <= _FULL * budget:
                full = end
        if end < len(lengths):  # the last of the cuts that share least
            end -= int(common[full : end + 1][::-1].argmin())
        yield begin, end
        begin = end
