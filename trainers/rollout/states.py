"""Memory for states of recurrent layers and convolutions: each slot has those after one token, of all layers."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from trainers.rollout.kv_cache import Ints

ZERO = 0
"""The slot of the states before the first token of a sequence."""
_FIRST = 8  # slots that are made at first


class States:
    """Slots for states, and for each call of a layer's function in a pass one buffer with all slots."""

    def __init__(self) -> None:
        self.slot_bytes = 0
        """Bytes of a slot; 0 until the first states are stored."""
        self.clear()

    def clear(self) -> None:
        """Forgets everything; the buffers go, too."""
        self.count = 1
        self._free: list[int] = []
        self._buffers: dict[int, Tensor] = {}

    @property
    def used(self) -> int:
        """Number of slots that somebody holds."""
        return self.count - len(self._free) - 1

    @property
    def size(self) -> int:
        """Bytes of the buffers."""
        return sum(buffer.nbytes for buffer in self._buffers.values())

    def take(self, most: int) -> int:
        """Returns a slot that nobody holds; where there is none, half as many as there are come to be, ``most`` in all.

        There must be fewer than ``most`` in use.
        """
        if not self._free:
            more = max(1, min(max(self.count // 2, _FIRST), most - self.count))
            self._free.extend(range(self.count + more - 1, self.count - 1, -1))
            self.count += more
        return self._free.pop()

    def give_back(self, slot: int) -> None:
        """Nobody holds the states in this slot any more."""
        self._free.append(slot)

    def buffer_of(self, call: int) -> Tensor | None:
        """Returns the buffer of a call, (slots, …), if anything has been stored there."""
        return self._buffers.get(call)

    def store(self, call: int, slots: Tensor, states: Tensor) -> None:
        """Stores states, (states, …), in these slots."""
        buffer = self._buffers.get(call)
        if buffer is None or len(buffer) < self.count:
            new_buffer = states.new_zeros(self.count, *states.shape[1:])
            if buffer is not None:
                new_buffer[: len(buffer)] = buffer
            buffer = self._buffers[call] = new_buffer
            self.slot_bytes = sum(call_buffer[0].nbytes for call_buffer in self._buffers.values())
        buffer.index_copy_(0, slots, states)


@dataclass
class StepStates:
    """States that the new tokens of one pass go on from, and those that it leaves."""

    states: States
    slots: Tensor
    """(trees,): slots of the states that those of the pass go on from, in the order of their first tokens."""
    kept: Ints
    """(kept,): the tokens of the pass after which states are stored."""
    kept_slots: Tensor
    """(kept,): and where."""
    calls: int = 0
    """Calls of functions of layers so far."""

    def next_call(self) -> int:
        """Counts the calls of the pass."""
        self.calls += 1
        return self.calls - 1

    def before(self, call: int) -> Tensor | None:
        """States that the first tokens of the trees go on from, (trees, …); ``None``: all of them are zero."""
        buffer = self.states.buffer_of(call)
        return None if buffer is None else buffer.index_select(0, self.slots)

    def after(self, call: int, states: Tensor) -> None:
        """Stores the states after the tokens :attr:`kept`."""
        self.states.store(call, self.kept_slots, states)
