"""Experts of the tokens in slots (:mod:`trainers.rollout.kv_cache`), in arrays that answers share."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from trainers.steps.experts import Experts, Parts

Ints = NDArray[np.int64]


class SlotExperts:
    """For each slot an array of experts, and the place of its token there."""

    def __init__(self) -> None:
        self._array = np.empty(0, object)
        self._number, self._place = np.zeros((2, 0), np.int64)
        self._arrays = 0

    def keep(self, slots: Ints, experts: Experts) -> None:
        """Keeps the experts of tokens, one after the other, which are in ``slots``."""
        if (more := int(slots.max(initial=-1)) + 1 - len(self._array)) > 0:
            more = max(more, len(self._array) // 2)
            self._array = np.append(self._array, np.empty(more, object))
            self._number, self._place = (
                np.append(own, np.zeros(more, np.int64)) for own in (self._number, self._place)
            )
        holder = np.empty((), object)
        holder[()] = experts
        self._arrays += 1
        self._array[slots], self._number[slots], self._place[slots] = holder, self._arrays, np.arange(len(slots))

    def of(self, slots: Ints, begin: int) -> Parts:
        """Experts of a sequence of tokens in ``slots``; those from ``begin`` on, which came singly, in one array."""
        if begin < len(slots):
            self.keep(slots[begin:], np.concatenate(list(self._parts(slots[begin:]))))
        return tuple(self._parts(slots))

    def _parts(self, slots: Ints) -> Iterator[Experts]:
        number, place = self._number[slots], self._place[slots]
        starts = np.flatnonzero(np.concatenate([[True], (np.diff(number) != 0) | (np.diff(place) != 1)]))
        for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(slots)], strict=True):
            first = int(place[start])
            yield self._array[slots[start]][first : first + end - start]
