"""Lines that a person types, as actions."""

from __future__ import annotations

import gymnasium
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_play_session import FEW, IDS

import envsuite  # noqa: F401
from envsuite.core import Tool, ToolCall, UnparsedAction
from envsuite.core.registration import ENVIRONMENTS, Profile
from envsuite.core.tools import check_action
from envsuite.play.lines import completions, is_incomplete, read_action, read_line, write_action, write_call
from envsuite.play.profiles import profile_of
from envsuite.remote.making import make

PROFILES = [spec.profile for spec in ENVIRONMENTS.values()]


def tool(name: str, **properties: object) -> Tool:
    form = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return Tool(name, "", form)


TWO = (
    tool("set", colour={"type": "string", "enum": ["red", "dark blue"]}, level={"type": "integer"},
         on={"type": "boolean"}),
    tool("look"),
    tool("say", text={"type": "string"}),
    tool("turn", number={"type": "integer"}),
)  # fmt: skip


@pytest.mark.seconds
@pytest.mark.parametrize("env_id", IDS)
def test_every_call_can_be_typed(env_id):
    env = make(env_id, **FEW.get(env_id, {}))
    env.reset(seed=0)
    profile = profile_of(env_id, env.tools)
    env.action_space.seed(0)
    for _ in range(200):
        (call,) = env.action_space.sample()
        assert read_line(write_call(call, env.tools, profile), env.tools, profile) == (call,)


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(TWO),
    st.text(),
    st.integers(),
    st.booleans(),
    st.sampled_from(PROFILES),
)
def test_every_call_of_every_tool_can_be_typed(kind, text, number, on, known):
    values = {"colour": text, "level": number, "on": on, "text": text, "number": number}
    call = ToolCall(kind.name, {name: values[name] for name in kind.parameters["properties"]})
    profile = Profile(**{**vars(known), "plain": "", "commands": "", "prefixes": dict.fromkeys(known.prefixes, "say")})
    if kind.problem(call.arguments) is None or kind.name == "set":  # huge integers are no JSON
        try:
            line = write_call(call, TWO, profile)
        except TypeError:
            return
        assert read_line(line, TWO, profile) == (call,)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(), min_size=1, max_size=5))
def test_several_calls_of_a_step_are_lines_and_none_if_one_is_no_call(texts):
    action = tuple(ToolCall("say", {"text": text}) for text in texts)
    written = write_action(action, TWO, Profile())
    assert read_action(written, TWO, Profile(), (), most=5) == action
    assert isinstance(read_action("look\nfly", TWO, Profile(), (), most=5), UnparsedAction)
    if len(texts) > 1:
        assert written.count("\n") == len(texts) - 1
        assert read_action(written, TWO, Profile(), (), most=1) == read_line(written, TWO, Profile())


@settings(max_examples=300, deadline=None)
@given(st.text() | st.text("set look=red{}\"'[]: 1"), st.sampled_from([Profile(), Profile(plain="say"), *[]]))
def test_no_line_raises_and_each_is_an_action_or_says_why_not(line, profile):
    action = read_line(line, TWO, profile)
    assert isinstance(action, UnparsedAction) or isinstance(action[0], ToolCall)
    check_action(action, TWO, 1)
    completions(line, TWO, profile)
    is_incomplete(line)


@pytest.mark.parametrize(
    ("line", "call"),
    [
        ("set colour=red level=3 on=true", ToolCall("set", {"colour": "red", "level": 3, "on": True})),
        ("set colour='dark blue' level=x on=1", ToolCall("set", {"colour": "dark blue", "level": "x", "on": 1})),
        ('set {"colour": "red"}', ToolCall("set", {"colour": "red"})),
        ("look", ToolCall("look", {})),
        ("set colour=red level=[1, [2]] on=true", ToolCall("set", {"colour": "red", "level": [1, [2]], "on": True})),
        ('set level={"a": ["b, c"]}', ToolCall("set", {"level": {"a": ["b, c"]}})),
        ("say  3 words, all", ToolCall("say", {"text": "3 words, all"})),
        ("say", ToolCall("say", {})),
        ("turn 12", ToolCall("turn", {"number": 12})),
        ("turn left", ToolCall("turn", {"number": "left"})),
    ],
)
def test_forms_of_lines(line, call):
    assert read_line(line, TWO, Profile()) == (call,)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("fly away", "'fly away' names no tool; a line begins with one of: set, look, say, turn"),
        ("  ", "the line is empty"),
        ("set red", "'red' is not NAME=VALUE; set takes colour, level, on"),
        ("set colour='red", "cannot be split into arguments (No closing quotation)"),
    ],
)
def test_lines_that_are_no_action_say_why(line, said):
    action = read_line(line, TWO, Profile())
    assert isinstance(action, UnparsedAction) and said in action.problem


def test_commands_of_the_shop_are_clicks_and_lines_of_mathematics_are_code():
    shop, sums = make("WebShop-v0"), make("PythonMath-v0")
    profile = profile_of("WebShop-v0", shop.tools)
    assert read_line("buy now", shop.tools, profile, ["buy now"]) == (ToolCall("click", {"element": "buy now"}),)
    assert isinstance(read_line("buy now", shop.tools, profile, []), UnparsedAction)
    assert read_line("search buy now", shop.tools, profile) == (ToolCall("search", {"query": "buy now"}),)
    profile = profile_of("PythonMath-v0", sums.tools)
    assert read_line("= 3/7", sums.tools, profile) == (ToolCall("answer", {"text": "3/7"}),)
    assert read_line("if x:\n    y()\n", sums.tools, profile) == (ToolCall("python", {"code": "if x:\n    y()"}),)
    assert is_incomplete("for i in x:") and is_incomplete("for i in x:\n    f(i)\n    g(i)")
    assert not is_incomplete("for i in x:\n    f(i)\n    ") and not is_incomplete("f(1)") and not is_incomplete("f(1))")


def test_completions_come_from_commands_tools_and_schemas():
    for begun, found in (
        ("", ["set ", "look", "say ", "turn "]),
        ("s", ["set ", "say "]),
        ("set c", ["set colour="]),
        ("set colour=", ["set colour=red", "set colour=dark blue"]),
        ("set level=1 ", ["set level=1 colour=", "set level=1 on="]),
    ):
        assert completions(begun, TWO, Profile()) == found
    moves = gymnasium.make("Sokoban-v0").unwrapped.tools  # type: ignore[attr-defined]
    assert completions("", moves, profile_of("Sokoban-v0", moves)) == ["up", "down", "left", "right"]
    house = make("TextCraft-v0").tools
    commands = ("go to shelf 1", "go to desk 1", "open shelf 1")
    for begun, found in (("go", ["go to shelf 1", "go to desk 1"]), ("shelf", ["go to shelf 1", "open shelf 1"])):
        assert completions(begun, house, profile_of("ALFWorld-v0", house), commands) == found
