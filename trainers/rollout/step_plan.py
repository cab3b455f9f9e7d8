"""Plan of one forward pass of the hf engine: what it computes, and in which calls its tokens attend."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainers.policy.transfer import to_device
from trainers.rollout.kv_cache import Ints
from trainers.rollout.radix_cache import CachedSequence as Row
from trainers.rollout.radix_cache import RadixCache
from trainers.rollout.states import StepStates

_CALL = {"cpu": 512}  # what one attention call costs besides its work, in keys of one sequence
_CALL_ELSEWHERE = 16384  # on a GPU: a launch or two, in which it reads some ten megabytes
_LONG = 128  # new tokens of one sequence from which on PyTorch's kernel is faster than the compiled one
COMPILED = find_spec("numba") is not None
"""Whether the kernel for CPUs can be compiled."""

T = TypeVar("T")


Places = Tensor | slice
"""Indices, shape (n,), or a range of them."""


@dataclass(frozen=True)
class Span:
    """New tokens of one sequence."""

    row: Row
    begin: int
    """Index of the first in the flat batch."""

    @property
    def end(self) -> int:
        """Index after the last in the flat batch."""
        return self.begin + self.row.length - self.row.ready


@dataclass(frozen=True)
class Call:
    """Attention of single tokens that is one call."""

    tokens: Places
    """Their indices in the flat batch."""
    keys: Places
    """Slots of the keys that they see."""
    per_token: int | None
    """Number of keys of each, one token after the other; ``None``: all see the same ones."""
    hidden: Tensor | None
    """Which of its own keys each does not see, shape (tokens, keys); ``None``: it sees all."""
    is_first: bool
    """Whether no call before has any of the tokens."""


@dataclass(frozen=True)
class StepPaths:
    """The new tokens of a pass as trees."""

    parent: Ints
    """(tokens,): the token before each; -1 where it is not of this pass."""
    depth: Ints
    """(tokens,): positions."""


class StepPlan:
    """Plan of one forward pass.

    The flat batch has short spans first, then long ones: those that :data:`_LONG` parts where the compiled kernel runs;
    elsewhere single tokens are short and all others long.

    Args:
        cache: What is stored.
        rows: Sequences with new tokens, in an order in which those that begin alike are neighbours.
        device: Device of the model.
        dtype: Number format of its weights.
    """

    def __init__(self, cache: RadixCache, rows: Sequence[Row], device: torch.device, dtype: torch.dtype) -> None:
        self.cache = cache
        self.device = device
        self.compiled = COMPILED and device.type == "cpu" and dtype in (torch.float32, torch.bfloat16)
        """Whether short spans go to the compiled kernel."""
        most = _LONG if self.compiled else 1
        short = [row for row in rows if row.length - row.ready <= most]
        begin, spans = 0, []
        for row in short + [row for row in rows if row.length - row.ready > most]:
            spans.append(Span(row, begin))
            begin = spans[-1].end
        self.spans = spans
        """All new tokens."""
        self.short, self.long = spans[: len(short)], spans[len(short) :]
        self.short_tokens = self.short[-1].end if short else 0
        """Number of tokens of short spans, which come first."""
        self.tokens = np.concatenate([s.row.tokens[s.row.ready : s.row.length] for s in spans])
        """Token ids of the flat batch."""
        self.positions = np.concatenate([np.arange(s.row.ready, s.row.length) for s in spans])
        """Their positions."""
        self.slots = np.concatenate([s.row.slots[s.row.ready : s.row.length] for s in spans])
        """Where their keys and values go."""
        self.table_rows = np.repeat([s.row.row for s in spans], [s.end - s.begin for s in spans])
        """The row of the cache's table that each is in."""
        self.lengths = self.positions + 1
        """How many tokens of its sequence each sees."""
        self.longest = int(self.lengths.max())
        self._once: dict[Hashable, Any] = {}
        self.carried: StepStates | None = None
        """States of recurrent layers, if the model has any."""

    @cached_property
    def tree(self) -> StepPaths:
        """The new tokens as trees."""
        parent = np.arange(-1, len(self.tokens) - 1)
        for span in self.spans:
            has_source = span.row.source is not None
            parent[span.begin] = -1 if has_source else self.place(int(span.row.slots[span.row.ready - 1]))
        return StepPaths(parent, self.positions)

    def carry(self, rows: Sequence[Row], last: Sequence[int]) -> None:
        """Has layers go on from states, and store those after the last token of each sequence and at branches.

        Args:
            rows: The sequences.
            last: Index in the flat batch of the last token of each.
        """
        states, branches = self.cache.states, self.cache.branches
        assert states is not None
        begins = [span.row.source for span in self.spans if span.row.source is not None]
        places = np.array([*last, *(self.place(slot) for slot, _ in branches)])
        slots = np.array([*(row.state for row in rows), *(state for _, state in branches)])
        self.carried = StepStates(states, self.tensor(np.array(begins, np.int64)), places, self.tensor(slots))

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Returns ``make()`` of the first call with ``key``, for all layers."""
        if key not in self._once:
            self._once[key] = make()
        entry: T = self._once[key]
        return entry

    def place(self, slot: int) -> int:
        """Index in the flat batch of the token that is stored in ``slot``."""
        return int(np.flatnonzero(self.slots == slot)[0])

    def tensor(self, array: NDArray[Any]) -> Tensor:
        """The array on the model's device."""
        return to_device(array, self.device)

    def places(self, array: Ints) -> Places:
        """The indices on the model's device, or as a range if they are one."""
        first, is_range = int(array[0]), bool((np.diff(array) == 1).all())
        return slice(first, first + len(array)) if is_range else self.tensor(array)

    def held_dtype(self, key: Tensor) -> torch.dtype:
        """Number format of keys and values that are kept: the compiled kernel reads float32."""
        return torch.float32 if self.compiled else key.dtype

    def calls(self, window: int | None) -> list[Call]:
        """The calls for single tokens, whose parts are then merged."""
        cost = _CALL.get(self.device.type, _CALL_ELSEWHERE)
        rows = [span.row for span in self.short]
        prefixes, begins = (
            _shared_prefixes(rows, cost) if window is None else ([], [max(0, r.length - window) for r in rows])
        )
        calls, has_call = [], np.zeros(len(rows), np.bool_)
        for part, slots in prefixes:
            is_first, has_call[slice(*part)] = not has_call[slice(*part)].any(), True
            calls.append(Call(slice(*part), self.places(slots), None, None, is_first))
        bunches = _bunches(rows, begins, cost)
        return calls + [self._separate(rows, begins, bunch, not has_call[bunch].any()) for bunch in bunches]

    def _separate(self, rows: Sequence[Row], begins: Sequence[int], bunch: Sequence[int], is_first: bool) -> Call:
        """The call for tokens of the rows ``bunch``, each with the keys of its own sequence from ``begins`` on."""
        lengths = np.array([rows[i].length - begins[i] for i in bunch])
        slots = np.zeros((len(bunch), lengths.max()), np.int64)
        for line, i in zip(slots, bunch, strict=True):
            line[: rows[i].length - begins[i]] = rows[i].slots[begins[i] : rows[i].length]
        even = bool((lengths == lengths[0]).all())
        hidden = None if even else self.tensor(np.arange(slots.shape[1]) >= lengths[:, None])
        return Call(self.places(np.asarray(bunch)), self.places(slots.ravel()), slots.shape[1], hidden, is_first)


