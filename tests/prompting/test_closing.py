"""Every prompt ends as the chat template says, so that text can be put into its last message."""

from __future__ import annotations

from typing import Any

import pytest
from families import FAMILIES, Family, tokenizer_of

from envsuite.core import Tool, ToolCall
from envsuite.core.errors import UsageError
from envsuite.prompting import Conversation, NativeCodec, PromptSpec, TagsCodec, TemplateRenderer, make_memory
from envsuite.prompting.closing import closings

TOOLS = (Tool.of_string("go", "Goes.", "to", ""),)
PLAIN, TOOLS_ONLY = {"DeepSeek V3.2"}, {"Hermes 2 Pro"}
"""Families whose templates end the result of a call with plain text; that render nothing without tools."""
SEEN: Any = {"task": "Find the key.", "text": "You are in the hall.", "commands": ()}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
@pytest.mark.parametrize("native", [False, True], ids=["tags", "native"])
def test_every_prompt_of_a_family_ends_with_a_closing(smol: Any, family: Family, native: bool) -> None:
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


def test_a_template_without_a_control_token_after_a_message_is_refused(smol: Any) -> None:
    tokenizer = tokenizer_of(smol, FAMILIES[1].file)
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}ASSISTANT:"
    with pytest.raises(UsageError, match="plain text, ' ASSISTANT:'"):
        closings(TemplateRenderer(tokenizer), TagsCodec())
