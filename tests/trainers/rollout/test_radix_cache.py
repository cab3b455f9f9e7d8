"""The radix cache finds all that is stored, keeps what runs, and forgets the rest within its bound."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from radix_checks import check_tree, stored

from trainers.rollout import radix_cache
from trainers.rollout.kv_cache import PAGE, Pages
from trainers.rollout.radix_cache import CachedSequence, RadixCache, RadixNode
from trainers.rollout.states import ZERO

ROWS = 4
sequences = st.lists(st.integers(0, 2), min_size=1, max_size=90)
actions = st.one_of(
    st.tuples(st.just("begin"), sequences),
    st.tuples(st.just("again"), st.integers(0, 50), st.integers(1, 90), sequences),
    st.tuples(st.just("step"), st.lists(st.integers(0, 2), min_size=ROWS, max_size=ROWS)),
    st.tuples(st.just("finish"), st.integers(0, ROWS - 1)),
    st.just(("leave",)),
)


def array(tokens: list[int]) -> np.ndarray:
    return np.array(tokens, np.int64)


def common(one: list[int], other: tuple[int, ...]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@settings(max_examples=250)
@given(st.sampled_from([None, 0, 40, 64, 200]), st.sampled_from([None, 0, 1, 3, 40]), st.lists(actions, max_size=40))
def test_any_order_of_beginning_growing_and_ending_keeps_the_tree_whole(bound, kept_states, schedule):
    """And the states of recurrent layers, where there are any, with one byte for a token's and one every 16 tokens."""
    cache = RadixCache(ROWS, bound, states=kept_states is not None, state_bytes=kept_states)
    if cache.states is not None:
        cache.states.slot_bytes = 1
    with mock.patch.object(radix_cache, "EVERY", 16):
        _play(cache, schedule)


def _play(cache: RadixCache, schedule: list) -> None:
    running: list[CachedSequence] = []
    before: list[list[int]] = []
    content: dict[int, tuple[int, ...]] = {}  # what a slot was computed for: a token and all before it
    after: dict[int, tuple[int, ...]] = {ZERO: ()}  # the tokens that the states of a slot are after
    ends = []

    def begin(tokens: list[int]) -> None:
        if len(running) == ROWS:
            return
        known = stored(cache)
        longest = max((common(tokens, other) for other in known), default=0)
        sequence = cache.begin(array(tokens))
        assert sequence.length == len(tokens)
        if cache.states is None:
            assert sequence.ready in (longest, longest - 1)
            assert sequence.ready == longest or longest == len(tokens), "all that is stored is found"
        assert sequence.ready <= longest
        running.append(sequence)
        before.append(tokens)

    def step() -> None:
        now = {int(slot) for one in running for slot in one.slots[one.ready : one.length]}
        for sequence in running:
            if cache.states is not None and sequence.ready < sequence.length:
                if sequence.source is None:
                    assert int(sequence.slots[sequence.ready - 1]) in now, "it goes on from another of the step"
                else:
                    assert after[sequence.source] == tuple(sequence.tokens[: sequence.ready].tolist())
            for position in range(sequence.ready, sequence.length):
                content[int(sequence.slots[position])] = tuple(sequence.tokens[: position + 1].tolist())
        assert len({state for _, state in cache.branches}) == len(cache.branches)
        for slot, state in cache.branches:
            assert slot in now
            after[state] = content[slot]
        cache.mark_computed()
        for sequence in running:
            sequence.ready, sequence.source = sequence.length, sequence.state
            after[sequence.state] = tuple(sequence.tokens[: sequence.length].tolist()) if sequence.state else ()
            for position in range(sequence.length):
                wanted = tuple(sequence.tokens[: position + 1].tolist())
                assert content[int(sequence.slots[position])] == wanted, "a slot holds another's token"

    for action in schedule:
        match action:
            case "begin", tokens:
                begin(tokens)
            case "again", number, cut, tokens if before:
                begin(before[number % len(before)][:cut] + tokens)
            case "step", tokens:
                step()
                for sequence, token in zip(running, tokens, strict=False):
                    cache.extend(sequence, token)
            case "finish", number if running:
                step()
                sequence = running.pop(number % len(running))
                before.append(sequence.tokens[: sequence.ready].tolist())
                ends.append(cache.finish(sequence))
                for other, token in zip(running, [0, 1, 2], strict=False):
                    cache.extend(other, token)
            case ("leave",) if ends:
                cache.leave(ends.pop())
        if not any(node.planned for node in cache.nodes()):
            check_tree(cache, running)
    step()
    while running:
        cache.finish(running.pop())
    check_tree(cache, [])


def test_the_bound_is_exceeded_by_nothing_but_what_runs():
    cache = RadixCache(3, 4 * PAGE)
    for start in range(0, 100, 10):
        running = [cache.begin(array(list(range(start + i, start + i + 80)))) for i in range(3)]
        cache.mark_computed()
        for sequence in running:
            sequence.ready = sequence.length
        assert cache.pages.used <= max(4, 3 * 3)
        for sequence in running:
            cache.finish(sequence)
        assert cache.pages.used <= 4


def test_what_was_used_longest_ago_goes_first_and_what_was_left_before_it():
    cache = RadixCache(1, 3 * PAGE)

    def played(first: int) -> RadixNode:
        sequence = cache.begin(array([first] * PAGE))
        cache.mark_computed()
        sequence.ready = sequence.length
        return cache.finish(sequence)

    played(0), played(1), played(2)
    played(0)
    left = played(3)
    assert {tokens[0] for tokens in stored(cache)} == {0, 2, 3}
    cache.leave(left)
    played(4)
    assert {tokens[0] for tokens in stored(cache)} == {0, 2, 4}


@pytest.mark.parametrize("after", [-1, 3, PAGE - 1])
def test_slots_follow_the_last_one_where_its_page_has_room(after):
    pages = Pages()
    pages.add(1, 8)
    first = pages.take(-1, after + 1) if after >= 0 else np.empty(0, np.int64)
    more = pages.take(after, 5)
    assert more.tolist() == list(range(more[0], more[0] + 5))
    assert (more[0] // PAGE == after // PAGE) == (0 <= after < PAGE - 1)
    branch = pages.take(after, 2)
    assert branch[0] // PAGE != more[0] // PAGE, "a page has one sequence that grows in it"
    used = pages.used
    for slots in (first, more, branch):
        pages.give_back(slots)
    assert used > pages.used == 0
