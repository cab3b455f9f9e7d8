"""Step rows to token sequences: no token is computed twice.

Where a memory appends (``full``, ``compact``), the prompt of a step begins with the prompt and response of the step
before. Such steps are merged into one sequence with several responses in it. Sequences that begin with the same prompt
(the episodes of a group) share its computation: it is run once, and its keys and values are read by all of them. Both
are exact: in a causal model a token's log-probability depends on nothing after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from envsuite.core.images import Pixels
from envsuite.prompting.images import renumbered
from trainers.steps import StepTable

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Span:
    """Position of the response of a step row in a sequence."""

    row: int
    start: int
    length: int


@dataclass(frozen=True)
class TokenSequence:
    """Tokens of consecutive steps of one episode."""

    tokens: Ints
    prompt_length: int
    """Length of the first step's prompt, which may be shared with other sequences."""
    spans: tuple[Span, ...]


def merge_steps(table: StepTable) -> list[TokenSequence]:
    """Sequences of ``table``: consecutive steps of an episode are merged where each prompt extends what came before.

    Every row with a non-empty response is in exactly one span of exactly one sequence.
    """
    sequences: list[TokenSequence] = []
    order = np.lexsort((table.t, table.episode_id))
    _, numbers = table.pool
    parts: list[Ints] = []
    spans: list[Span] = []
    length = prompt_length = 0
    episode: int | None = None

    def close() -> None:
        if spans:
            sequences.append(TokenSequence(np.concatenate(parts), prompt_length, tuple(spans)))

    for row in order.tolist():
        prompt, response = table.prompt[row], table.response[row]
        if numbers[row]:
            prompt = renumbered(prompt, numbers[row])
        if len(response) == 0:
            continue
        so_far = np.concatenate(parts) if len(parts) > 1 else parts[0] if parts else prompt[:0]
        same = table.episode_id[row] == episode and len(prompt) >= length and np.array_equal(prompt[:length], so_far)
        if not same:
            close()
            parts, spans, length, prompt_length = [], [], 0, len(prompt)
            so_far = prompt[:0]
            episode = int(table.episode_id[row])
        parts = [so_far, prompt[length:], response]
        spans.append(Span(row, len(prompt), len(response)))
        length = len(prompt) + len(response)
    close()
    return sequences


@dataclass(frozen=True)
class MicroBatch:
    """Sequences that are computed together: shared prefixes, then what follows them.

    The tail of a sequence starts with the last token of its prompt, whose output predicts the first response token.
    Padding is on the right; positions count from 0 in every sequence.
    """

    prefix: Ints
    """(P, prefix width): prompts without their last token; width 0 where nothing is shared."""
    prefix_lengths: Ints
    """(P,)"""
    prefix_of: Ints
    """(B,): the prefix of each tail."""
    tail: Ints
    """(B, tail width)"""
    tail_lengths: Ints
    """(B,)"""
    sequence: Ints
    """(T,): index into the tails of each response token."""
    position: Ints
    """(T,): position in the tail whose output predicts the token."""
    target: Ints
    """(T,): the token."""
    index: Ints
    """(T,): position of the token in ``table.response.values``."""
    images: Sequence[Pixels] = ()
    """The images that token ids below -1 are parts of."""

    @property
    def tokens(self) -> int:
        """Tokens computed, padding included."""
        return int(self.prefix.size + self.tail.size)


def micro_batches(
    table: StepTable, sequences: Sequence[TokenSequence], budget: int, share_prefix: bool
) -> Iterator[MicroBatch]:
    """Batches of at most ``budget`` tokens (padding counted); sequences of one prompt and of similar length together.

    A single sequence longer than the budget is a batch of its own.
    """
    groups: dict[bytes, list[TokenSequence]] = {}
    for number, sequence in enumerate(sequences):
        key = sequence.tokens[: sequence.prompt_length].tobytes() if share_prefix else number.to_bytes(8, "little")
        groups.setdefault(key, []).append(sequence)

    def tail_of(sequence: TokenSequence) -> int:
        return len(sequence.tokens) - (sequence.prompt_length - 1 if share_prefix else 0)

    ordered = sorted(groups.values(), key=lambda group: (group[0].prompt_length, max(map(tail_of, group))))
    batch: list[list[TokenSequence]] = []
    for group in ordered:
        for piece in _pieces(group, budget, tail_of, share_prefix):
            if batch and _cost([*batch, piece], tail_of, share_prefix) > budget:
                yield _collate(table, batch, share_prefix)
                batch = []
            batch.append(piece)
    if batch:
        yield _collate(table, batch, share_prefix)


def _pieces(group: list[TokenSequence], budget: int, tail_of, share_prefix: bool) -> Iterator[list[TokenSequence]]:  # type: ignore[no-untyped-def]
    piece: list[TokenSequence] = []
    for sequence in group:
        if piece and _cost([[*piece, sequence]], tail_of, share_prefix) > budget:
            yield piece
            piece = []
        piece.append(sequence)
    yield piece


def _cost(groups: Sequence[Sequence[TokenSequence]], tail_of, share_prefix: bool) -> int:  # type: ignore[no-untyped-def]
    tails = [tail_of(sequence) for group in groups for sequence in group]
    prefix = max(group[0].prompt_length - 1 for group in groups) * len(groups) if share_prefix else 0
    return int(max(tails) * len(tails) + prefix)


def _collate(table: StepTable, groups: Sequence[Sequence[TokenSequence]], share_prefix: bool) -> MicroBatch:
    heads = [group[0].tokens[: group[0].prompt_length - 1] if share_prefix else group[0].tokens[:0] for group in groups]
    tails: list[Ints] = []
    prefix_of: list[int] = []
    columns: list[tuple[Ints, Ints, Ints, Ints]] = []
    for number, group in enumerate(groups):
        for sequence in group:
            cut = len(heads[number])
            for span in sequence.spans:
                where = np.arange(span.length)
                columns.append((
                    np.full(span.length, len(tails)),
                    span.start + where - cut - 1,
                    sequence.tokens[span.start : span.start + span.length],
                    table.response.offsets[span.row] + where,
                ))  # fmt: skip
            tails.append(sequence.tokens[cut:])
            prefix_of.append(number)
    which, position, target, index = (np.concatenate(column) for column in zip(*columns, strict=True))
    return MicroBatch(
        prefix=padded(heads),
        prefix_lengths=np.array([len(head) for head in heads], np.int64),
        prefix_of=np.array(prefix_of, np.int64),
        tail=padded(tails),
        tail_lengths=np.array([len(tail) for tail in tails], np.int64),
        sequence=which,
        position=position,
        target=target,
        index=index,
        images=table.pool[0],
    )


def one_token() -> MicroBatch:
    """The smallest micro-batch, for a process that has none while another has."""
    zero, one = np.zeros(1, np.int64), np.ones(1, np.int64)
    return MicroBatch(zero[:, None][:, :0], zero, zero, zero[:, None], one, zero, zero, zero, zero)


def padded(rows: Sequence[Ints]) -> Ints:
    """The rows beside each other, zeros at their right."""
    out = np.zeros((len(rows), max(len(row) for row in rows)), np.int64)
    for number, row in enumerate(rows):
        out[number, : len(row)] = row
    return out
