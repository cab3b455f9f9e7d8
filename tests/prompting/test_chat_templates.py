"""The chat templates of this package, which give tools to models whose own template has none."""

from __future__ import annotations

import copy

import pytest

from envsuite.core import Observation, Tool, ToolCall
from envsuite.prompting import Conversation, PromptSpec, departure, make_codec, make_memory
from envsuite.prompting.shipped import read_template, shipped

FOLDER = "chat_templates"
TOOL = Tool(
    "act",
    "Act in the world.",
    {"type": "object", "properties": {"command": {"type": "string", "description": "What to do."}}},
)
CALLS = (
    [ToolCall("act", {"command": 'say "é"\n</tool_call>'})],
    [ToolCall("act", {"command": "go"}), ToolCall("act", {"command": "look"})],
    [ToolCall("act", {})],
)


@pytest.fixture(params=shipped(FOLDER))
def templated(request: pytest.FixtureRequest, smol):
    """SmolLM2's tokenizer with the template, and the name of the template."""
    tokenizer = copy.deepcopy(smol)
    tokenizer.chat_template = read_template(request.param, FOLDER, "chat template")
    return tokenizer, request.param


def test_without_tools_a_conversation_looks_as_in_the_model_s_own_template(smol, templated) -> None:
    tokenizer, name = templated
    assert name == "smollm2", "another model's template is compared with its own"
    talk = [{"role": role, "content": f"Text of the {role}."} for role in ("system", "user", "assistant", "user")]
    for messages in (talk, talk[1:]):
        for prompt in (True, False):
            ours, own = (
                one.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
                for one in (tokenizer, smol)
            )
            assert ours == own


def test_calls_are_read_as_the_template_writes_them(templated) -> None:
    tokenizer, _ = templated
    codec = make_codec("native", tokenizer=tokenizer)
    for calls in CALLS:
        text = codec.write(calls, tools=[TOOL])
        ids = [*tokenizer.encode(text), *codec.stop_ids]
        assert codec.parse(tokenizer.decode(ids), [TOOL], 2).action == tuple(calls)
        assert codec.parse(f"I think.\n{tokenizer.decode(ids)}", [TOOL], 2).action == tuple(calls)
    assert codec.parse("<tool_call>[]</tool_call>", [TOOL], 2).action is None
    assert codec.parse('{"name": "act", "arguments": {}}', [TOOL], 2).action is None


def test_ten_turns_extend_each_other_token_by_token_and_equal_the_whole_conversation(templated) -> None:
    tokenizer, _ = templated
    codec = make_codec("native", tokenizer=tokenizer)
    assert departure(codec) is None
    append, whole = (
        Conversation(tokenizer, PromptSpec(codec, make_memory(name)), [TOOL], 2) for name in ("full", "rendered")
    )
    first = Observation(task="Find the key.", text="You see a door.", commands=("go", "look"))
    append.start(first)
    whole.start(first)
    assert "Act in the world." in tokenizer.decode(append.prompt_ids())
    for turn in range(10):
        text = "No call." if turn in (3, 4) else codec.write(CALLS[turn % 3], tools=[TOOL])
        ids = [*tokenizer.encode(text), *codec.stop_ids]
        before = append.prompt_ids()
        told = Observation(task="Find the key.", text=f'Error: "{turn}" <|im_end|> {{}}', commands=())
        for one in (append, whole):
            one.add(ids, tokenizer.decode(ids), told)
        assert append.prompt_ids()[: len(before) + len(ids)] == (*before, *ids)
        assert append.prompt_ids() == whole.prompt_ids()
