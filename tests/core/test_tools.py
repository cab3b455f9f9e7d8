from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lamps import LOOK, SWITCH

from envsuite.core import Tool, ToolCall, UnparsedAction
from envsuite.core.spaces import ToolCalls
from envsuite.core.tools import check_action

TOOLS = (SWITCH, LOOK)
SAY = Tool.of_string("say", "Say it.", "text", "")

ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "lamp"),
        ({"lamp": "1"}, "argument lamp"),
        ({"lamp": 1, "extra": 2}, "extra"),
        (None, "object"),
    ],
)
def test_arguments_that_do_not_fit_the_schema_are_named(arguments: object, said: str) -> None:
    problem = SWITCH.problem(arguments)
    assert problem is not None and said in problem


@pytest.mark.parametrize(
    "value",
    ["\ud800", b"bytes", {1, 2}, object(), 1j, {1: 2}, 10**400, float("nan")],
    ids=lambda value: repr(value)[:20],
)
def test_what_is_not_json_is_a_problem_and_never_an_exception(value: object) -> None:
    assert SWITCH.problem({"lamp": value}) is not None
    assert SAY.problem({"text": value}) is not None
    assert SAY.problem(value) is not None


def test_arguments_nested_beyond_any_parser_are_a_problem_and_never_an_exception() -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    assert SWITCH.problem({"lamp": deep}) is not None


@pytest.mark.parametrize(
    "text", ["\x00", "a" * 100_000, "日本語", "</action>", '{"', "🪓"], ids=lambda text: repr(text)[:12]
)
def test_a_string_argument_may_hold_any_text(text: str) -> None:
    assert SAY.problem({"text": text}) is None


@given(ANY_JSON)
def test_any_json_is_accepted_or_refused_with_one_line(arguments: Any) -> None:
    problem = SWITCH.problem(arguments)
    fits = (
        isinstance(arguments, dict)
        and set(arguments) == {"lamp"}
        and isinstance(arguments["lamp"], int | float)
        and not isinstance(arguments["lamp"], bool)
        and arguments["lamp"] >= 0
        and float(arguments["lamp"]).is_integer()
    )
    assert (problem is None) == fits


@pytest.mark.parametrize(
    ("action", "said"),
    [
        ("switch", "sequence of tool calls, got str"),
        (ToolCall("look", {}), "sequence of tool calls, got ToolCall"),
        (None, "got NoneType"),
        ((), "at least one"),
        ([ToolCall("look", {})] * 3, "at most 2"),
        (["look"], "item of type str"),
        ([ToolCall("lock", {})], "unknown tool 'lock'; known: switch, look"),
        ([ToolCall(["look"], {})], "unknown tool"),  # type: ignore[arg-type]
        ([ToolCall("look", {}), ToolCall("switch", {"lamp": "x"})], "switch: argument lamp"),
    ],
)
def test_an_action_that_is_none_is_described(action: object, said: str) -> None:
    problem = check_action(action, TOOLS, max_calls=2)
    assert not ToolCalls(TOOLS, max_calls=2).contains(action)
    assert problem is not None and said in problem


def test_a_tool_that_has_validated_can_be_copied_and_sent_to_another_process() -> None:
    assert SWITCH.problem({"lamp": 1}) is None
    for again in (copy.deepcopy(SWITCH), pickle.loads(pickle.dumps(SWITCH))):
        assert again == SWITCH
        assert again.problem({"lamp": -1}) == SWITCH.problem({"lamp": -1})


@given(st.text())
def test_an_output_that_could_not_be_read_is_an_action_without_calls_that_says_why(problem: str) -> None:
    action = UnparsedAction(problem)
    assert action == () and check_action(action, TOOLS, 3) == problem
    for copied in (pickle.loads(pickle.dumps(action)), copy.deepcopy(action)):
        assert isinstance(copied, UnparsedAction) and copied.problem == problem
