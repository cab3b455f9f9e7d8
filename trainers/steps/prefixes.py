"""Common beginnings of token rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.integer[Any]]


def lexicographic(rows: Sequence[Ints]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Orders rows so that those which begin alike are neighbours.

    The prefix tree of the rows has ``sum(lengths) - sum(common)`` nodes.

    Args:
        rows: Token ids, of 32 bits with sign.

    Returns:
        The rows' numbers in the order of their tokens, and how many tokens each begins with that the row before it in
        this order begins with, too; both of shape (rows,).
    """
    keys = [(row.astype(np.int64) + 2**31).astype(">u4").tobytes() for row in rows]
    order = sorted(range(len(rows)), key=keys.__getitem__)
    common = np.zeros(len(rows), np.int64)
    for number, (before, after) in enumerate(pairwise(order), start=1):
        common[number] = common_length(rows[before], rows[after])
    return np.array(order, np.int64), common


def common_length(first: Ints, second: Ints) -> int:
    """Returns the length of the longest common prefix."""
    length = min(len(first), len(second))
    differ = first[:length] != second[:length]
    return int(differ.argmax()) if differ.any() else length
