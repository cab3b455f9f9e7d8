import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsuite.core import Tool, ToolCall, UnknownName, UsageError
from envsuite.core.tools import check_action
from envsuite.prompting import CODECS, BracketsCodec, ParseResult, TagsCodec, ToolsCodec, make_codec
from envsuite.prompting.codecs.search import SearchR1Codec


def schema(**properties):
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


COMMAND = Tool.of_string("act", "Act in the world.", "command", "")
SEARCH = Tool("search", "Search papers.", schema(query={"type": "string"}, limit={"type": "integer"}))
CLICK = Tool.of_string("click", "Click an element.", "element", "")
TAGS, TOOLS, BRACKETS = TagsCodec(), ToolsCodec(), BracketsCodec()
ANY_CODEC = pytest.mark.parametrize("codec", [TAGS, TOOLS, BRACKETS, SearchR1Codec()], ids=lambda codec: codec.name)
CODEC = pytest.mark.parametrize("codec", [TAGS, TOOLS, BRACKETS], ids=["tags", "tools", "brackets"])
TOOLSETS = ((COMMAND,), (SEARCH, CLICK), (SEARCH, COMMAND))

PIECES = st.sampled_from([
    "<action>", "</action>", "<tool_call>", "</tool_call>", "<think>", "</think>", "<act", ">", "{", "}", "[", "]", '"',
    '{"name": "act", "arguments": {"command": "go"}}', '"name"', '"arguments"', ": ", ", ", "\\ud800", "\x00", "\udc80",
    "go to shelf 1", "去货架", "🙂", "\n", " ", "NaN", "1e999", "9" * 5000, "null", "</act>", "<search>",
])  # fmt: skip
COMPLETIONS = st.one_of(
    st.text(),
    st.lists(st.one_of(PIECES, st.text(max_size=5)), max_size=40).map("".join),
    st.text(alphabet='<>/action{}[]"'),
)  # fmt: skip
TEXT = st.one_of(st.text(), PIECES.filter(lambda s: "\udc80" not in s))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
CALLS = st.one_of(
    TEXT.map(lambda command: ToolCall("act", {"command": command})),
    st.builds(ToolCall, st.sampled_from(["search", "click"]), st.dictionaries(TEXT, JSON, max_size=3)),
)


@ANY_CODEC
@given(completion=COMPLETIONS, tools=st.sampled_from(TOOLSETS), max_calls=st.integers(1, 3))
def test_parsing_gives_an_action_or_a_reason_and_never_raises(codec, completion, tools, max_calls):
    parsed = codec.parse(completion, tools, max_calls)
    assert (parsed.action is None) != (parsed.error is None)
    if parsed.action is not None:
        assert 1 <= len(parsed.action) <= max_calls
        json.dumps([dict(call.arguments) for call in parsed.action], ensure_ascii=False).encode()
        check_action(parsed.action, tools, max_calls)
    else:
        assert parsed.error and "\n" not in parsed.error and len(parsed.error) < 300


@CODEC
@given(action=st.lists(CALLS, min_size=1, max_size=3), thought=TEXT.filter(lambda s: "</think>" not in s))
def test_what_is_written_is_read_back(codec, action, thought):
    for tools in ((SEARCH, CLICK, COMMAND), (SEARCH, CLICK)):
        written = codec.write(action, thought, tools)
        assert codec.parse(written, tools, 3) == ParseResult(tuple(action), None)


@CODEC
@given(command=TEXT)
def test_a_command_is_read_back_without_naming_the_tools(codec, command):
    action = (ToolCall("act", {"command": command}),)
    assert codec.parse(codec.write(action), (COMMAND,), 1).action == action


