"""Keys and values of many token sequences, with shared beginnings stored once.

A sequence is a *root*, its first tokens, which sequences that begin alike share and never write to, and a *tail* of its
own in a slot. A group of episodes with the same first prompt has one root, and so have different prompts that begin
with the same instruction: it is computed once, stored once, and read once a step for all of them together, which is
what decoding spends its time on.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_GRAIN = 64  # buffers grow in steps of this many tokens
_WORTH_A_ROOT = 64  # a beginning shorter than this stays in the slot
_EVEN = 32  # roots that end where sequences part end at multiples of this
LONGEST_TAIL = 512  # a longer beginning is a root even if nobody shares it: all tails have the room of the longest

KeysValues = tuple[Tensor, Tensor]


@dataclass(eq=False)
class Root:
    """The beginning of one or more sequences; it lives as long as a slot refers to it."""

    length: int
    layers: dict[int, KeysValues] = field(default_factory=dict)
    """For each decoder layer the keys and the values, shape (key heads, length, head dimension)."""

    def layer(self, index: int, key: Tensor, value: Tensor) -> KeysValues:
        """Buffers of one decoder layer, made at its first use to fit ``key`` and ``value`` (1, heads, any, dim)."""
        found = self.layers.get(index)
        if found is None:
            found = self.layers[index] = (
                key.new_empty(key.shape[1], self.length, key.shape[3]),
                value.new_empty(value.shape[1], self.length, value.shape[3]),
            )
        return found


@dataclass(eq=False)
class Slot:
    """One sequence whose keys and values are kept."""

    index: int
    root: Root | None = None
    root_length: int = 0
    """How far the sequence follows its root; its tail starts there."""
    ready: int = 0
    """Number of tokens whose keys and values are stored."""
    planned: int = 0
    """Number of tokens known; those past ``ready`` are computed in the coming step."""
    session: int | None = None
    running: bool = False
    last_used: int = 0


class SlotCache:
    """At most ``max_slots`` sequences; tails lie in buffers of shape (slots, key heads, capacity, head dimension)."""

    def __init__(self, max_slots: int) -> None:
        self.max_slots = max_slots
        self.clear()

    def clear(self) -> None:
        """Forget everything; the buffers go too, so that what follows equals a fresh start."""
        self.slots: list[Slot] = []
        self.capacity = 0
        self.tokens: NDArray[np.int64] = np.zeros((0, 0), np.int64)  # (slots, tokens), -1 where there is none
        self._tails: dict[int, KeysValues] = {}
        self._rows = 0
        self._clock = 0
        self._of_session: dict[int, Slot] = {}

    # -- which slot ------------------------------------------------------------------------------------------------

    def of_session(self, session: int | None) -> Slot | None:
        """The idle slot that belongs to ``session``, if there is one."""
        slot = None if session is None else self._of_session.get(session)
        return None if slot is None or slot.running else slot

    def continues(self, slot: Slot, context: NDArray[np.int64]) -> bool:
        """Whether ``context`` starts with all that is stored in ``slot``."""
        stored = self.tokens[slot.index, : slot.ready]
        return 0 < slot.ready <= len(context) and bool((stored == context[: slot.ready]).all())

    def overlap(self, context: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Length of the longest common prefix of ``context`` with each slot: what is stored, and what soon will be."""
        count = len(self.slots)
        width = min(len(context), self.tokens.shape[1])
        if count == 0 or width == 0:
            return np.zeros(count, np.int64), np.zeros(count, np.int64)
        different = self.tokens[:count, :width] != context[:width]
        common = np.where(different.any(1), different.argmax(1), width)
        ready = np.fromiter((slot.ready for slot in self.slots), np.int64, count)
        return np.minimum(common, ready), common

    def take(self, session: int | None, donor: Slot | None) -> Slot:
        """A slot for a sequence: its session's, or a vacant one, or that of the session idle for longest."""
        self._clock += 1
        slot = self.of_session(session) or self._vacant(donor)
        if slot.session is not None and slot.session != session:
            del self._of_session[slot.session]
            slot.session = None
        if session is not None and session not in self._of_session:
            slot.session = session
            self._of_session[session] = slot
        slot.running = True
        slot.last_used = self._clock
        return slot

    def _vacant(self, donor: Slot | None) -> Slot:
        idle = [slot for slot in self.slots if not slot.running and slot is not donor]
        ownerless = [slot for slot in idle if slot.session is None]
        if not ownerless and len(self.slots) < self.max_slots:
            slot = Slot(len(self.slots))
            self._reserve(len(self.slots) + 1, 0, 0)
            self.slots.append(slot)
            return slot
        return min(ownerless or idle, key=lambda slot: slot.last_used)

    def release(self, session: int) -> None:
        """Let go of the slot of ``session``; what it holds may still serve as another's beginning."""
        slot = self._of_session.pop(session, None)
        if slot is not None:
            slot.session = None

    # -- what is in it ---------------------------------------------------------------------------------------------

    def begin(self, slot: Slot, tokens: NDArray[np.int64], keep: int, donor: Slot | None, common: int) -> None:
        """Plan ``tokens`` for ``slot``, of which the first ``keep`` are stored already, in it or in ``donor``.

        At least one token is left to compute. A new beginning becomes a root where others will share it, or where it is
        too long for a tail.

        Args:
            slot: As :meth:`take` returned it.
            tokens: All tokens that are known of the sequence.
            keep: How many of them are stored in ``donor``.
            donor: The slot that holds them, which may be ``slot``.
            common: How many of them others that will come begin with.
        """
        end = self._root_end(slot, len(tokens) - 1, keep, donor, common)
        begun = 0 if donor is None else donor.root_length
        root = None if donor is None or not end else donor.root
        fresh = end > min(keep, begun)
        if fresh:
            root = Root(end)
        self._reserve(0, 0, keep - end)
        if donor is not None and (fresh or donor is not slot or end != begun):
            self._copy(slot, donor, keep, end, root if fresh else None)
        slot.root, slot.root_length = root, end
        slot.ready, slot.planned = keep, 0
        self.tokens[slot.index] = -1
        self.extend(slot, tokens)

    def _root_end(self, slot: Slot, most: int, keep: int, donor: Slot | None, common: int) -> int:
        """How many tokens of a sequence are to be in a root: in the donor's if it has as many, else in a new one."""
        shared = 0 if donor is None else min(keep, donor.root_length)
        if donor is not None and shared < donor.root_length:  # sequences that part near each other have equal roots
            shared -= shared % _EVEN
        if donor is slot and 2 * keep > most:
            return shared
        common = min(common, most)
        wanted = common if common == most else common - common % _EVEN
        if most - max(shared, wanted) > LONGEST_TAIL:
            wanted = most
        return wanted if wanted - shared >= _WORTH_A_ROOT else shared

    def _copy(self, slot: Slot, donor: Slot, keep: int, end: int, root: Root | None) -> None:
        """Copies ``keep`` tokens of ``donor``: those before ``end`` to ``root``, if given, others to the tail."""
        begun, first = min(keep, donor.root_length), 0 if root is not None else end
        for index, tails in self._tails.items():
            new = tails if root is None else root.layer(index, *tails)
            old = tails if donor.root is None else donor.root.layers[index]
            for to, begin, tail in zip(new, old, tails, strict=True):
                parts = [tail[donor.index, :, : keep - begun]]
                if begun > first:
                    parts.insert(0, begin[:, first:begun])
                known = torch.cat(parts, 1)
                if root is not None:
                    to[:, : min(keep, end)] = known[:, :end]
                if keep > end:
                    tail[slot.index, :, : keep - end] = known[:, end - first :]

    def extend(self, slot: Slot, tokens: NDArray[np.int64] | int) -> None:
        """Add tokens to what is planned for ``slot``."""
        count = 1 if isinstance(tokens, int) else len(tokens)
        end = slot.planned + count
        if end > self.tokens.shape[1] or end - slot.root_length > self.capacity:
            self._reserve(0, end, end - slot.root_length)
        self.tokens[slot.index, slot.planned : end] = tokens
        slot.planned = end

    def tail(self, index: int, key: Tensor, value: Tensor) -> KeysValues:
        """Buffers of one decoder layer, made at its first use to fit ``key`` and ``value`` (1, heads, any, dim)."""
        found = self._tails.get(index)
        if found is None:
            found = self._tails[index] = (
                key.new_zeros(self._rows, key.shape[1], self.capacity, key.shape[3]),
                value.new_zeros(self._rows, value.shape[1], self.capacity, value.shape[3]),
            )
        return found

    def _reserve(self, rows: int, length: int, capacity: int) -> None:
        """Make room for ``rows`` slots, sequences of ``length`` and tails of ``capacity`` tokens."""
        if rows > self._rows:
            rows = min(max(rows, 2 * self._rows, 8), self.max_slots)
        rows = max(rows, self._rows)
        width = _grown(self.tokens.shape[1], length)
        capacity = _grown(self.capacity, capacity)
        if (rows, width) != self.tokens.shape:
            tokens = np.full((rows, width), -1, np.int64)
            tokens[: self._rows, : self.tokens.shape[1]] = self.tokens
            self.tokens = tokens
        if (rows, capacity) != (self._rows, self.capacity):
            for index, buffers in self._tails.items():
                new = tuple(old.new_zeros(rows, old.shape[1], capacity, old.shape[3]) for old in buffers)
                for wide, old in zip(new, buffers, strict=True):
                    wide[: old.shape[0], :, : old.shape[2]] = old
                self._tails[index] = (new[0], new[1])
        self._rows, self.capacity = rows, capacity


def _grown(have: int, need: int) -> int:
    """``have``, or where that is too little a length with room for more."""
    if need <= have:
        return have
    return -(-max(need, have + have // 2) // _GRAIN) * _GRAIN
