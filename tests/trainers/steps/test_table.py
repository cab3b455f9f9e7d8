from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
from episodes import episode, step

from envsuite.core import ToolCall
from envsuite.core.errors import UsageError
from trainers.steps import Ragged, StepTable


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
def test_a_reward_that_is_not_finite_is_refused_with_its_place(reward: float):
    with pytest.raises(UsageError, match=r"'reward' is .* in row 1 \(episode 4, step 1\)"):
        StepTable.from_episodes([episode(4, step(0), replace(step(1), reward=reward))])


def test_joined_tables_keep_the_versions_of_both():
    parts = [StepTable.from_episodes([episode(i, replace(step(0), policy_version=i + 1))]) for i in range(3)]
    assert StepTable.join(parts).policy_version.values.tolist() == [1, 1, 2, 2, 3, 3]
