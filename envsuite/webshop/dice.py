"""Cheap random draws that are the same everywhere: where a million things are drawn, as ``envsuite.core.draws``."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import TypeVar

T = TypeVar("T")

_SPARE = 1 << 64
"""What is left of a number at least, so that a draw of a few is as good as fair."""


class Dice:
    """A stream of draws that depends on ``key`` alone: digits, in changing bases, of BLAKE2b of the key."""

    __slots__ = ("_key", "_left")

    def __init__(self, key: str) -> None:
        self._key = blake2b(key.encode()).digest()
        self._left = int.from_bytes(self._key, "little")

    def below(self, n: int) -> int:
        """An integer in ``range(n)``, all equally likely (to one part in 2**64 / n)."""
        if self._left < _SPARE:
            self._key = blake2b(self._key).digest()
            self._left = int.from_bytes(self._key, "little")
        self._left, drawn = divmod(self._left, n)
        return drawn

    def chance(self, percent: int) -> bool:
        """True in ``percent`` of 100 draws."""
        return self.below(100) < percent

    def one(self, items: Sequence[T]) -> T:
        """One of ``items``, all equally likely."""
        return items[self.below(len(items))]

    def sample(self, items: Sequence[T], k: int) -> list[T]:
        """``k`` different positions of ``items``, in random order; all of them if there are fewer."""
        pool = list(items)
        k = min(k, len(pool))
        for i in range(k):
            j = i + self.below(len(pool) - i)
            pool[i], pool[j] = pool[j], pool[i]
        return pool[:k]
