"""Where prompts that continue each other part from what the chat template renders."""

from __future__ import annotations

from envsuite.core.env import Observation
from envsuite.core.tools import Tool, ToolCall
from envsuite.prompting.codecs.native import NativeCodec
from envsuite.prompting.conversation import Conversation
from envsuite.prompting.memory import FullMemory, RenderedMemory
from envsuite.prompting.rendering import TemplateRefused
from envsuite.prompting.spec import PromptSpec

_TOOL = Tool.of_string("look", "Look at a thing.", "thing", "The thing.")


def departure(codec: NativeCodec) -> str | None:
    """Plays a short episode and compares its prompts with the template's rendering of the whole conversation.

    The prompts of :class:`~envsuite.prompting.FullMemory` continue each other token by token, whatever the template
    does. A template that leaves out earlier thoughts, say, would itself write another prompt.

    Returns:
        The step, and the first token that differs; ``None`` if both are equal at every step.
    """
    thought = "A thought." if codec.dialect.thinks else ""
    responses = [codec.write([ToolCall("look", {"thing": word})], thought, [_TOOL]) for word in ("door", "key")]
    specs = (PromptSpec(codec, FullMemory()), PromptSpec(codec, RenderedMemory()))
    ours, whole = (Conversation(codec.tokenizer, spec, (_TOOL,)) for spec in specs)
    first = Observation(task="Find the key.", text="You see a door.", commands=())
    ours.start(first)
    whole.start(first)
    for step, response in enumerate((*responses, codec.text("No call."), *responses), start=1):
        ids = [*codec.tokenizer.encode(response, add_special_tokens=False), *codec.end_ids(response, (_TOOL,))]
        for conversation in (ours, whole):
            conversation.add(ids, response, Observation(task="Find the key.", text="You see a key.", commands=()))
        try:
            problem = _first_difference(codec, ours.prompt_ids(), whole.prompt_ids())
        except TemplateRefused as error:
            problem = str(error)
        if problem is not None:
            kind = "without a call" if step == len(responses) + 1 else "with a call"
            return f"after a response {kind} (step {step}), {problem}"
    return None


def _first_difference(codec: NativeCodec, ours: tuple[int, ...], whole: tuple[int, ...]) -> str | None:
    decode = codec.tokenizer.decode
    if ours == whole or decode(list(ours)) == decode(list(whole)):
        return None
    at = next((i for i, (a, b) in enumerate(zip(ours, whole, strict=False)) if a != b), min(len(ours), len(whole)))
    mine, theirs = (decode(list(ids[at : at + 1])) for ids in (ours, whole))
    return f"token {at} is {mine!r}, and {theirs!r} in the template's rendering of the whole conversation"
