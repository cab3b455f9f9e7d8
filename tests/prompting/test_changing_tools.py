"""Tools that change in mid-conversation, and replies without a call: each codec, memory and kind of prompt follows."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from bakery_world import BAKE, KNEAD, SELL, Bakery, bake, reply
from families import FAMILIES, codec_of, tokenizer_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envsuite.core import ToolCall, UsageError
from envsuite.core.tools import REPLY
from envsuite.evaluation.demonstrations.demonstration import Demonstration
from envsuite.evaluation.demonstrations.messages import messages_of
from envsuite.evaluation.demonstrations.playing import take_step
from envsuite.prompting import Answer, Chat, Codec, Conversation, EndpointCodec, PromptSpec, make_codec, make_memory
from envsuite.prompting.chat import RawCall

TEXTUAL = ("tags", "brackets", "tools", "search-r1")
NATIVE = ("Qwen3", "Qwen3-Coder", "Llama 3.1", "Mistral 7B v0.3", "Gemma 4", "SmolLM2")
MEMORIES = ("window(2)", "summary(1)", "full", "compact(100000)", "rendered")


@pytest.fixture(scope="session")
def codec_and_tokenizer(smol: Any) -> Any:
    """Makes each codec with a tokenizer that it goes with; native ones by the names of families."""

    @cache
    def make(name: str) -> tuple[Codec, Any]:
        if name in TEXTUAL:
            return make_codec(name), tokenizer_of(smol, "smollm2")
        codec = codec_of(smol, next(family for family in FAMILIES if family.name == name))
        return codec, codec.tokenizer

    return make


def lists(text: str) -> set[str]:
    """The tools whose description a text has."""
    return {tool.name for tool in (KNEAD, SELL, BAKE) if tool.description in text}


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("name", [*TEXTUAL, *NATIVE])
def test_prompts_list_the_tools_of_their_time(codec_and_tokenizer, name, memory):
    codec, tokenizer = codec_and_tokenizer(name)
    env, prompts = Bakery(), list[tuple[int, ...]]()
    talk = Conversation(tokenizer, PromptSpec(codec, make_memory(memory)), env.tools, env.max_calls)
    talk.start(env.reset()[0])
    for action in (reply("First."), bake(), (ToolCall("sell", {"thing": "bun"}),)):
        prompts.append(talk.prompt_ids())
        text = codec.write(action, tools=env.offered)
        assert talk.parse(text).action == tuple(action)
        ids = [*tokenizer.encode(text, add_special_tokens=False), *talk.end]
        token = talk.snapshot()
        talk.add(ids, tokenizer.decode(ids, skip_special_tokens=not codec.special_tokens), env.step(action)[0])
        after = talk.prompt_ids()
        talk.restore(token)
        assert talk.prompt_ids() == prompts[-1], "a branch starts with the tools of its time"
        talk.add(ids, tokenizer.decode(ids, skip_special_tokens=not codec.special_tokens), env.observation)
        assert talk.prompt_ids() == after
        prompts.append(after)
    texts = [tokenizer.decode(list(ids)) for ids in prompts]
    assert lists(texts[0]) == {"knead", "sell"}
    if talk.continues_prompts and memory != "rendered":
        assert prompts[1][: len(prompts[0])] == prompts[0] and prompts[3][: len(prompts[1])] == prompts[1]
        new = texts[1][len(texts[0]) :]
        repeats = {"sell"} if "Mistral" in name else set()  # its template lists the tools before each text of a user
        assert lists(new) == {"bake"} | repeats and "Tools that are gone: knead." in new
        assert "New tools" not in texts[3][len(texts[1]) :]
    else:
        assert lists(texts[1]) == lists(texts[3]) == {"sell", "bake"}
        assert "Tools that are gone" not in texts[1]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(text=st.text("ab é.,!?\n\"'{}[]", max_size=40), thought=st.sampled_from(["", "hm, well"]))
@pytest.mark.parametrize("name", [*TEXTUAL, *NATIVE])
def test_a_text_without_a_call_is_a_reply_where_there_is_one(codec_and_tokenizer, name, text, thought):
    codec, _ = codec_and_tokenizer(name)
    plain = f"<think>{thought}</think>{text}" if name in TEXTUAL and thought else text
    if name not in TEXTUAL and codec.dialect.thinks:
        return  # what stands before the thought ends is the thought
    parsed = codec.parse(plain, Bakery.tools, 2)
    if parsed.action is not None:
        assert parsed.action == (ToolCall("reply", {"text": text.strip()}),)
        assert codec.parse(codec.write(parsed.action, "", Bakery.tools), Bakery.tools, 2).action == parsed.action
    assert parsed.action is not None or name not in TEXTUAL
    assert codec.parse(plain, (KNEAD, SELL), 2).error is not None, "nowhere else"


@pytest.mark.parametrize(
    ("name", "attempt"),
    [
        ("tags", "<action>knead"), ("tags", "<action>{}</action>"), ("tags", "<think>Never closed. knead"),
        ("tools", "<tool_call>{</tool_call>"), ("search-r1", "<knead>dough"), ("Qwen3", "<tool_call>{</tool_call>"),
    ],
)  # fmt: skip
def test_what_is_meant_as_a_call_is_no_reply(codec_and_tokenizer, name, attempt):
    parsed = codec_and_tokenizer(name)[0].parse(attempt, Bakery.tools, 2)
    assert parsed.action is None and parsed.error


@pytest.mark.parametrize("name", NATIVE)
def test_after_a_reply_the_user_speaks_and_no_tool_is_listed_for_it(codec_and_tokenizer, name):
    codec, _ = codec_and_tokenizer(name)
    assert codec.reply(codec.turn(codec.text("Done."), Bakery.tools), "Next?")["role"] == "user"
    assert REPLY.name not in [tool["function"]["name"] for tool in codec.chat_tools(Bakery.tools)]
    assert "text without a call" in codec.system(Bakery.tools, 1)


@pytest.mark.parametrize("memory", ["window(1)", "full", "rendered"])
@pytest.mark.parametrize("native", [True, False])
def test_requests_to_an_endpoint_have_the_tools_of_their_time(native, memory):
    codec: Codec = EndpointCodec() if native else make_codec("tags")
    env = Bakery()
    chat = Chat(PromptSpec(codec, make_memory(memory)), env.tools, env.max_calls)
    chat.start(env.reset()[0])

    def told() -> set[str]:
        return lists(json.dumps(chat.messages()) + json.dumps(chat.chat_tools))

    assert told() == {"knead", "sell"} and (chat.chat_tools is not None) == native
    parsed = chat.parse(Answer("First."))
    assert parsed.action == reply("First.")
    chat.add(Answer("First."), env.step(parsed.action)[0], parsed)
    assert told() == ({"knead", "sell", "bake"} if memory == "full" and not native else {"sell", "bake"})
    assert chat.messages()[-1]["role"] == "user"
    call = Answer("", (RawCall("bake", '{"bread": "rye"}'),)) if native else Answer(codec.write(bake()))
    assert chat.parse(call).action == bake()


def test_demonstrations_list_new_tools_where_they_come_and_the_native_form_is_refused():
    env = Bakery()
    first, info = env.reset()
    steps = []
    for action in (reply("First."), bake(), reply("Second.")):
        step, info = take_step(env, action)
        steps.append(step)
    made = Demonstration.of(env, first, steps, info, env_options={}, player="expert")
    read = Demonstration.from_json(made.to_json())
    assert read == made and read.steps[0].observation["tools"] == ("sell", "bake", "reply")
    assert {tool.name for tool in read.tools} == {"knead", "sell", "bake", "reply"}
    messages, tools = messages_of(read, "tools")
    assert tools is None and BAKE.description not in messages[0]["content"]
    assert BAKE.description in messages[3]["content"] and messages[3]["role"] == "user"
    with pytest.raises(UsageError, match="the tools of task 'rye' of Bakery-v0 change, and the form native has one"):
        messages_of(read, "native")
