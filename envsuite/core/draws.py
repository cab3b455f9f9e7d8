"""Reproducible random draws: the same on every machine and with every version of Python and NumPy."""

from __future__ import annotations

import hashlib
import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TypeVar

T = TypeVar("T")


def _blocks(key: bytes) -> Iterator[int]:
    counter = 0
    while True:
        yield from struct.unpack("<4Q", hashlib.sha256(key + counter.to_bytes(8, "little")).digest())
        counter += 1


class Draw:
    """A stream of draws determined by ``key``: SHA-256 in counter mode."""

    def __init__(self, key: str) -> None:
        self._words = _blocks(hashlib.sha256(key.encode()).digest())

    def below(self, n: int) -> int:
        """Returns an integer in ``range(n)``, all equally likely."""
        limit = (1 << 64) - (1 << 64) % n
        while (word := next(self._words)) >= limit:
            pass
        return word % n

    def chance(self, percent: int) -> bool:
        """Returns True with a probability of ``percent`` %."""
        return self.below(100) < percent

    def choose(self, items: Sequence[T]) -> T:
        """Returns one of ``items``, all equally likely."""
        return items[self.below(len(items))]

    def choose_weighted(self, table: Sequence[tuple[T, int]]) -> T:
        """Returns one of ``table``'s values, with probability proportional to its integer weight."""
        bounds = [*accumulate(weight for _, weight in table)]
        return table[bisect_right(bounds, self.below(bounds[-1]))][0]

    def sample(self, items: Sequence[T], k: int) -> list[T]:
        """Returns the items at ``k`` different positions, in random order; all of them if there are fewer."""
        pool = list(items)
        k = min(k, len(pool))
        for i in range(k):
            j = i + self.below(len(pool) - i)
            pool[i], pool[j] = pool[j], pool[i]
        return pool[:k]
