"""Search-R1's format: a tag for each tool, results as information in the model's own turn."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsuite.core import Observation, Tool, ToolCall, UsageError
from envsuite.prompting import Conversation, PromptSpec, make_codec, make_memory
from envsuite.prompting.codecs.base import ParseResult
from envsuite.prompting.codecs.search import SearchR1Codec
from envsuite.searchqa.env import SearchQAEnv

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
def test_the_first_well_formed_tag_after_the_thought_is_the_action(completion: str, wanted: Any) -> None:
    expected = ParseResult((wanted,), None) if isinstance(wanted, ToolCall) else ParseResult(None, wanted)
    assert CODEC.parse(completion, TOOLS, 4) == expected and CODEC.parse(completion, (), 4).action is None


@given(st.text(max_size=30), st.text(max_size=20).filter(lambda thought: "</think>" not in thought))
def test_what_is_written_is_read_back(query: str, thought: str) -> None:
    try:
        written = CODEC.write((search(query),), thought, TOOLS)
    except UsageError:
        assert query != query.strip() or "<" in query
    else:
        assert CODEC.parse(written, TOOLS, 1) == ParseResult((search(query),), None)


def test_other_tools_take_json_and_several_calls_are_refused() -> None:
    call = ToolCall("sum", {"a": 1, "b": 2})
    assert CODEC.write((call,)) == '<sum>{"a": 1, "b": 2}</sum>'
    assert CODEC.parse('<sum>{"a": 1, "b": 2}</sum>', (OTHER,), 1) == ParseResult((call,), None)
    assert CODEC.parse("<sum>1</sum>", (OTHER,), 1).error == "not a JSON object"
    with pytest.raises(UsageError, match="one call, not 2"):
        CODEC.write((search("a"), search("b")))


def test_prompts_grow_token_by_token_with_information_in_the_model_s_turn(smol: Any) -> None:
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