GO = (ToolCall("act", {"command": "go"}),)
CALL = '{"name": "act", "arguments": {"command": "go"}}'


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("<think>hm</think><action>go</action>", "go"),
        ("<action>go</action>", "go"),
        ("  <action>\n go \n</action> trailing words", "go"),
        ("<think>never closed <action>go</action>", "go"),
        ("<think>or <action>run</action>?</think><action>go</action>", "go"),
        ("<action></action><action>go</action>", "go"),
        ("<action>a<action>b</action><action>go</action>", "go"),
        ("<action>go</action><action>run</action>", "go"),
        (f"<action>{CALL}</action>", "go"),
        ("<action>Go TO Shelf 1, then 2</action>", "Go TO Shelf 1, then 2"),
        ("<action>{half json</action>", "{half json"),
        ("<action>去货架 ७\x00</action>", "去货架 ७\x00"),
        ("<action>" + "x" * 100_000 + "</action>", "x" * 100_000),
    ],
)
def test_the_first_well_formed_body_in_tags_is_the_command_as_it_stands(completion, expected):
    assert TAGS.parse(completion, (COMMAND,), 1) == ParseResult((ToolCall("act", {"command": expected}),), None)


@pytest.mark.parametrize(
    ("completion", "error"),
    [
        ("", "no <action>…</action>"),
        ("go", "no <action>…</action>"),
        ("<ACTION>go</ACTION>", "no <action>…</action>"),
        ("<action>go", "<action> is never closed"),
        ("go</action>", "no <action>…</action>"),
        ("<action> \n</action>", "the action is empty"),
        ("<action>a<action>b</action>", "<action> inside <action>"),
        ("<action>go</action></think>", "no <action>…</action>"),
        ("<action>\udc80</action>", "not valid Unicode"),
    ],
)
def test_what_is_not_an_action_in_tags_has_a_reason(completion, error):
    parsed = TAGS.parse(completion, (COMMAND,), 1)
    assert parsed.action is None and error in parsed.error


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ('{"name": "act", "arguments": {"command": "go"}', "not JSON"),
        ("", "not JSON"),
        ("null", "a call is"),
        ('{"name": "act"}', "a call is"),
        ('{"name": "act", "arguments": {}, "id": 1}', "a call is"),
        ('{"name": 1, "arguments": {}}', '"name" is a string'),
        ('{"name": "act", "arguments": "go"}', '"arguments" an object'),
        ('{"name": "act", "arguments": {"x": NaN}}', "not JSON"),
        ('{"name": "act", "arguments": {"x": 1e999}}', "not JSON: a number is too large"),
        ('{"name": "act", "arguments": {"x": ' + "9" * 5000 + "}}", "not JSON"),
        ('{"name": "act", "arguments": {"x": "\\ud800"}}', "not valid Unicode"),
        ('{"name": "act", "arguments": {"x": ' + "[" * 200 + "]" * 200 + "}}", "nested"),
        ('{"a":' * 50_000, "nested"),
    ],
)
def test_a_body_that_is_no_call_has_a_reason(body, error):
    for codec, completion in ((TOOLS, f"<tool_call>{body}</tool_call>"), (TAGS, f"<action>{body}</action>")):
        parsed = codec.parse(completion, (SEARCH, CLICK), 1)
        assert parsed.action is None and error in parsed.error


def test_a_malformed_call_is_passed_over_and_a_well_formed_one_is_taken():
    good = f"<tool_call>{CALL}</tool_call>"
    for text in (f"<tool_call>{{half</tool_call> {good}", f"<think>{good}{good}</think>{good}"):
        assert TOOLS.parse(text, (COMMAND,), 1).action == GO


def test_more_calls_than_allowed_are_no_action_and_none_is_cut():
    good = f"<tool_call>{CALL}</tool_call>" * 2
    clicks = TAGS.write((ToolCall("click", {"element": "a"}),) * 2)
    for codec, text, tools in ((TOOLS, good, (COMMAND,)), (TAGS, clicks, (SEARCH, CLICK))):
        assert len(codec.parse(text, tools, 2).action) == 2
        assert codec.parse(text, tools, 1) == ParseResult(None, "2 calls in one step, at most 1 allowed")


def test_an_unknown_tool_or_wrong_arguments_are_left_to_the_environment_to_answer():
    parsed = TOOLS.parse('<tool_call>{"name": "fly", "arguments": {}}</tool_call>', (COMMAND,), 1)
    assert parsed.action == (ToolCall("fly", {}),)
    assert "unknown tool 'fly'" in check_action(parsed.action, (COMMAND,), 1)


