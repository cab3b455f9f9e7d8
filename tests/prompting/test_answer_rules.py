"""The rules by which verl-agent reads answers, as options of the codecs in tags."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_conversation import TOOL

from envsuite.core import Tool, ToolCall
from envsuite.prompting import BracketsCodec, TagsCodec

SHOP = (Tool.of_string("search", "", "query", ""), Tool.of_string("click", "", "element", ""))
LINES = st.text(st.characters(codec="ascii", categories=["L", "N", "Zs"]), min_size=1).filter(str.strip)


def read(codec, text, tools=(TOOL,)):
    parsed = codec.parse(text, tools, 1)
    return parsed.error if parsed.action is None else dict(parsed.action[0].arguments)


@pytest.mark.parametrize("codec", [TagsCodec, BracketsCodec])
@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("<think>Go.</think><action>go</action>", True),
        ("<think></think>\n<action>go</action>", True),
        ("Go. <think>x</think> <action>go</action>", True),
        ("<action>go</action>", False),
        ("Go.</think><action>go</action>", False),
        ("</think><think>Go.<action>go</action>", False),
        ("<think>Go.<action>go</action>", False),
        ("", False),
    ],
)
def test_a_missing_thought_makes_an_answer_invalid_on_demand(codec, text, valid):
    error = "no <think>…</think> in the completion"
    assert read(codec(require_thought=True), text) == ({"command": "go"} if valid else error)
    assert read(codec(), text) == ({"command": "go"} if text else "no <action>…</action> in the completion")


@given(thought=LINES | st.just(""), command=LINES, lowercase=st.booleans(), required=st.booleans())
def test_what_is_written_is_read_back_but_for_case(thought, command, lowercase, required):
    codec = TagsCodec(lowercase=lowercase, require_thought=required)
    text = codec.write((ToolCall("act", {"command": command.strip()}),), thought, (TOOL,))
    assert read(codec, text) == {"command": command.strip().lower() if lowercase else command.strip()}


TAGS = "<think> </think> </THINK> <action> <ACTION> </action> Go İ".split()
CALL = '<action>{"name": "act", "arguments": {"command": "GO"}}</action>'


@pytest.mark.parametrize(("codec", "tools"), [(TagsCodec, (TOOL,)), (BracketsCodec, SHOP)])
@given(text=st.text() | st.lists(st.sampled_from([*TAGS, CALL, "Click[Buy Now]", "Search[Red Shoes]"])).map("".join))
def test_the_rules_only_ever_refuse_more_or_lower_the_case(codec, tools, text):
    plain, strict = codec().parse(text, tools, 1), codec(require_thought=True).parse(text, tools, 1)
    assert strict == plain or (strict.action is None and "<think>" in str(strict.error))
    lowered = codec(lowercase=True).parse(text, tools, 1)
    assert lowered == codec().parse(text.lower(), tools, 1)
