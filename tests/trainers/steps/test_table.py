"""The table of steps: its columns, who supplies them, and tokens that rows share."""

from collections import Counter
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
from episodes import episode, step, token_table
from hypothesis import given
from hypothesis import strategies as st

from envsuite.core import ToolCall
from envsuite.core.errors import UsageError
from trainers.settings import ConfigError
from trainers.steps import Ragged, StepTable
from trainers.steps.columns import EMBEDDING, REFERENCE, ROLLOUT, SHAPED, VALUE, MissingColumn, check_supply
from trainers.steps.sharing import SharedTokens, shared_lengths


def test_equal_actions_have_equal_texts_whatever_their_mappings_and_an_answer_without_one_has_none():
    plain = ToolCall("go", {"to": "hall", "by": {"foot": True}})
    frozen = ToolCall("go", MappingProxyType({"by": MappingProxyType({"foot": True}), "to": "hall"}))
    calls = [(plain,), (frozen,), (ToolCall("go", {"to": "attic"}),), None]
    table = StepTable.from_episodes([episode(0, *(step(t, action=call) for t, call in enumerate(calls)))])
    first, second, third, none = table.extra["action"].tolist()
    assert first == second == '[["go", {"by": {"foot": true}, "to": "hall"}]]' != third and none is None


def test_the_text_of_a_step_is_what_an_agent_says_and_sees_and_a_step_that_changes_nothing_has_none():
    first, second, third = (step(t, action=(ToolCall("act", {"command": "open"}),)) for t in range(3))
    both = (ToolCall("click", {"id": 3, "twice": True}), ToolCall("say", {"text": "done"}))
    look = step(1, action=(ToolCall("act", {"command": "look"}),), observation="a hall", state_key="hall")
    batch = [
        episode(0, first, replace(second, observation="a chest", valid=False), replace(third, observation="x")),
        episode(1, first, error="crashed"),
        episode(2, first, success=True),
        episode(3, step(0, action=both), look, replace(look, t=2, observation="the same hall")),
    ]
    assert StepTable.from_episodes(batch).extra["step_text"].tolist() == [
        *("open\na chest", None, "open\nend", "open\nsuccess"),
        *("click(id=3, twice=True); done\na hall", None, "look\nend"),
    ]


def test_token_columns_follow_their_rows():
    table = StepTable.from_episodes([episode(0, step(0), step(1))]).with_token_columns(value=np.arange(4.0))
    taken = table.take(np.array([1, 0, 1]))
    assert taken.token_column("value", "ppo", "a critic").tolist() == [2, 3, 0, 1, 2, 3]
    with pytest.raises(UsageError, match="token column 'value' must have one value for each response token"):
        StepTable.from_episodes([episode(0, step(0))]).with_token_columns(value=np.arange(3.0))
    assert isinstance(taken.token_extra["value"], Ragged)


def test_tokens_are_int32_and_logprobs_float32_from_the_step_to_the_table():
    table = StepTable.from_episodes([episode(0, step(0), step(1))])
    dtypes = [table.prompt.values.dtype, table.response.values.dtype, table.logprob.values.dtype]
    assert dtypes == [np.int32, np.int32, np.float32]
    ids = np.array([7, 8], np.int32)
    assert replace(step(0), response_ids=ids).response_ids is ids, "arrays are not copied"


def test_steps_are_equal_where_every_token_is():
    assert step(0) == step(0) and step(0) != step(1)
    for other in ({"response_ids": (3, 5)}, {"response_logprobs": (-0.5, -0.6)}, {"policy_version": (0, 1)}):
        assert replace(step(0), **other) != step(0)


def test_a_table_without_versions_has_version_0_and_staleness_counts_from_each_tokens_own():
    steps = [replace(step(0), policy_version=(3, 4)), replace(step(1), policy_version=5)]
    table = StepTable.from_episodes([episode(0, *steps)])
    assert table.policy_version.values.tolist() == [3, 4, 5, 5]
    assert table.staleness(6) == pytest.approx((3 + 2 + 1 + 1) / 4)
    bare = replace(table, policy_version=Ragged.of([], np.int64))
    assert bare.policy_version.values.tolist() == [0] * 4
    assert table.take(np.array([], np.int64)).staleness(6) == 0.0


def test_failed_and_greedy_episodes_have_no_rows_and_the_others_say_what_was_cut_and_solved():
    batch = [
        episode(0, replace(step(0), finish_reason="length"), step(1), success=True),
        episode(1, step(0), error="crashed"),
        replace(episode(2, step(0)), greedy=True),
        replace(episode(3, step(0, valid=False)), context_truncated=True),
    ]
    table = StepTable.from_episodes(batch)
    assert list(zip(table.episode_id.tolist(), table.t.tolist(), strict=True)) == [(0, 0), (0, 1), (3, 0)]
    assert table.extra["cut"].tolist() == [True, False, False]
    assert table.extra["success"].tolist() == [True, True, False]
    assert table.valid.tolist() == [True, True, False]


@pytest.mark.parametrize("reward", [np.nan, np.inf, -np.inf])
def test_a_reward_that_is_not_finite_is_refused_with_its_place(reward):
    with pytest.raises(UsageError, match=r"'reward' is .* in row 1 \(episode 4, step 1\)"):
        StepTable.from_episodes([episode(4, step(0), replace(step(1), reward=reward))])


def test_joined_tables_keep_the_versions_of_both():
    parts = [StepTable.from_episodes([episode(i, replace(step(0), policy_version=i + 1))]) for i in range(3)]
    assert StepTable.join(parts).policy_version.values.tolist() == [1, 1, 2, 2, 3, 3]


CRITIC = {"critic": (VALUE,)}


def test_a_column_needs_the_setting_that_supplies_it_or_comes_with_the_rollout_shapers_and_the_reference():
    check_supply("grpo", [*ROLLOUT, *SHAPED, REFERENCE], {})
    check_supply("ppo", [VALUE, "action"], CRITIC)


@pytest.mark.parametrize(
    ("kind", "method", "columns", "supplied", "said"),
    [
        (MissingColumn, "ppo", [VALUE], {}, r"^ppo needs the column 'value', which a critic \(method\.critic: .*\)"),
        (MissingColumn, "bipace", [EMBEDDING, VALUE], CRITIC, r"the column 'embedding', which a pass of the actor"),
        (MissingColumn, "bipace", ["moon"], {}, r"the column 'moon', which nothing supplies"),
        (ConfigError, "grpo", ["action"], CRITIC, r"method\.critic is set, but grpo with these options does not read"),
    ],
)
def test_what_nothing_supplies_and_what_nothing_reads_is_refused(kind, method, columns, supplied, said):
    with pytest.raises(kind, match=said):
        check_supply(method, columns, supplied)


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