@pytest.mark.seconds
@ANY_CODEC
@pytest.mark.parametrize(
    "piece",
    ["<action>", "</action>", "<action></action>", "<tool_call>", "<tool_call>{</tool_call>", "<think>", "<", "{", '"',
     "\\", "<action>[" , '{"name":', "</think>", " ", "<action>a<action>",
     "<act>", "<act></search>", "<click><act></click>"],
)  # fmt: skip
def test_two_megabytes_of_anything_are_read_in_linear_time(codec, piece):
    # Anything worse than linear would take minutes here.
    for tools in TOOLSETS:
        codec.parse(piece * (2_000_000 // len(piece)), tools, 1)


def test_the_forms_are_those_of_the_documentation():
    assert TAGS.write(GO, "a door") == "<think>a door</think><action>go</action>"
    assert TAGS.write(GO) == "<action>go</action>"
    click = (ToolCall("click", {"element": "</action>"}),)
    escaped = '<action>{"name": "click", "arguments": {"element": "\\u003c/action>"}}</action>'
    assert TAGS.write(click) == escaped
    assert TOOLS.write(GO) == f"<tool_call>\n{CALL}\n</tool_call>"
    assert TAGS.show(GO) == "go" and TOOLS.show(GO) == CALL
    assert '"去货架"' in TOOLS.write((ToolCall("act", {"command": "去货架"}),)), "as the model has its tokens"


@CODEC
def test_what_cannot_be_written_says_so(codec):
    with pytest.raises(UsageError, match="thought"):
        codec.write(GO, "a </think> b")
    for query in (float("nan"), {1, 2}):
        with pytest.raises(UsageError, match="search cannot be written as JSON"):
            codec.write((ToolCall("search", {"query": query}),))


@CODEC
def test_instructions_show_a_form_that_parses(codec):
    for tools in TOOLSETS:
        for max_calls in (1, 3):
            text = codec.system(tools, max_calls)
            assert all(tool.description in text for tool in tools)
            opening, closing = ("<tool_call>", "</tool_call>") if codec is TOOLS else ("<action>", "</action>")
            assert text.count(opening) == text.count(closing) == 1
    assert "<think>" in TagsCodec().system((COMMAND,), 1)
    assert "<think>" not in TagsCodec(think=False).system((COMMAND,), 1)
    assert "with one call of" in TOOLS.system((COMMAND,), 1) and "with one to 3 calls of" in TOOLS.system((COMMAND,), 3)


def test_codecs_are_made_by_name_and_an_unknown_name_lists_them():
    assert all(make_codec(name).name == name for name in CODECS if name != "native")
    assert make_codec("tags", think=False) == TagsCodec(think=False)
    known = "tags, brackets, native, search-r1, tools"
    with pytest.raises(UnknownName, match=f"unknown codec 'tag'. Nearest: 'tags'. Known: {known}"):
        make_codec("tag")
    with pytest.raises(UnknownName, match=r"unknown option of codec tags 'thinks'. Nearest: 'think'"):
        make_codec("tags", thinks=True)


def test_a_call_with_one_string_is_written_as_tool_and_brackets():
    tools = (CLICK, Tool.of_string("find", "Find.", "query", ""))
    for text in ("navy blue", "", "[x]", "a] b[", "{}", "buy now"):
        assert BRACKETS.write((ToolCall("click", {"element": text}),), tools=tools) == f"<action>click[{text}]</action>"
    assert BRACKETS.parse("<action> find [ red shoes ] </action>", tools, 1).action == (
        ToolCall("find", {"query": "red shoes"}),
    )
    assert BRACKETS.parse("<action>fly[x]</action>", tools, 1).action is None
    system = BRACKETS.system(tools, 1)
    assert "click[element]: Click an element." in system and "<action>tool[argument]</action>" in system


def test_what_brackets_cannot_hold_is_written_as_json():
    for arguments in ({"query": "x", "limit": 3}, {"query": " x"}, {"query": "</action>"}, {"query": 3}):
        assert '"arguments"' in BRACKETS.write((ToolCall("search", arguments),), tools=(SEARCH, CLICK))
