"""Memory for keys and values: pages of a fixed number of tokens, in one buffer for each decoder layer."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from envsuite.playing.step import Experts, Parts

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


PAGE = 32
"""Tokens of a page."""
_FIRST = 8  # pages that are made at first

KeysValues = tuple[Tensor, Tensor]


class Pages:
    """Slots for tokens. Slot ``s`` is place ``s % PAGE`` of page ``s // PAGE``.

    Places of a page are handed out in order, so that a sequence that grows lies in few pages. A page is free again when
    nobody holds a token in it.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forgets everything; the buffers go, too."""
        self.count = 0
        self._free: list[int] = []
        self._given: list[int] = []  # places handed out, of each page
        self._held: list[int] = []  # and those of them that are held
        self._layers: dict[int, KeysValues] = {}
        self.experts = SlotExperts()
        """Experts of the tokens in the slots, where the model is a mixture."""

    @property
    def used(self) -> int:
        """Number of pages in which somebody holds a token."""
        return self.count - len(self._free)

    @property
    def free(self) -> int:
        """Number of pages that are there and not used."""
        return len(self._free)

    @property
    def size(self) -> int:
        """Bytes of the buffers."""
        return sum(part.nbytes for layer in self._layers.values() for part in layer)

    def lacking(self, after: int, count: int) -> int:
        """Pages that :meth:`take` would need besides those that are free."""
        return max(0, -(-(count - self._room(after)) // PAGE) - len(self._free))

    def add(self, least: int, most: int) -> None:
        """Makes ``least`` further pages, or half as many as there are if that is more and ``most`` are not exceeded."""
        more = max(least, min(max(self.count // 2, _FIRST), most - self.count))
        self._free.extend(range(self.count + more - 1, self.count - 1, -1))
        self._given.extend([0] * more)
        self._held.extend([0] * more)
        self.count += more

    def _room(self, after: int) -> int:
        """Places that follow slot ``after`` in its page and are free."""
        place = after % PAGE + 1
        return PAGE - place if after >= 0 and self._given[after // PAGE] == place else 0

    def take(self, after: int, count: int) -> Ints:
        """Slots for ``count`` tokens that follow the one in slot ``after``; -1: they are the first.

        There must be enough free pages.
        """
        slots = np.empty(count, np.int64)
        end = min(self._room(after), count)
        if end:
            slots[:end] = np.arange(after + 1, after + 1 + end)
            self._hand_out(after // PAGE, end)
        while end < count:
            page, size = self._free.pop(), min(PAGE, count - end)
            slots[end : end + size] = np.arange(page * PAGE, page * PAGE + size)
            self._hand_out(page, size)
            end += size
        return slots

    def _hand_out(self, page: int, places: int) -> None:
        self._given[page] += places
        self._held[page] += places

    def give_back(self, slots: Ints) -> None:
        """Nobody holds the tokens in these slots any more."""
        for page, places in zip(*np.unique(slots // PAGE, return_counts=True), strict=True):
            self._held[page] -= int(places)
            if not self._held[page]:
                self._given[page] = 0
                self._free.append(int(page))

    def layer(self, index: int, key: Tensor, value: Tensor, dtype: torch.dtype) -> KeysValues:
        """Returns the keys and the values of one decoder layer, shape (key heads, slots, head dimension).

        Args:
            index: Number of the layer.
            key: Keys of this layer, shape (1, key heads, any, head dimension); ``value`` alike.
            value: Its values.
            dtype: Number format that is kept.
        """
        buffers, slots = self._layers.get(index), self.count * PAGE
        if buffers is None or buffers[0].shape[1] < slots:
            new_buffers = []
            for number, part in enumerate((key, value)):
                buffer = part.new_zeros(part.shape[1], slots, part.shape[3], dtype=dtype)
                if buffers is not None:
                    buffer[:, : buffers[number].shape[1]] = buffers[number]
                new_buffers.append(buffer)
            buffers = self._layers[index] = (new_buffers[0], new_buffers[1])
        return buffers