def _shared_prefixes(rows: Sequence[Row], call: int) -> tuple[list[tuple[tuple[int, int], Ints]], list[int]]:
    """Beginnings that neighbours share, where reading one once costs less than a call.

    Returns:
        For each which rows (from, to) share it and its slots; and where what is left of each row begins.
    """
    common = [_common(a, b) for a, b in itertools.pairwise(rows)]
    prefixes: list[tuple[tuple[int, int], Ints]] = []
    begins = [0] * len(rows)
    waiting = [(0, len(rows), 0)]
    while waiting:
        low, high, begin = waiting.pop()
        if high - low < 2:
            continue
        end = min(common[low : high - 1])
        if (high - low - 1) * (end - begin) > call:
            prefixes.append(((low, high), rows[low].slots[begin:end]))
            begins[low:high] = [end] * (high - low)
            begin = end
        cuts = [low, *(i + 1 for i in range(low, high - 1) if common[i] == end), high]
        waiting.extend((a, b, begin) for a, b in itertools.pairwise(cuts))
    return prefixes, begins


def _common(first: Row, second: Row) -> int:
    """Number of tokens that two sequences share: at least the last of each is its own."""
    count = min(first.length, second.length) - 1
    same = first.slots[:count] == second.slots[:count]
    return count if same.all() else int(same.argmin())


def _bunches(rows: Sequence[Row], begins: Sequence[int], call: int) -> list[list[int]]:
    """Rows of similar length in one call: a further one joins where the padding it causes costs less than a call."""
    lengths = [row.length - begin for row, begin in zip(rows, begins, strict=True)]
    bunches: list[list[int]] = []
    waste = 0
    for i in sorted(range(len(rows)), key=lambda i: lengths[i]):
        if bunches:
            waste += (lengths[i] - lengths[bunches[-1][-1]]) * len(bunches[-1])
        if not bunches or waste > call:
            bunches.append([])
            waste = 0
        bunches[-1].append(i)
    return bunches
