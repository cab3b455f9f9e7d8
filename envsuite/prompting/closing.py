"""The end of a prompt: what a chat template puts after the last message, so that text can be put into the message."""

from __future__ import annotations

from envsuite.core.errors import UsageError
from envsuite.core.tools import Tool, ToolCall
from envsuite.prompting.codecs.base import Codec, CodecTurn
from envsuite.prompting.rendering import Messages, TemplateRenderer, ids_of, specials_of
from envsuite.prompting.template import MARK

Closing = tuple[int, ...]
"""Token ids from the first control token after a message's text to the end of the generation prompt."""

_TOOL = Tool("tool_name", "Does nothing.", {"type": "object", "properties": {"argument": {"type": "string"}}})
_CALL = ToolCall("tool_name", {"argument": "value"})


def closings(render: TemplateRenderer, codec: Codec) -> tuple[Closing, ...]:
    """Returns the closings that the prompts of a codec may have, the longest first.

    They are found by rendering: a first message, a later one, and results of calls where the codec has those as
    messages of their own. A control token is tokenised alike whatever stands before it, so that every prompt ends with
    one of them.

    Raises:
        UsageError: The chat template has no control token after a message, or its tokens depend on the message.
    """
    user: Messages = [{"role": "user", "content": MARK}]
    earlier: Messages = [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Hello."}]
    prompts: list[str] = []
    for messages in (user, [*earlier, *user]):  # some templates want tools, others none
        texts = [text for tools in (None, [_TOOL.as_openai()]) if (text := render.attempt(messages, tools)) is not None]
        prompts += texts[:1]
    if not prompts:
        render(user, None)  # says why the template refuses
    if (after_text := codec.after(CodecTurn(earlier[1]), MARK, ())) is not None:
        after_call = codec.after(codec.turn(codec.write((_CALL,)), ()), MARK, ())
        prompts += [text for text in (after_text, after_call) if text is not None]
    return tuple(sorted({_closing(render, text) for text in prompts}, key=lambda end: (-len(end), end)))


def _closing(render: TemplateRenderer, text: str) -> Closing:
    tail = text.rpartition(MARK)[2]
    control = specials_of(render.tokenizer).search(tail)
    if control is None:
        raise UsageError(
            f"the chat template ends a message with plain text, {tail!r}, which a tokenizer may merge with the "
            "message; it takes a template with a control token there, such as <|im_end|>"
        )
    end = ids_of(render.tokenizer, tail[control.start() :])
    if ids_of(render.tokenizer, text)[-len(end) :] != end:
        raise UsageError(f"the tokens of the chat template's end of a message, {tail!r}, depend on the message")
    return tuple(end)
