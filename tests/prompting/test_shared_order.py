"""Memories and prompt files made so that successive prompts begin with the same tokens."""

import pytest
from families import FAMILIES, codec_of
from hypothesis import given
from hypothesis import strategies as st
from test_conversation import LOOSE, TAGS, TEXTS, TOOL, UNICODE, conversation_of, observation, said

from envsuite.core import Observation, ToolCall
from envsuite.prompting import (
    Answer,
    Chat,
    Conversation,
    PromptSpec,
    Summary,
    ToolsCodec,
    Window,
    load_prompt_file,
)


def common(first, second):
    """The tokens with which both begin."""
    pairs = zip(first, second, strict=False)
    return first[: next((i for i, (one, other) in enumerate(pairs) if one != other), min(len(first), len(second)))]


def text_of(conversation):
    """Everything that the chat template gets, with marks between the messages."""
    return "\0".join(f"{message['role']}: {message['content']}" for message in conversation.messages())


@LOOSE
@given(
    texts=st.lists(st.one_of(TEXTS, UNICODE), min_size=2, max_size=9),
    k=st.integers(0, 3),
    block=st.integers(2, 4),
    commands=st.booleans(),
)
@pytest.mark.parametrize("template", [None, "shared"])
@pytest.mark.parametrize("codec", [TAGS, ToolsCodec()], ids=["tags", "tools"])
def test_all_of_a_prompt_up_to_its_observation_begins_the_next_one(words, codec, template, texts, k, block, commands):
    file = None if template is None else load_prompt_file(template)
    memory = Window(k, block)
    conversation = conversation_of(words, memory, codec, prompt_file=file)
    told = ("go", "take key") if commands else ()
    conversation.start(observation(f"{texts[0]}§0", told))
    for step, text in enumerate(texts[1:]):
        before, end = text_of(conversation), f"§{step}"
        conversation.add((), said(f"go {step}"), observation(f"{text}§{step + 1}", told))
        if memory.first(step) == memory.first(step + 1):
            assert text_of(conversation).startswith(before[: before.rindex(end) + len(end)])


@pytest.mark.parametrize("memory", [Window(1, 3), Summary(1, 3)], ids=str)
@pytest.mark.parametrize("template", [None, "shared"])
@pytest.mark.parametrize("family", FAMILIES, ids=[family.name for family in FAMILIES])
def test_with_any_chat_template_the_tokens_are_shared_as_the_text_is(smol, family, template, memory):
    codec = codec_of(smol, family)
    file = None if template is None else load_prompt_file(template)
    conversation = Conversation(codec.tokenizer, PromptSpec(codec, memory, prompt_file=file), (TOOL,))
    conversation.start(Observation(task="Find the key.", text="You see thing 0 here.", commands=("go", "look")))
    for step in range(7):
        before = conversation.prompt_ids()
        said_ = codec.write((ToolCall("act", {"command": f"go {step}"}),))
        seen = f"You see thing {step + 1} here."
        conversation.add(codec.tokenizer.encode(said_), said_, observation(seen, ("go", "look")))
        shared = codec.tokenizer.decode(common(before, conversation.prompt_ids()))
        assert "Find the key" in shared
        if memory.first(step) == memory.first(step + 1) and not isinstance(memory, Summary):
            assert f"You see thing {step} here" in shared
        if isinstance(memory, Summary) and step > memory.first(step + 1):
            assert f"You see thing {step - 1} here" in shared


@pytest.mark.parametrize("memory", [Window(1, 3), Summary(1, 3)], ids=str)
def test_an_endpoint_gets_the_messages_of_the_conversation(words, memory):
    conversation, chat = conversation_of(words, memory), Chat(PromptSpec(TAGS, memory), (TOOL,))
    for one in (conversation, chat):
        one.start(observation("room 0", ("go", "look")))
    for step in range(6):
        assert chat.messages() == conversation.messages()
        text = f"<summary>Room {step}.</summary>{said(f'go {step}')}"
        chat.add(Answer(text), observation(f"room {step + 1}"))
        conversation.add((), text, observation(f"room {step + 1}"))
