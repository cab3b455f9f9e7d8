"""OpenAI's responses without stored state: requests read, answers written."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from envsuite.core.tools import ToolCall
from trainers.gateway.messages import Message, ParsedRequest
from trainers.gateway.openai_api import head, json_of, masking, message_in, pieces, problem, strict, tool
from trainers.gateway.reading import Fields, canonical, episode_of, wrong
from trainers.gateway.session import AnswerChoice, AnsweredRequest, Session

__all__ = ["answer", "chunks", "problem", "read"]
_STATE = ("previous_response_id", "conversation", "prompt", "background")
_HARMLESS = ("store", "include", "user", "safety_identifier", "prompt_cache_key", "service_tier", "stream_options")
"""Fields that change nothing; answers are not stored, whatever ``store`` says."""


def read(fields: Fields) -> ParsedRequest:
    """Reads a request; two are the same as in :func:`trainers.gateway.openai_api.read`.

    Raises:
        Refused: It is not as OpenAI has them, or asks for stored state or what a text model cannot give.
    """
    for name in fields.present_names(*_STATE):
        raise wrong(name, "no state is stored; send the whole conversation as input", "unsupported_parameter")
    tools = tuple(tool(entry, flat=True) for entry in fields.objects("tools"))
    text = fields.object("text")
    formats = ("text.format",) if text.object("format").value.get("type", "text") != "text" else ()
    return ParsedRequest(
        model=fields.need("model", str),
        messages=tuple(_messages(fields)),
        tools=tools,
        max_tokens=fields.may("max_output_tokens", int, 1),
        masking=(*masking(fields, tools), *formats),
        replaced=fields.present_names("temperature", "top_p"),
        **episode_of(fields),
        body=b"responses" + canonical(fields, "stream", "store", "stream_options", "service_tier"),
        shown={"stream": fields.may("stream", bool), "tools": fields.get("tools") or []},
        ignored=(*strict(fields), *text.unread(), *fields.unread(*_HARMLESS)),
    )


def _messages(fields: Fields) -> Iterator[Message]:
    """Yields the messages of the items; the items of one answer of the model are one message."""
    if fields.present_names("instructions"):
        yield Message("system", fields.need("instructions", str))
    if isinstance(text := fields.get("input"), str):
        yield Message("user", text)
        return
    reply: Message | None = None
    for message in map(_message, fields.objects("input")):
        if reply is not None and _continues(reply, message):
            thought = "\n".join(filter(None, (reply.thought, message.thought)))
            reply = replace(reply, text=reply.text or message.text, calls=reply.calls + message.calls, thought=thought)
            continue
        if reply is not None:
            yield reply
        reply = message
    if reply is not None:
        yield reply


def _continues(reply: Message, item: Message) -> bool:
    """Whether an item is of the same answer: these are a thought, then a text, then calls."""
    return reply.role == item.role == "assistant" and bool(item.calls or not (reply.calls or reply.text))


def _message(item: Fields) -> Message:
    kind = item.may("type", str) or "message"
    if kind == "function_call":
        call = ToolCall(item.need("name", str), item.json("arguments"))
        return Message("assistant", calls=((call, item.need("call_id", str)),))
    if kind == "function_call_output":
        return Message("tool", item.content("output"), call_id=item.need("call_id", str))
    if kind == "reasoning":
        parts = item.objects("content") or item.objects("summary")
        return Message("assistant", thought="\n".join(part.need("text", str) for part in parts))
    if kind != "message":
        what = f"is {kind[:40]!r}; served are message, function_call, function_call_output and reasoning"
        raise wrong(item.path("type"), what, "unsupported_parameter")
    return message_in(item)


def answer(
    session: Session, request: AnsweredRequest, choices: Sequence[AnswerChoice], shown: Mapping[str, Any]
) -> dict[str, Any]:
    """The answer as a whole; the arguments are those of :func:`trainers.gateway.openai_api.answer`."""
    (choice,) = choices
    about = head(session, request, choices, "response")
    name = about["id"].removeprefix("chatcmpl-")
    cut = choice.finish_reason == "length"
    prompt, answer_tokens = len(request.prompt.ids), choice.completion.count
    return {
        "id": f"resp_{name}", "object": "response", "created_at": about["created"], "model": about["model"],
        "status": "incomplete" if cut else "completed", "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": list(_items(choice.message, name, "incomplete" if cut else "completed")),
        "tools": shown["tools"], "tool_choice": "auto",
        "parallel_tool_calls": True, "metadata": {}, "instructions": None, "store": False,
        "usage": {
            "input_tokens": prompt, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": answer_tokens,
            "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": prompt + answer_tokens,
        },
    }  # fmt: skip


def _items(message: Message, name: str, status: str) -> Iterator[dict[str, Any]]:
    if message.thought:
        part: dict[str, Any] = {"type": "reasoning_text", "text": message.thought}
        yield {"id": f"rs_{name}", "type": "reasoning", "status": status, "summary": [], "content": [part]}
    if message.text or not message.calls:
        part = {"type": "output_text", "text": message.text, "annotations": [], "logprobs": []}
        yield {"id": f"msg_{name}", "type": "message", "status": status, "role": "assistant", "content": [part]}
    for i, (call, call_id) in enumerate(message.calls):
        about = {"id": f"fc_{name}_{i}", "type": "function_call", "status": status, "call_id": call_id}
        yield {**about, "name": call.name, "arguments": json_of(call)}


def chunks(
    session: Session, request: AnsweredRequest, choices: Sequence[AnswerChoice], shown: Mapping[str, Any]
) -> Iterator[bytes]:
    """The answer as a stream of events."""
    numbers = itertools.count()

    def event(kind: str, **fields: Any) -> bytes:
        event = {"type": f"response.{kind}", "sequence_number": next(numbers), **fields}
        return f"event: response.{kind}\ndata: ".encode() + orjson.dumps(event) + b"\n\n"

    whole = answer(session, request, choices, shown)
    opening = {**whole, "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
    yield event("created", response=opening)
    yield event("in_progress", response=opening)
    for i, item in enumerate(whole["output"]):
        at: dict[str, Any] = {"item_id": item["id"], "output_index": i}
        field = "arguments" if item["type"] == "function_call" else "content"
        empty = {**item, "status": "in_progress", field: type(item[field])()}
        yield event("output_item.added", output_index=i, item=empty)
        if field == "arguments":
            for piece in pieces(item[field]):
                yield event("function_call_arguments.delta", **at, delta=piece)
            yield event("function_call_arguments.done", **at, name=item["name"], arguments=item[field])
        for n, part in enumerate(item[field] if field == "content" else ()):
            at["content_index"] = n
            yield event("content_part.added", **at, part={**part, "text": ""})
            for piece in pieces(part["text"]):
                yield event(f"{part['type']}.delta", **at, delta=piece, logprobs=[])
            yield event(f"{part['type']}.done", **at, text=part["text"], logprobs=[])
            yield event("content_part.done", **at, part=part)
        yield event("output_item.done", output_index=i, item=item)
    yield event(whole["status"], response=whole)
