"""Conversations as chat messages: what is sent, and how an endpoint's answers are read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsuite.core import Observation, Tool, ToolCall, UsageError
from envsuite.core.tools import check_action
from envsuite.prompting import (
    Answer,
    Chat,
    Codec,
    CompactMemory,
    EndpointCodec,
    FullMemory,
    Memory,
    ParseResult,
    PromptFile,
    PromptSpec,
    RawCall,
    Summary,
    Window,
    make_codec,
)

TOOLS = (
    Tool("act", "Act in the world.", {"type": "object", "properties": {"command": {"type": "string"}}}),
    Tool("look", "Look.", {"type": "object", "properties": {}}),
)


def said(text: str, *commands: str) -> Observation:
    return {"task": "Find the key.", "text": text, "commands": commands}


def _chat(codec: Codec | None = None, memory: Memory | None = None, max_calls: int = 2, **options: Any) -> Chat:
    chat = Chat(PromptSpec(codec or EndpointCodec(), memory or FullMemory(), **options), TOOLS, max_calls)
    chat.start(said("A room.", "go", "wait"))
    return chat


def test_tools_and_calls_go_apart_from_the_text_and_each_call_gets_a_result_under_its_id():
    chat = _chat()
    assert chat.chat_tools == [tool.as_openai() for tool in TOOLS]
    answer = Answer("Two.", (RawCall("act", '{"command": "go"}', "a1"), RawCall("look", "", "a2")), thought="Hm.")
    assert chat.parse(answer) == ParseResult((ToolCall("act", {"command": "go"}), ToolCall("look", {})), None)
    chat.add(answer, said("A hall."))
    assert chat.messages() == [
        {"role": "system", "content": "Answer each observation with one to 2 tool calls."},
        {"role": "user", "content": "Find the key.\n\nA room.\nCommands: go | wait"},
        {
            "role": "assistant",
            "content": "Two.",
            "tool_calls": [
                {"id": "a1", "type": "function", "function": {"name": "act", "arguments": '{"command": "go"}'}},
                {"id": "a2", "type": "function", "function": {"name": "look", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "a1", "content": "See the result of the last call."},
        {"role": "tool", "tool_call_id": "a2", "content": "A hall."},
    ]


def test_calls_without_ids_or_with_one_twice_get_their_own():
    chat = _chat()
    for _ in range(2):
        chat.add(
            Answer("", (RawCall("look", "{}", ""), RawCall("look", "{}", "x"), RawCall("look", "{}", "x"))),
            said("."),
        )
    ids = [one["tool_call_id"] for one in chat.messages() if one["role"] == "tool"]
    assert ids == ["call00000", "x", "call00002", "call00003", "x", "call00005"]


@pytest.mark.parametrize(
    ("answer", "reason", "shown"),
    [
        (Answer("I wait."), "no tool call in the completion", "I wait."),
        (Answer(""), "no tool call in the completion", "(empty)"),
        (Answer("", (RawCall("", "{}"),)), "the call has no name", None),
        (Answer("", (RawCall("act", '{"command": "g'),)), "arguments of act: not JSON: ", None),
        (Answer("", (RawCall("act", "[1]"),)), "arguments of act: not a JSON object", None),
        (Answer("", (RawCall("act", '{"n": NaN}'),)), "arguments of act: not JSON: NaN is not JSON", None),
        (Answer("", (RawCall("act", "[" * 9999),)), "arguments of act: the JSON is nested too deeply", None),
        (Answer("", (RawCall("act", '"\\ud800"'),)), "arguments of act: not a JSON object", None),
        (
            Answer("", (RawCall("act", '{"n": "\\ud800"}'),)),
            "arguments of act: the call is not valid Unicode",
            None,
        ),
        (Answer("", (RawCall("look", "{}"), RawCall("act", "{"))), "arguments of act: not JSON", None),
    ],
)
def test_an_answer_without_a_sound_call_is_invalid_and_text_in_later_messages(answer, reason, shown):
    chat = _chat()
    parsed = chat.parse(answer)
    assert parsed.action is None and str(parsed.error).startswith(reason)
    chat.add(answer, said("Invalid action."))
    *_, assistant, user = chat.messages()
    assert (assistant["role"], "tool_calls" in assistant) == ("assistant", False)
    assert assistant["content"] == (answer.text if shown is None else shown)
    assert user == {"role": "user", "content": "Invalid action."}


def test_more_calls_than_allowed_are_invalid_but_keep_their_form():
    chat = _chat(max_calls=1)
    answer = Answer("", tuple(RawCall("look", "{}", f"i{n}") for n in range(2)))
    assert chat.parse(answer).error == "2 calls in one step, at most 1 allowed"
    chat.add(answer, said("Invalid action."))
    assert [one["role"] for one in chat.messages()[2:]] == ["assistant", "tool", "tool"]


@pytest.mark.parametrize("name", ["tags", "brackets", "tools"])
def test_other_codecs_read_the_text_and_send_no_tools(name):
    codec = make_codec(name)
    chat = _chat(codec)
    action = (ToolCall("act", {"command": "go"}),)
    content = codec.write(action, "Hm.", TOOLS)
    assert chat.chat_tools is None and chat.parse(Answer(content)).action == action
    apart = Answer(codec.write(action, "", TOOLS), thought="<action>never</action> Hm.</think>")
    assert chat.parse(apart).action == action, "a thought that the endpoint gives apart is no action"
    chat.add(apart, said("A hall."))
    first, _, assistant, user = chat.messages()
    assert first == {"role": "system", "content": codec.system(TOOLS, 2)}
    assert assistant == {"role": "assistant", "content": apart.content}
    assert user == {"role": "user", "content": "A hall."}


def test_a_window_is_one_user_message_with_the_last_actions():
    chat = _chat(memory=Window(1))
    for n in range(3):
        chat.add(Answer("", (RawCall("act", json.dumps({"command": f"go {n}"})),)), said(f"Room {n}.", "back"))
    chat.add(Answer("what?"), said("Invalid action.", "back"))
    _, user = chat.messages()
    shown = "Observation: Room 2.\nAction: none\nObservation: Invalid action.\nCommands: back"
    assert user == {"role": "user", "content": f"Find the key.\n\n{shown}"}


def test_a_summary_is_kept_and_a_prompt_file_rendered_with_the_examples():
    file = PromptFile("{{ examples }}|{{ instructions }}|{{ summary }}|{{ observation }}", "f")
    chat = _chat(make_codec("tags", think=False), Summary(0), prompt_file=file, examples="One.")
    chat.add(Answer("<summary>The key is here.</summary><action>look</action>"), said("A hall."))
    ((role, content),) = [(one["role"], one["content"]) for one in chat.messages()]
    examples, told, summary, seen = content.split("|")
    assert (role, examples, summary, seen) == ("user", "One.", "The key is here.", "A hall.")
    assert told.startswith("Tools:") and "<summary>" in told


def test_examples_stand_below_the_instructions():
    codec = make_codec("tags")
    assert _chat(codec, examples="One.").messages()[0]["content"] == codec.system(TOOLS, 2) + "\n\nOne."
    assert _chat(codec, examples="One.", instructions=False).messages()[0]["content"] == "One."
    assert _chat(codec, instructions=False).messages()[0]["role"] == "user"


def test_what_needs_tokens_or_a_chat_template_is_refused():
    with pytest.raises(UsageError, match=r"compact\(5\) counts tokens"):
        _chat(memory=CompactMemory(5))
    with pytest.raises(UsageError, match="before start"):
        Chat(PromptSpec(EndpointCodec(), FullMemory()), TOOLS).messages()


TEXT = st.text(st.characters(), max_size=20)  # lone surrogates included


@given(st.lists(st.tuples(TEXT, TEXT, st.lists(st.tuples(TEXT, TEXT | st.just("{}"), TEXT), max_size=3)), max_size=4))
def test_any_answers_give_messages_in_which_every_call_has_a_result(turns):
    chat = _chat()
    for content, thought, calls in turns:
        answer = Answer(content, tuple(RawCall(*call) for call in calls), thought)
        parsed = chat.parse(answer)
        assert (parsed.action is None) != (parsed.error is None)
        if parsed.action is not None:
            check_action(parsed.action, TOOLS, 2)
        chat.add(answer, said("."))
    wanted: list[str] = []
    for message in chat.messages():
        if message["role"] == "tool":
            assert message["tool_call_id"] == wanted.pop(0)
            continue
        assert not wanted and (message["content"] or message["tool_calls"])
        wanted = [call["id"] for call in message.get("tool_calls", ())]
        assert len(set(wanted)) == len(wanted)
        assert all(
            isinstance(json.loads(call["function"]["arguments"]), dict) for call in message.get("tool_calls", ())
        )
    assert not wanted
