"""Cheap reproducible random draws, for shops of millions of products."""

from __future__ import annotations

from hashlib import blake2b

from envsuite.core.draws import Draw

_SPARE = 1 << 64
"""Least value left of a number, so that small draws are practically fair."""


class Dice(Draw):
    """A stream of draws determined by ``key``: digits, in changing bases, of BLAKE2b of the key."""

    def __init__(self, key: str) -> None:
        self._key = blake2b(key.encode()).digest()
        self._left = int.from_bytes(self._key, "little")

    def below(self, n: int) -> int:
        """Returns an integer in ``range(n)``, all equally likely (to one part in 2**64 / n)."""
        if self._left < _SPARE:
            self._key = blake2b(self._key).digest()
            self._left = int.from_bytes(self._key, "little")
        self._left, roll = divmod(self._left, n)
        return roll
