"""Counts of tokens that rows share, against a trie that is built token by token."""

from collections import Counter
from dataclasses import replace

import numpy as np
from episodes import token_table
from hypothesis import given
from hypothesis import strategies as st

from trainers.steps.sharing import SharedTokens, shared_lengths

ROWS = st.lists(st.lists(st.integers(-3, 2), max_size=6), max_size=12)


def nodes(rows):
    """Number of the nodes of the rows' trie."""
    return len({tuple(row[: end + 1]) for row in rows for end in range(len(row))})


def table(rows, episodes=None, ts=None):
    """A table of prompts and responses, of one episode where nothing else is said."""
    numbers = np.array([episodes or [0] * len(rows), ts or [*range(len(rows))]], np.int64)
    return token_table(rows, episode_id=numbers[0], t=numbers[1])


@given(ROWS)
def test_a_row_shares_its_longest_prefix_with_an_earlier_row(rows):
    found = shared_lengths([np.array(row, np.int32) for row in rows])
    for number, row in enumerate(rows):
        prefixes = {tuple(earlier[:end]) for earlier in rows[:number] for end in range(len(earlier) + 1)} | {()}
        assert found[number] == max(end for end in range(len(row) + 1) if tuple(row[:end]) in prefixes)
    assert sum(map(len, rows)) - found.sum() == nodes(rows)


TOKENS = st.lists(st.integers(0, 3), max_size=5)


@given(st.lists(st.tuples(TOKENS, TOKENS, st.integers(0, 2)), max_size=9), st.randoms())
def test_counts_are_those_of_the_trie_in_any_order_of_the_rows(rows, random):
    shuffled = list(enumerate(rows))
    random.shuffle(shuffled)
    made = [
        table([row[:2] for _, row in some], [row[2] for _, row in some], [number for number, _ in some])
        for some in (list(enumerate(rows)), shuffled)
    ]
    found, again = map(SharedTokens.of, made)
    assert found == again
    assert found.rows == sum(len(prompt) + len(response) for prompt, response, _ in rows)
    assert found.distinct == nodes([prompt + response for prompt, response, _ in rows])
    assert 0 <= found.least <= found.distinct


@given(TOKENS, TOKENS, st.randoms())
def test_the_bound_is_reached_by_the_order_that_puts_what_is_common_first(first, second, random):
    common = [token for token in range(4) for _ in range(min(first.count(token), second.count(token)))]
    ordered = [[*common, *_without(prompt, common)] for prompt in (first, second)]
    bound = SharedTokens.of(table([(first, []), (second, [])])).least
    assert SharedTokens.of(table([(prompt, []) for prompt in ordered])).distinct == bound
    random.shuffle(first)
    assert SharedTokens.of(table([(first, []), (second, [])])).least == bound, "no order changes the bound"


def test_a_growing_conversation_is_shared_wholly_and_a_sliding_one_is_not():
    growing = [([1, 2], [3]), ([1, 2, 3, 4], [5]), ([1, 2, 3, 4, 5, 6], [7])]
    assert SharedTokens.of(table(growing)) == SharedTokens(15, 7, 7)
    sliding = [([1, 2, 3, 4], [9]), ([1, 3, 4, 5], [9]), ([1, 4, 5, 6], [9])]
    assert SharedTokens.of(table(sliding)) == SharedTokens(15, 13, 9)


def test_prompts_that_differ_in_an_image_only_are_different():
    pictures = [np.zeros((2, 2, 3), np.uint8), np.ones((2, 2, 3), np.uint8)]
    images = np.empty(3, object)
    for row, number in enumerate((0, 1, 0)):
        images[row] = (pictures[number],)
    rows = [([1, -2, 5], [6])] * 3
    found = SharedTokens.of(replace(table(rows, episodes=[0, 1, 2]), images=images))
    assert (found.rows, found.distinct) == (12, 7)


def _without(values, removed):
    return (Counter(values) - Counter(removed)).elements()
