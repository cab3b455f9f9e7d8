"""What holds for a radix cache at any time between two steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from trainers.rollout.kv_cache import PAGE
from trainers.rollout.radix_cache import CachedSequence as Running
from trainers.rollout.radix_cache import RadixCache, RadixNode


def check_tree(cache: RadixCache, running: Sequence[Running]) -> None:
    """Asserts that nodes, reference counts, pages and the table fit the running sequences and each other."""
    nodes = list(cache.nodes())
    assert Counter(id(sequence.node) for sequence in running) == {
        id(n): n.users for n in [cache.root, *nodes] if n.users
    }
    held = [slot for node in nodes for slot in node.slots.tolist()]
    for node in nodes:
        assert len(node.tokens) == len(node.slots) > 0 and not node.planned
        assert node.parent is not None and node.parent.children[int(node.tokens[0])] is node
    for sequence in running:
        tokens, slots = sequence.tokens[: sequence.length], sequence.slots[: sequence.length]
        assert sequence.shared <= sequence.length
        assert cache.match(tokens)[2][: sequence.shared].tolist() == slots[: sequence.shared].tolist()
        held += slots[sequence.shared :].tolist()
        assert read(cache, sequence) == slots.tolist()
    assert len(set(held)) == len(held), "no slot has two tokens"
    pages = {slot // PAGE for slot in held}
    assert cache.pages.used == len(pages)
    assert cache.pages.free == cache.pages.count - len(pages)
    if cache.states is not None:
        states = [node.state for node in nodes if node.state]
        assert len(states) <= cache.state_bound
        states += [sequence.state for sequence in running]
        assert len(set(states)) == len(states) == cache.states.used, "each slot has one holder"
        assert cache.states.count <= 1 + cache._rows + cache.state_bound or cache.states.count <= 9
    if not running:
        assert cache.pages.used * PAGE <= cache.capacity


def read(cache: RadixCache, sequence: Running) -> list[int]:
    """The slots of a sequence as a kernel finds them in the table."""
    row, table = sequence.row, cache.table
    count = int(table.counts[row])
    ends = [*table.starts[row, 1:count].tolist(), sequence.length]
    return [
        int(table.pages[row, entry]) * PAGE + position - int(table.bases[row, entry])
        for entry, end in enumerate(ends)
        for position in range(table.starts[row, entry], end)
    ]


def stored(cache: RadixCache) -> set[tuple[int, ...]]:
    """Every sequence that is stored, up to the end of each node."""
    found: set[tuple[int, ...]] = set()

    def walk(node: RadixNode, before: tuple[int, ...]) -> None:
        for child in node.children.values():
            whole = (*before, *np.asarray(child.tokens).tolist())
            found.add(whole)
            walk(child, whole)

    walk(cache.root, ())
    return found
