"""Keys and values of many token sequences as a radix tree: what sequences begin with alike is computed and kept once.

A node is a segment of tokens with the slots of their keys and values (:mod:`trainers.rollout.kv_cache`); the sequence
that it ends is that of all segments from the root. Nodes stay when the sequences that computed them have ended, until
the room is needed: the leaf used longest ago goes first.

A model with recurrent layers goes on from states, too (:mod:`trainers.rollout.states`), which some nodes have at their
end: where a sequence has ended, where sequences have branched, and every :data:`EVERY` tokens. A sequence begins at the
last of these that it shares; the tokens from there to where it branches are computed again.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from trainers.rollout.kv_cache import PAGE, Ints, Pages
from trainers.rollout.states import ZERO, States

MEMORY = 0.8
"""Share of the free memory, and of that which keys and values have already, that they take at most."""
_SPARE = 16  # a sixteenth of the bound is freed at a time
EVERY = 512
"""Tokens of a prompt after which states are kept."""


@dataclass(eq=False)
class RadixNode:
    """A segment of tokens whose keys and values are kept, or are computed in the coming step."""

    tokens: Ints
    slots: Ints
    """Where the keys and values of each token are."""
    parent: RadixNode | None
    number: int
    """Differs from that of every other node."""
    children: dict[int, RadixNode] = field(default_factory=dict)
    """By their first token."""
    users: int = 0
    """Running sequences that go on from here; it is kept while there are any, and so is what leads to it."""
    last_used: int = 0
    planned: int = 0
    """How many tokens at its end are computed in the coming step; the others are stored."""
    state: int = ZERO
    """Slot of the states after its last token, if they are kept, or are in the coming step."""


@dataclass(eq=False)
class CachedSequence:
    """A running sequence of tokens."""

    row: int
    """Its row in :class:`PageTable`."""
    tokens: Ints
    """Those that are known, and room for more."""
    slots: Ints
    """Where the keys and values of each are, with as much room."""
    length: int
    """Number of tokens known."""
    ready: int
    """Number of tokens that need not be computed: they are stored, or another sequence computes them in this step."""
    shared: int
    """Number of tokens that it began with: their slots belong to the tree, those of the others to the sequence."""
    node: RadixNode
    """Where these tokens end in the tree, or after."""
    state: int = ZERO
    """Slot of the states after the last token that is ready, once it has been computed."""
    source: int | None = ZERO
    """Slot of the states that the first token to compute goes on from; ``None``: another of the step."""


class PageTable:
    """For each running sequence the pages that its tokens lie in, in order, as arrays that a kernel reads.

    Entry ``k`` of row ``r`` holds the positions from ``starts[r, k]`` to the start of the next entry; position ``p`` is
    in place ``p - bases[r, k]`` of page ``pages[r, k]``.
    """

    def __init__(self, rows: int) -> None:
        self.pages, self.bases, self.starts = (np.zeros((rows, 8), np.int32) for _ in range(3))
        self.counts = np.zeros(rows, np.int32)

    def begin(self, row: int, slots: Ints) -> None:
        """Enters a sequence whose tokens are in ``slots``."""
        place = slots % PAGE
        starts = np.flatnonzero(np.concatenate([[True], (np.diff(slots) != 1) | (place[1:] == 0)]))
        count = len(starts)
        self._reserve(count)
        self.counts[row] = count
        self.starts[row, :count] = starts
        self.bases[row, :count] = starts - place[starts]
        self.pages[row, :count] = slots[starts] // PAGE

    def append(self, row: int, position: int, slot: int) -> None:
        """Adds an entry that begins with ``position``, in ``slot``."""
        count = int(self.counts[row])
        self._reserve(count + 1)
        self.starts[row, count] = position
        self.bases[row, count] = position - slot % PAGE
        self.pages[row, count] = slot // PAGE
        self.counts[row] = count + 1

    def _reserve(self, entries: int) -> None:
        if entries > self.pages.shape[1]:
            room = ((0, 0), (0, max(entries, self.pages.shape[1] * 3 // 2) - self.pages.shape[1]))
            self.pages, self.bases, self.starts = (np.pad(a, room) for a in (self.pages, self.bases, self.starts))


class RadixCache:
    """The tree, its memory, and the running sequences.

    Args:
        rows: Most sequences that run at a time.
        bound: Tokens that memory is kept for; running sequences have theirs in any case. ``None``: twice ``rows``
            sequences of the greatest length so far, or as many as there is room for, where that is less.
        free: Returns the bytes of memory that are free.
        states: Whether the model has states besides keys and values.
        state_bytes: Most bytes of states that are kept, besides those of running sequences. ``None``: four states for
            each of ``rows``, or as many as there is room for, where that is less.
    """

    def __init__(
        self,
        rows: int,
        bound: int | None = None,
        free: Callable[[], float] = lambda: math.inf,
        *,
        states: bool = False,
        state_bytes: int | None = None,
    ) -> None:
        self._rows = rows
        self._bound = bound
        self._free = free
        self._state_bytes = state_bytes
        self.states = States() if states else None
        """States of recurrent layers, if the model has any."""
        self.token_bytes = 0.0
        """Bytes of keys and values of a token; 0 until the first are stored."""
        self.pages = Pages()
        self.clear()

    def clear(self) -> None:
        """Forgets everything, running sequences too; what follows equals a fresh start."""
        self.pages.clear()
        if self.states is not None:
            self.states.clear()
        self._kept: dict[RadixNode, None] = {}
        self.branches: list[tuple[int, int]] = []
        """Slots of tokens of the coming step after which states are kept, and of the states."""
        self.table = PageTable(self._rows)
        self.root = RadixNode(np.empty(0, np.int64), np.empty(0, np.int64), None, 0)
        self._numbers = itertools.count(1)
        self._vacant = list(range(self._rows))[::-1]
        self._planned: list[RadixNode] = []
        self._free_now: float | None = None
        self._clock = 0
        self._longest = 0

    @property
    def capacity(self) -> int:
        """Tokens that memory is kept for, in whole pages."""
        limit = self._bound
        if limit is None:
            limit = int(min(2 * self._rows * self._longest, self.room))
        return -(-limit // PAGE) * PAGE

    @property
    def room(self) -> float:
        """Tokens that there is memory for, those that are kept included: a share of it, :data:`MEMORY`."""
        return MEMORY * (self._free_bytes() + self.pages.size) / self.token_bytes if self.token_bytes else math.inf

    def _free_bytes(self) -> float:
        """Bytes of memory that are free, asked for once a step: buffers grow while the model computes."""
        if self._free_now is None:
            self._free_now = self._free()
        return self._free_now

    @property
    def state_bound(self) -> int:
        """States that memory is kept for, besides those of running sequences; none before the size of one is known."""
        assert self.states is not None
        size = self.states.slot_bytes
        if not size:
            return 0
        if self._state_bytes is not None:
            return self._state_bytes // size
        return int(min(4 * self._rows, max(0, MEMORY * (self._free_bytes() + self.states.size) / size - self._rows)))

    # -- running sequences -----------------------------------------------------------------------------------------

    def begin(self, tokens: Ints) -> CachedSequence:
        """A sequence that begins with ``tokens``, at least one; all of them that are stored are taken from there.

        What is left is planned for the coming step, and others that begin in the same step share it already. Where all
        is stored the last token is computed again, where it is: what follows is predicted there.
        """
        length = len(tokens)
        self._longest = max(self._longest, length)
        node, inside, slots = self.match(tokens)
        ready = len(slots)
        if ready < length:
            node.users += 1  # the match stays while room is made
            new = self._take(int(slots[-1]) if ready else -1, length - ready)
            node.users -= 1
            slots, at = np.concatenate([slots, new]), ready
            every = length if self.states is None else EVERY
            for end in (*range((ready // every + 1) * every, length, every), length):
                node = self._add(node, inside, tokens[at:end], slots[at:end])
                self._plan(node, end - at)
                inside, at = len(node.tokens), end
        else:
            node = self._split(node, inside) if inside < len(node.tokens) else node
            if not node.planned:
                ready -= 1
                self._plan(node, 1)
        node.users += 1
        row = self._vacant.pop()
        self.table.begin(row, slots)
        room = np.zeros(64, np.int64)
        tokens, slots = np.concatenate([tokens, room]), np.concatenate([slots, room])
        sequence = CachedSequence(row, tokens, slots, length, ready, length, node)
        if self.states is not None:
            self._start(sequence)
        return sequence

    def _plan(self, node: RadixNode, count: int) -> None:
        """Plans the last tokens of a node for the coming step."""
        node.planned += count
        self._planned.append(node)

    def extend(self, sequence: CachedSequence, token: int) -> None:
        """Adds a token, which is planned for the coming step."""
        position = sequence.length
        if position == len(sequence.tokens):
            room = np.zeros(max(64, position // 2), np.int64)
            sequence.tokens = np.concatenate([sequence.tokens, room])
            sequence.slots = np.concatenate([sequence.slots, room])
        last = int(sequence.slots[position - 1])
        slot = int(self._take(last, 1)[0])
        if slot != last + 1 or slot % PAGE == 0:
            self.table.append(sequence.row, position, slot)
        sequence.tokens[position] = token
        sequence.slots[position] = slot
        sequence.length = position + 1
        self._longest = max(self._longest, sequence.length)

    def pages_of(self, sequence: CachedSequence) -> list[int]:
        """Returns the pages of a sequence in order: those of sequences that begin alike begin alike."""
        pages: list[int] = self.table.pages[sequence.row, : self.table.counts[sequence.row]].tolist()
        return pages

    def mark_computed(self) -> None:
        """Takes what was planned as stored."""
        for node in self._planned:
            node.planned = 0
        self._planned, self.branches, self._free_now = [], [], None
        self.token_bytes = self.pages.size / max(self.pages.count * PAGE, 1)

    def finish(self, sequence: CachedSequence) -> RadixNode:
        """Ends a sequence; its tokens that have been computed stay in the tree. Returns the node where it ends."""
        sequence.node.users -= 1
        tokens, own = sequence.tokens[: sequence.ready], sequence.slots[: sequence.ready]
        node, inside, known_slots = self.match(tokens)
        self.pages.give_back(sequence.slots[sequence.shared : len(known_slots)])
        self.pages.give_back(sequence.slots[len(tokens) : sequence.length])
        if len(known_slots) < len(tokens):
            node = self._add(node, inside, tokens[len(known_slots) :], own[len(known_slots) :])
        elif self.states is not None and inside < len(node.tokens):
            node = self._split(node, inside)
        self._vacant.append(sequence.row)
        if self.states is not None:
            if not node.state and self._has_state():
                node.state = sequence.state
                self._kept[node] = None
            else:
                self.states.give_back(sequence.state)
        if (over := self.pages.used - self.capacity // PAGE) > 0:
            self._evict(self.pages.free + over)
        return node

    def leave(self, node: RadixNode) -> None:
        """Lets the sequence that ends with ``node`` go first when room is needed."""
        node.last_used = 0

    # -- the tree --------------------------------------------------------------------------------------------------

    def match(self, tokens: Ints) -> tuple[RadixNode, int, Ints]:
        """Finds the longest beginning of ``tokens`` that is stored or planned.

        Returns:
            The node where it ends, how many of the node's tokens it has, and the slots of all its tokens.
        """
        self._clock += 1
        node, inside, position = self.root, 0, 0
        parts = []
        while position < len(tokens) and (child := node.children.get(int(tokens[position]))) is not None:
            node = child
            node.last_used = self._clock
            count = min(len(node.tokens), len(tokens) - position)
            same = node.tokens[:count] == tokens[position : position + count]
            inside = count if same.all() else int(same.argmin())
            parts.append(node.slots[:inside])
            position += inside
            if inside < len(node.tokens):
                break
        return node, inside, np.concatenate(parts) if parts else np.empty(0, np.int64)

    def nodes(self) -> Iterator[RadixNode]:
        """Yields all nodes but the root."""
        waiting = list(self.root.children.values())
        while waiting:
            node = waiting.pop()
            waiting.extend(node.children.values())
            yield node

    def _add(self, node: RadixNode, inside: int, tokens: Ints, slots: Ints) -> RadixNode:
        """Adds tokens after the first ``inside`` of ``node``: to a leaf that nobody uses, else as a further node."""
        alone = self.states is None and not (node is self.root or node.children or node.users)
        if inside == len(node.tokens) and alone:
            node.tokens, node.slots = np.concatenate([node.tokens, tokens]), np.concatenate([node.slots, slots])
            return node
        if inside < len(node.tokens):
            node = self._split(node, inside)
        leaf = RadixNode(tokens.copy(), slots.copy(), node, next(self._numbers), last_used=self._clock)
        node.children[int(tokens[0])] = leaf
        return leaf

    def _split(self, node: RadixNode, at: int) -> RadixNode:
        """Makes the first ``at`` tokens of ``node`` its parent, and returns that."""
        assert node.parent is not None
        upper = RadixNode(
            node.tokens[:at], node.slots[:at], node.parent, next(self._numbers), {int(node.tokens[at]): node},
            last_used=node.last_used, planned=max(0, node.planned - len(node.tokens) + at),
        )  # fmt: skip
        node.parent.children[int(node.tokens[0])] = upper
        node.tokens, node.slots, node.parent = node.tokens[at:], node.slots[at:], upper
        node.planned -= upper.planned
        if upper.planned:
            self._planned.append(upper)
        return upper

    # -- states ----------------------------------------------------------------------------------------------------

    def _start(self, sequence: CachedSequence) -> None:
        """Has a sequence begin where states are known, and keeps those where it leaves others."""
        assert self.states is not None
        sequence.state, sequence.source = self._new_state(), None
        if sequence.ready == sequence.length:
            return
        node, position = sequence.node, sequence.length
        while position > sequence.ready:  # past what it computes in any case
            above = position - len(node.tokens)
            if above < sequence.ready:
                self._split(node, sequence.ready - above)
            position -= len(node.tokens)
            assert node.parent is not None
            node = node.parent
            if position > sequence.ready:
                self._keep(node)
        branch = node
        while not (node is self.root or node.planned or node.state):
            self._plan(node, len(node.tokens))
            position -= len(node.tokens)
            assert node.parent is not None
            node = node.parent
        sequence.ready = position
        if not node.planned:
            sequence.source = node.state
            if node.state:
                self._kept[node] = self._kept.pop(node)  # the last to go
        self._keep(branch)

    def _keep(self, node: RadixNode) -> None:
        """Keeps the states after a node that is computed in the coming step, if there is room."""
        if node is not self.root and not node.state and self._has_state():
            node.state = self._new_state()
            self._kept[node] = None
            self.branches.append((int(node.slots[-1]), node.state))

    def _new_state(self) -> int:
        assert self.states is not None
        return self.states.take(1 + self._rows + self.state_bound)

    def _has_state(self) -> bool:
        """Whether there is room for the states of a node; those used longest ago are forgotten for them.

        A step reads all states before it stores any: those that a sequence begins with may go, too.
        """
        most = self.state_bound
        going = (node for node in list(self._kept) if not node.planned)
        while len(self._kept) >= most:
            if (node := next(going, None)) is None:
                return False
            self._forget_state(node)
        return True

    def _forget_state(self, node: RadixNode) -> None:
        """Forgets the states after a node, if they are kept."""
        if node.state:
            assert self.states is not None
            self.states.give_back(node.state)
            node.state = ZERO
            del self._kept[node]

    # -- memory ----------------------------------------------------------------------------------------------------

    def _take(self, after: int, count: int) -> Ints:
        """Slots for ``count`` tokens, for which others are forgotten if need be."""
        if lacking := self.pages.lacking(after, count):
            most = self.capacity // PAGE
            if self.pages.count + lacking > most:
                self._evict(self.pages.free + lacking + most // _SPARE)
                lacking = self.pages.lacking(after, count)
            if lacking:
                self.pages.add(lacking, most)
        return self.pages.take(after, count)

    def _evict(self, free: int) -> None:
        """Forgets leaves that nobody uses until so many pages are free."""
        leaves = [(node.last_used, node.number, node) for node in self.nodes() if not (node.children or node.users)]
        heapq.heapify(leaves)
        while leaves and self.pages.free < free:
            node = heapq.heappop(leaves)[2]
            parent = node.parent
            assert parent is not None
            self.pages.give_back(node.slots)
            self._forget_state(node)
            del parent.children[int(node.tokens[0])]
            if parent is not self.root and not (parent.children or parent.users):
                heapq.heappush(leaves, (parent.last_used, parent.number, parent))
