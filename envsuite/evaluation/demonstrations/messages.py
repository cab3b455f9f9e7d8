"""Demonstrations as chat messages, for trainers that take those."""

from __future__ import annotations

from typing import Any, Literal, get_args

import orjson

from envsuite.core.errors import UsageError
from envsuite.core.tools import UnparsedAction
from envsuite.evaluation.demonstrations.demonstration import Demonstration, DemonstrationStep
from envsuite.prompting import Answer, Chat, Codec, EndpointCodec, FullMemory, PromptSpec, RawCall, make_codec
from envsuite.prompting.codecs.base import reply_text
from envsuite.prompting.rendering import Messages

Form = Literal["native", "tags", "brackets", "tools"]
"""How messages hold calls: as ``tool_calls``, whose form the model's chat template knows; or as text, by the codec of
that name (:mod:`envsuite.prompting.codecs`)."""
FORMS: tuple[Form, ...] = get_args(Form)


def messages_of(
    demonstration: Demonstration, form: Form = "native", commands: bool = True
) -> tuple[Messages, list[dict[str, Any]] | None]:
    """Returns the messages of a demonstration, and the tools for the chat template.

    They are those of a rollout with the memory ``full``, up to the last action. A step that was no action is left out,
    as it has changed nothing.

    Args:
        demonstration: The demonstration.
        form: How calls are written. In text, tools and format are explained in the system message, and there are no
            tools for the template.
        commands: Show the admissible commands with each observation.

    Raises:
        UsageError: The tools change, which the form ``native`` cannot say: it has one list of tools.
    """
    steps = [step for step in demonstration.steps if not isinstance(step.action, UnparsedAction)]
    codec = _codec(form, thinks=any(step.thought for step in steps))
    chat = Chat(PromptSpec(codec, FullMemory(), commands=commands), demonstration.tools, demonstration.max_calls)
    chat.start(demonstration.first)
    for step in steps:
        native, tools = chat.chat_tools is not None, chat.chat_tools
        chat.add(_answer(step, codec, demonstration, native), step.observation)
        if native and step is not steps[-1] and chat.chat_tools != tools:
            raise UsageError(
                f"the tools of task {demonstration.task_id!r} of {demonstration.env_id} change, and the form native "
                "has one list of them; take the form tags or tools, which lists new ones where they come"
            )
    messages = chat.messages()
    if steps:
        while messages[-1]["role"] != "assistant":
            messages.pop()
    return _as_templates_take(messages), chat.chat_tools


def _codec(form: Form, thinks: bool) -> Codec:
    if form == "native":
        return EndpointCodec()
    return make_codec(form) if form == "tools" else make_codec(form, think=thinks)


def _answer(step: DemonstrationStep, codec: Codec, demonstration: Demonstration, native: bool) -> Answer:
    if not native:
        return Answer(codec.write(step.action, step.thought, tools=demonstration.tools))
    if (reply := reply_text(step.action, demonstration.tools)) is not None:
        return Answer("\n\n".join(filter(None, (step.thought, reply))))
    calls = (RawCall(call.name, orjson.dumps(dict(call.arguments)).decode()) for call in step.action)
    return Answer(step.thought, tuple(calls))


def _as_templates_take(messages: Messages) -> Messages:
    """Returns the messages with arguments as mappings, which every chat template takes, and results with names."""
    names: dict[str, str] = {}
    template_messages: Messages = []
    for message in messages:
        if calls := message.get("tool_calls"):
            template_calls = []
            for call in calls:
                name, arguments = call["function"]["name"], orjson.loads(call["function"]["arguments"])
                names[call["id"]] = name
                template_calls.append({**call, "function": {"name": name, "arguments": arguments}})
            message = {**message, "tool_calls": template_calls}
        elif message["role"] == "tool":
            message = {**message, "name": names[message["tool_call_id"]]}
        template_messages.append(message)
    return template_messages
