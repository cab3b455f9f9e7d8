"""The rules by which verl-agent reads answers, as options of the codecs in tags.

Search-R1's format: a tag for each tool, results as information in the model's own turn.

Planned answers: their blocks, and the codecs that ask for them.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_conversation import TOOL

from envsuite.core import Observation, Tool, ToolCall, UsageError
from envsuite.prompting import BracketsCodec, Conversation, PromptSpec, TagsCodec, make_codec, make_memory
from envsuite.prompting.codecs.base import ParseResult
from envsuite.prompting.codecs.search import SearchR1Codec
from envsuite.prompting.plan import BLOCKS, read_plan
from envsuite.searchqa.env import SearchQAEnv

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


CODEC = SearchR1Codec()
TOOLS = SearchQAEnv.tools
OTHER = Tool(
    "sum",
    "Adds.",
    {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]},
)


def search(query: str) -> ToolCall:
    return ToolCall("search", {"query": query})


@pytest.mark.parametrize(
    ("completion", "wanted"),
    [
        ("<think>x</think><search> old film </search>", search("old film")),
        ("<search>a</search><answer>b</answer>", search("a")),
        ("<think><search>no</search></think>\n<answer>Rome</answer><|im_end|>", ToolCall("answer", {"text": "Rome"})),
        ("<answer>a <search>b</search></answer><search>c</search>", search("c")),
        ("<answer>never <search>c\nd</search>", search("c\nd")),
        ("<search></search>", search("")),
        ("plain text", "no <search>…</search> or <answer>…</answer> in the completion"),
        ("<search>never", "<search> is never closed"),
        ("<SEARCH>a</SEARCH>", "no <search>…</search> or <answer>…</answer> in the completion"),
        ("<search>\ud800</search>", "the query is not valid Unicode"),
    ],
)
def test_the_first_well_formed_tag_after_the_thought_is_the_action(completion, wanted):
    expected = ParseResult((wanted,), None) if isinstance(wanted, ToolCall) else ParseResult(None, wanted)
    assert CODEC.parse(completion, TOOLS, 4) == expected and CODEC.parse(completion, (), 4).action is None


@given(st.text(max_size=30), st.text(max_size=20).filter(lambda thought: "</think>" not in thought))
def test_what_is_written_is_read_back(query, thought):
    try:
        written = CODEC.write((search(query),), thought, TOOLS)
    except UsageError:
        assert query != query.strip() or "<" in query
    else:
        assert CODEC.parse(written, TOOLS, 1) == ParseResult((search(query),), None)


def test_other_tools_take_json_and_several_calls_are_refused():
    call = ToolCall("sum", {"a": 1, "b": 2})
    assert CODEC.write((call,)) == '<sum>{"a": 1, "b": 2}</sum>'
    assert CODEC.parse('<sum>{"a": 1, "b": 2}</sum>', (OTHER,), 1) == ParseResult((call,), None)
    assert CODEC.parse("<sum>1</sum>", (OTHER,), 1).error == "not a JSON object"
    with pytest.raises(UsageError, match="one call, not 2"):
        CODEC.write((search("a"), search("b")))


def test_prompts_grow_token_by_token_with_information_in_the_model_s_turn(smol):
    conversation = Conversation(smol, PromptSpec(make_codec("search-r1"), make_memory("full")), TOOLS, 1)
    conversation.start(Observation(task="Question: Who?", text="Nothing yet.", commands=()))
    before = conversation.prompt_ids()
    for completion, text, said in (
        ("<think>Hm.</think>\n<search>who</search>", "Doc 1 <|im_end|>", "<information>Doc 1 <|im_end|></information>"),
        ("<find>who</find>", "Invalid action.", "Invalid action."),
    ):
        response = smol.encode(completion, add_special_tokens=False)
        conversation.add(response, completion, Observation(task="Question: Who?", text=text, commands=()))
        prompt = conversation.prompt_ids()
        assert prompt[: len(before) + len(response)] == (*before, *response)
        assert smol.decode(prompt[len(before) + len(response) :]) == f"\n\n{said}\n\n"
        assert prompt.count(smol.eos_token_id) == before.count(smol.eos_token_id), "no result ends a turn"
        before = prompt


COMMAND = [Tool.of_string("act", "Act.", "command", "")]
ANSWER = "<think>so</think><switch>SWITCH</switch><subgoal>find a mug</subgoal><action>look</action>"
pieces = st.lists(
    st.sampled_from(
        [*(f"<{slash}{name}>" for name in (*BLOCKS, "think") for slash in ("", "/")), "KEEP", " ", "<", "İ", "go"]
    ),
    max_size=24,
).map("".join)


@given(st.one_of(pieces, st.text()), st.booleans())
def test_blocks_are_closed_follow_each_other_and_come_after_the_thought(answer, lowercase):
    plan = read_plan(answer, lowercase)
    thought = answer.find("</think>") if not lowercase else -1
    end = thought + len("</think>") if thought >= 0 else 0
    for name in BLOCKS:
        if name in plan.spans:
            begin, after = plan.spans[name]
            text = answer[begin:after].lower() if lowercase else answer[begin:after]
            assert text.startswith(f"<{name}>") and text.endswith(f"</{name}>") and begin >= end
            assert text.count(f"</{name}>") == 1, "it ends where it is first closed"
            end = after
    assert not plan.switch or "switch" in plan.spans
    assert (plan.subgoal is not None) == ("subgoal" in plan.spans)


@given(pieces, st.booleans())
def test_a_plan_changes_no_action_that_is_read(answer, lowercase):
    one, other = (make_codec("tags", plan=plan, lowercase=lowercase) for plan in (False, True))
    assert one.parse(answer, COMMAND, 1) == other.parse(answer, COMMAND, 1)
    assert isinstance(other.format_past_step(answer, None), str)


@pytest.mark.parametrize(
    ("text", "switch"),
    [("SWITCH", True), ("KEEP", False), (" keep ", False), ("", False), ("  ", False), ("yes", True)],
)
def test_all_but_keep_and_nothing_is_a_switch(text, switch):
    assert read_plan(f"<switch>{text}</switch><subgoal>a</subgoal>").switch is switch
    assert not read_plan("<subgoal>a</subgoal><action>b</action>").switch


def test_tags_in_capitals_are_found_where_answers_are_read_in_lower_case():
    assert not read_plan(ANSWER.upper()).spans
    assert read_plan(ANSWER.upper(), lowercase=True) == read_plan(ANSWER, lowercase=True).__class__(
        read_plan(ANSWER).spans, True, "FIND A MUG"
    )


def test_instructions_show_the_form_and_a_history_the_subgoal():
    for name in ("tags", "brackets"):
        codec = make_codec(name, plan=True)
        told = codec.system(COMMAND, 1)
        form = next(line for line in told.splitlines() if "<action>" in line)
        assert list(read_plan(form).spans) == list(BLOCKS) and "KEEP" in told and "SWITCH" in told
        assert "<switch>" not in make_codec(name).system(COMMAND, 1)
        look = (ToolCall("act", {"command": "look"}),)
        assert codec.format_past_step(ANSWER, look) == f"<subgoal>find a mug</subgoal>{codec.show(look)}"
        assert codec.format_past_step("<action>look</action>", look) == codec.show(look)
        assert codec.format_past_step("?", None) == "none"
