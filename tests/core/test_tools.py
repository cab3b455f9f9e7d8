"""Tools: their schemas, their methods, and the spaces of their calls."""

from __future__ import annotations

import copy
import inspect
import pickle
import string
from typing import Any, Literal

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lamps import LOOK, SWITCH, Lamps
from transformers.utils import get_json_schema

from envsuite.core import Tool, ToolCall, ToolEnv, UnparsedAction
from envsuite.core.methods import as_method
from envsuite.core.registration import ENVIRONMENTS
from envsuite.core.spaces import AnyText, TextTuple, ToolCalls
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
def test_arguments_that_do_not_fit_the_schema_are_named(arguments, said):
    problem = SWITCH.problem(arguments)
    assert problem is not None and said in problem


@pytest.mark.parametrize(
    "value",
    ["\ud800", b"bytes", {1, 2}, object(), 1j, {1: 2}, 10**400, float("nan")],
    ids=lambda value: repr(value)[:20],
)
def test_what_is_not_json_is_a_problem_and_never_an_exception(value):
    assert SWITCH.problem({"lamp": value}) is not None
    assert SAY.problem({"text": value}) is not None
    assert SAY.problem(value) is not None


def test_arguments_nested_beyond_any_parser_are_a_problem_and_never_an_exception():
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    assert SWITCH.problem({"lamp": deep}) is not None


@pytest.mark.parametrize(
    "text", ["\x00", "a" * 100_000, "日本語", "</action>", '{"', "🪓"], ids=lambda text: repr(text)[:12]
)
def test_a_string_argument_may_hold_any_text(text):
    assert SAY.problem({"text": text}) is None


@given(ANY_JSON)
def test_any_json_is_accepted_or_refused_with_one_line(arguments):
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
def test_an_action_that_is_none_is_described(action, said):
    problem = check_action(action, TOOLS, max_calls=2)
    assert not ToolCalls(TOOLS, max_calls=2).contains(action)
    assert problem is not None and said in problem


def test_a_tool_that_has_validated_can_be_copied_and_sent_to_another_process():
    assert SWITCH.problem({"lamp": 1}) is None
    for again in (copy.deepcopy(SWITCH), pickle.loads(pickle.dumps(SWITCH))):
        assert again == SWITCH
        assert again.problem({"lamp": -1}) == SWITCH.problem({"lamp": -1})


@given(st.text())
def test_an_output_that_could_not_be_read_is_an_action_without_calls_that_says_why(problem):
    action = UnparsedAction(problem)
    assert action == () and check_action(action, TOOLS, 3) == problem
    for copied in (pickle.loads(pickle.dumps(action)), copy.deepcopy(action)):
        assert isinstance(copied, UnparsedAction) and copied.problem == problem


SEARCH = Tool(
    "search",
    "Searches the library.",
    {
        "type": "object",
        "properties": {
            "limit": {"type": "integer", "description": "How many."},
            "query": {"type": "string", "description": "What for.\nAny words."},
            "fields": {"type": "array", "items": {"type": "string"}, "description": "Where."},
            "order": {"enum": ["new", "old"], "description": "Which first."},
            "self_made": {"anyOf": [{"type": "string"}, {"type": "number"}], "description": "Anything."},
        },
        "required": ["query", "fields"],
    },
)


class Library:
    def __init__(self) -> None:
        self.calls: list[ToolCall] = []

    def act(self, call: ToolCall) -> str:
        self.calls.append(call)
        return f"{len(self.calls)} calls"

    search = as_method(SEARCH, act)


@pytest.mark.parametrize("env_id", [env_id for env_id in ENVIRONMENTS if env_id != "BFCL-v0"])  # whose tools change
def test_what_transformers_reads_off_the_methods_of_an_environment_is_its_tools(env_id):
    env = gymnasium.make(env_id).unwrapped
    assert isinstance(env, ToolEnv)
    for tool in env.tools:
        wanted = tool.as_openai()
        wanted["function"]["parameters"].pop("additionalProperties", None)
        for form in wanted["function"]["parameters"]["properties"].values():  # limits that types do not have
            for limit in ("minimum", "maximum", "pattern"):
                form.pop(limit, None)
        read = get_json_schema(as_method(tool, lambda owner, call: ""))
        assert read["function"].pop("return", {"type": "string"}) == {"type": "string"}
        assert read == wanted
    env.close()


