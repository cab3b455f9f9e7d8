"""How many tokens the rows of a step table have in common at their beginnings, and how many they could have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from envsuite.prompting.images import renumber_images
from trainers.steps.prefixes import Ints, lexicographic
from trainers.steps.table import StepTable


@dataclass(frozen=True)
class SharedTokens:
    """Token counts of a step table; ``least <= distinct <= rows``."""

    rows: int
    """Tokens of all prompts and responses."""
    distinct: int
    """Nodes of the trie of all rows: tokens to compute if each is computed once."""
    least: int
    """The same if each prompt began with all that it has in common with the step before it in its episode (the prompt
    and the response, as multisets of tokens): no order of what the prompts show can share more between a step and the
    next. What rows share otherwise, such as the first prompts of a group, counts as it is shared now."""

    @classmethod
    def of(cls, table: StepTable) -> SharedTokens:
        """Counts the tokens of ``table``."""
        order = np.lexsort((table.t, table.episode_id))
        rows = _rows(table, order)
        lengths = shared_lengths(rows)
        possible = lengths.copy()
        episode = table.episode_id[order]
        for number in range(1, len(rows)):
            if episode[number] == episode[number - 1]:
                prompt = rows[number][: len(table.prompt[int(order[number])])]
                possible[number] = max(lengths[number], _overlap(rows[number - 1], prompt))
        total = sum(map(len, rows))
        return cls(total, total - int(lengths.sum()), total - int(possible.sum()))


def shared_lengths(rows: Sequence[Ints]) -> NDArray[np.int64]:
    """Returns for each row the longest prefix that it has in common with an earlier one, shape (rows,).

    The rows' trie has ``sum(lengths) - sum(shared_lengths(rows))`` nodes.
    """
    count = len(rows)
    lengths = np.zeros(count, np.int64)
    order, common = lexicographic(rows)
    # Rows leave the sorted list, the last one first: when it is a row's turn, its neighbours are earlier ones.
    place = np.empty(count, np.int64)
    place[order] = np.arange(count)
    left_of, right_of = list(range(-1, count - 1)), list(range(1, count + 1))
    after = [*common[1:].tolist(), 0]  # the prefix that the row at a place has in common with the one to its right
    for row in range(count - 1, -1, -1):
        here = int(place[row])
        before, behind = left_of[here], right_of[here]
        with_left = after[before] if before >= 0 else 0
        with_right = after[here] if behind < count else 0
        lengths[row] = max(with_left, with_right)
        if before >= 0:
            right_of[before] = behind
            after[before] = min(with_left, with_right)
        if behind < count:
            left_of[behind] = before
    return lengths


def _rows(table: StepTable, order: NDArray[np.int64]) -> list[Ints]:
    """Prompt and response of each row, in ``order``; ids of image parts name the image, so that equal ids are equal."""
    rows, (_, numbers) = list[Ints](), table.pool
    for row in order.tolist():
        prompt = renumber_images(table.prompt[row], numbers[row]) if numbers[row] else table.prompt[row]
        rows.append(np.concatenate([prompt, table.response[row]]))
    return rows


def _overlap(first: Ints, second: Ints) -> int:
    """Size of the intersection as multisets."""
    tokens, counts = np.unique(first, return_counts=True)
    other_tokens, theirs = np.unique(second, return_counts=True)
    _, here, there = np.intersect1d(tokens, other_tokens, assume_unique=True, return_indices=True)
    return int(np.minimum(counts[here], theirs[there]).sum())
