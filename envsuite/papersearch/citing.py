"""Who cites whom in the generated literature, when papers appear, and their keys."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
MOST_PAPERS = 10**7
"""Most papers of a literature: the keys have seven digits."""
_HALF = 12
_MASK = (1 << _HALF) - 1


class Draws:
    """Arrays of reproducible draws: SHAKE-128 of ``key``, the same on every machine and with every version of NumPy."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._count = 0

    def raw(self, *shape: int) -> NDArray[np.uint64]:
        """Returns numbers of 32 bits. Shape: ``shape``."""
        self._count += 1
        digest = hashlib.shake_128(f"{self._key} {self._count}".encode()).digest(4 * int(np.prod(shape)))
        return np.frombuffer(digest, dtype="<u4").astype(np.uint64).reshape(shape)

    def below(self, n: int | Numbers, *shape: int) -> Numbers:
        """Returns numbers in ``range(n)``, all equally likely (to one part in 2**32 / n). Shape: ``shape``.

        Args:
            n: A positive number, or one for each draw.
            shape: The shape of the result, to which ``n`` is broadcast.
        """
        return (self.raw(*shape) * np.asarray(n).astype(np.uint64) >> np.uint64(32)).astype(np.int64)


def keys(places: Numbers, seed: int) -> Numbers:
    """Returns a different number below :data:`MOST_PAPERS` for each place: a permutation, so that keys tell nothing.

    It is a Feistel network of four rounds on 24 bits, walked along until the number is small enough.
    """
    tables = Draws(f"keys {seed}").below(1 << _HALF, 4, 1 << _HALF)
    numbers = places.astype(np.int64)
    large = np.ones(len(numbers), dtype=bool)
    while large.any():
        high, low = numbers[large] >> _HALF, numbers[large] & _MASK
        for table in tables:
            high, low = low, high ^ table[low]
        numbers[large] = high << _HALF | low
        large = numbers >= MOST_PAPERS
    return numbers


def attach(group: Numbers, by_date: Numbers, count: int, draws: Draws) -> Numbers:
    """Returns the papers that each paper cites within its group, by preferential attachment. Shape: [n, count].

    A citation goes to an older paper, all equally likely, or, as often, to one that an older paper cites: so papers
    are cited in proportion to how often they have been cited before.

    Args:
        group: Group of each paper. Shape: [n].
        by_date: The papers in the order in which they appeared. Shape: [n].
        count: Citations of each paper.
        draws: Source of randomness.

    Returns:
        -1 for the first paper of a group. A paper may be cited twice.
    """
    size = len(group)
    in_groups = by_date[np.argsort(group[by_date], kind="stable")]
    sorted_groups = group[in_groups]
    start = np.searchsorted(sorted_groups, sorted_groups)
    place = np.arange(size) - start
    older = start[:, None] + draws.below(np.maximum(place, 1)[:, None], size, count)
    is_copy = (draws.below(2, size, count) == 1) & (place[older] > 0)
    own = np.arange(size * count).reshape(size, count)
    link = np.where(is_copy, older * count + draws.below(count, size, count), own).ravel()
    while not np.array_equal(further := link[link], link):
        link = further
    targets = in_groups[older.ravel()[link].reshape(size, count)]
    targets[place == 0] = -1
    citations = np.empty((size, count), dtype=np.int64)
    citations[in_groups] = targets
    return citations


def calendar_days(days: Numbers, first: str) -> Numbers:
    """Returns days after ``first`` (``YYYY-MM-DD``) as numbers YYYYMMDD."""
    dates = np.datetime64(first, "D") + days.astype("timedelta64[D]")
    months = dates.astype("datetime64[M]")
    years = dates.astype("datetime64[Y]")
    year = years.astype(np.int64) + 1970
    month = (months - years.astype("datetime64[M]")).astype(np.int64) + 1
    day = (dates - months.astype("datetime64[D]")).astype(np.int64) + 1
    numbers: Numbers = year * 10000 + month * 100 + day
    return numbers