def test_the_parameters_are_typed_and_those_that_are_required_come_first():
    library = Library()
    signature = str(inspect.signature(library.search))
    assert signature.startswith("(query: str, fields: list[str], limit: int | None = None")
    assert signature.endswith("-> str")
    hints = {name: parameter.annotation for name, parameter in inspect.signature(library.search).parameters.items()}
    assert hints["order"] == Literal["new", "old"] | None
    assert inspect.getdoc(library.search) == (
        "Searches the library.\n\nArgs:\n    query: What for.\n        Any words.\n    fields: Where.\n"
        "    limit: How many.\n    order: Which first.\n    self_made: Anything."
    )


def test_a_call_of_the_method_is_a_call_of_the_tool():
    library = Library()
    assert library.search("cats", ["title"], order="new") == "1 calls"
    assert library.search(fields=[], query="dogs", limit=None) == "2 calls"
    assert library.calls == [
        ToolCall("search", {"query": "cats", "fields": ["title"], "order": "new"}),
        ToolCall("search", {"query": "dogs", "fields": []}),
    ]
    with pytest.raises(TypeError, match="unexpected keyword argument 'author'"):
        library.search("cats", [], author="me")


SEEDS = st.integers(0, 2**31 - 1)


@given(st.text())
def test_any_text_contains_every_string_and_nothing_else(text):
    assert text in AnyText()
    for other in (None, 1, text.encode(errors="replace"), [text], (text,), np.array("text")):
        assert not AnyText().contains(other)


@given(st.lists(st.text()))
def test_text_tuple_contains_tuples_of_strings_and_no_lists(texts):
    assert tuple(texts) in TextTuple()
    assert not TextTuple().contains(texts)
    assert not TextTuple().contains((*texts, 1))


@given(SEEDS)
def test_samples_belong_to_their_space_and_follow_from_the_seed(seed):
    for one, other in (
        (AnyText(seed=seed), AnyText(seed=seed)),
        (TextTuple(seed=seed), TextTuple(seed=seed)),
        (Lamps().action_space, Lamps().action_space),
    ):
        one.seed(seed)
        other.seed(seed)
        drawn = [one.sample() for _ in range(3)]
        assert drawn == [other.sample() for _ in range(3)]
        assert all(one.contains(value) for value in drawn)


@given(SEEDS)
def test_a_masked_sample_is_one_of_the_mask(seed):
    space = ToolCalls((SWITCH, LOOK), seed=seed)
    mask = [ToolCall("switch", {"lamp": i}) for i in range(3)]
    assert space.sample(mask=mask)[0] in mask
    only_last = np.array([0.0, 0.0, 1.0])
    assert space.sample(mask=mask, probability=only_last) == (mask[2],)


def test_a_space_that_cannot_propose_asks_for_a_mask():
    with pytest.raises(ValueError, match="mask"):
        ToolCalls((SWITCH,)).sample()


@pytest.mark.parametrize("calls", [[("switch", {"lamp": 3})], [("look", {})], [("look", {})] * 2])
def test_the_action_space_contains_what_the_schemas_accept(calls):
    assert ToolCalls((SWITCH, LOOK), max_calls=2).contains([ToolCall(*call) for call in calls])


def test_action_spaces_are_equal_where_they_accept_the_same():
    assert ToolCalls((SWITCH, LOOK)) == ToolCalls((SWITCH, LOOK))
    assert ToolCalls((SWITCH, LOOK)) != ToolCalls((SWITCH,))
    assert ToolCalls((SWITCH,)) != ToolCalls((SWITCH,), max_calls=2)
    assert AnyText() == AnyText() != TextTuple()


def test_a_pickled_action_space_goes_on_with_the_same_random_numbers_but_proposes_nothing():
    space = Lamps().action_space
    space.seed(7)
    copied = pickle.loads(pickle.dumps(space))
    assert copied == space
    mask = [ToolCall("switch", {"lamp": lamp}) for lamp in range(100)]
    assert [copied.sample(mask) for _ in range(5)] == [space.sample(mask) for _ in range(5)]  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="mask"):
        copied.sample()


def test_sampled_texts_are_one_to_five_words_of_one_to_seven_letters():
    space, several = AnyText(seed=0), TextTuple(seed=0)
    texts = [space.sample().split(" ") for _ in range(300)]
    assert {len(words) for words in texts} == set(range(1, 6))
    assert {len(word) for words in texts for word in words} == set(range(1, 8))
    assert {letter for words in texts for word in words for letter in word} == set(string.ascii_lowercase)
    assert {len(several.sample()) for _ in range(100)} == set(range(5))


def test_no_space_of_text_or_calls_is_said_to_flatten_into_numbers():
    assert not any(space.is_np_flattenable for space in (AnyText(), TextTuple(), ToolCalls((LOOK,))))
