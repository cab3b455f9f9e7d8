"""Anthropic's messages: requests read, answers written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from envsuite.core.tools import Tool, ToolCall
from trainers.gateway.messages import Message, ParsedRequest, Refused
from trainers.gateway.openai_api import pieces, strict
from trainers.gateway.reading import Fields, canonical, episode_of, wrong
from trainers.gateway.session import AnswerChoice, AnsweredRequest, Session

_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_STREAMED = {
    "text": ("text", "text_delta", "text"),
    "thinking": ("thinking", "thinking_delta", "thinking"),
    "tool_use": ("input", "input_json_delta", "partial_json"),
}
"""For each kind of block, the field that comes in pieces, the kind of these, and their field."""
_TYPES = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large",
    429: "rate_limit_error", 503: "overloaded_error",
}  # fmt: skip


def read(fields: Fields, counting: bool = False) -> ParsedRequest:
    """Reads a request; two are the same as in :func:`trainers.gateway.openai_api.read`.

    Args:
        fields: The request's body.
        counting: Whether only the tokens of its prompt are asked for.

    Raises:
        Refused: It is not as Anthropic has them, or asks for what a text model without stored state cannot give.
    """
    for name in fields.present_names("mcp_servers", "container"):
        raise wrong(name, "is not served: tools are called by the agent", "unsupported_parameter")
    system = (Message("system", fields.content("system")),) if fields.present_names("system") else ()
    messages = tuple(message for entry in fields.objects("messages") for message in _messages(entry))
    if messages and messages[-1].role == "assistant":
        raise wrong("messages", "the last is the assistant's; an answer cannot go on from a text that was not sampled")
    tools = tuple(_tool(tool) for tool in fields.objects("tools"))
    return ParsedRequest(
        model=fields.need("model", str),
        messages=(*system, *messages) if messages else (),
        tools=tools,
        max_tokens=None if counting else fields.need("max_tokens", int, 1),
        stop=fields.texts("stop_sequences"),
        masking=tuple(_masking(fields, tools)),
        replaced=fields.present_names("temperature", "top_p", "top_k"),
        **episode_of(fields),
        body=b"messages" + canonical(fields, "stream", "service_tier"),
        shown={"stream": fields.may("stream", bool)},
        ignored=(*strict(fields), *fields.object("output_config").unread("format"), *fields.unread("service_tier")),
    )


def _messages(fields: Fields) -> Iterator[Message]:
    """Yields the messages in one of a request: results of tools are messages of their own."""
    role = fields.need("role", str)
    if role not in ("user", "assistant"):
        raise wrong(fields.path("role"), f"is {role[:40]!r}; it must be user or assistant")
    if isinstance(fields.get("content"), str):
        yield Message("user" if role == "user" else "assistant", fields.content())
        return
    texts, thoughts, calls = list[str](), list[str](), list[tuple[ToolCall, str]]()
    for block in fields.objects("content"):
        kind = block.need("type", str)
        if kind == "tool_result" and role == "user":
            if texts:
                yield Message("user", "\n".join(texts))
            texts = []
            yield Message("tool", block.content(), call_id=block.need("tool_use_id", str))
        elif kind == "thinking" and role == "assistant":
            thoughts.append(block.need("thinking", str))
        elif kind == "tool_use" and role == "assistant":
            calls.append((ToolCall(block.need("name", str), block.need("input", dict)), block.need("id", str)))
        else:
            texts.append(block.text())
    if role == "assistant":
        yield Message("assistant", "\n".join(texts), tuple(calls), "\n".join(thoughts))
    elif texts or not fields.present_names("content"):
        yield Message("user", "\n".join(texts))


def _tool(fields: Fields) -> Tool:
    if fields.may("type", str) not in (None, "custom"):
        raise wrong(fields.path("type"), "must be custom: no tool is called by the server", "unsupported_parameter")
    return fields.tool("input_schema")


def _masking(fields: Fields, tools: Sequence[Tool]) -> Iterator[str]:
    """Yields the fields that would mask the distribution."""
    choice = fields.object("tool_choice")
    kind = choice.may("type", str) or "auto"
    if kind not in ("auto", "any", "tool", "none"):
        raise wrong("tool_choice.type", "must be auto, any, tool or none")
    if kind != "auto" and (tools or kind != "none"):
        yield "tool_choice"
    if choice.may("disable_parallel_tool_use", bool):
        yield "tool_choice.disable_parallel_tool_use"
    if fields.present_names("output_format") or fields.object("output_config").present_names("format"):
        yield "output_format"


def answer(
    session: Session, request: AnsweredRequest, choices: Sequence[AnswerChoice], shown: Mapping[str, Any]
) -> dict[str, Any]:
    """The answer as a whole; the arguments are those of :func:`trainers.gateway.openai_api.answer`."""
    (choice,) = choices
    return {**_head(session, request), "content": _blocks(choice), **_end(choice), "usage": _usage(request, choice)}


def chunks(
    session: Session, request: AnsweredRequest, choices: Sequence[AnswerChoice], shown: Mapping[str, Any]
) -> Iterator[bytes]:
    """The answer as a stream of events."""
    (choice,) = choices
    usage = _usage(request, choice)
    message = {**_head(session, request), "content": [], "stop_reason": None, "stop_sequence": None}
    yield _event("message_start", message={**message, "usage": {**usage, "output_tokens": 0}})
    for i, block in enumerate(_blocks(choice)):
        name, kind, field = _STREAMED[block["type"]]
        text = block[name] if isinstance(block[name], str) else orjson.dumps(block[name]).decode()
        yield _event("content_block_start", index=i, content_block={**block, name: type(block[name])()})
        for piece in pieces(text):
            yield _event("content_block_delta", index=i, delta={"type": kind, field: piece})
        yield _event("content_block_stop", index=i)
    yield _event("message_delta", delta=_end(choice), usage={"output_tokens": usage["output_tokens"]})
    yield _event("message_stop")


def _event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: ".encode() + orjson.dumps({"type": kind, **fields}) + b"\n\n"


def _head(session: Session, request: AnsweredRequest) -> dict[str, Any]:
    name = f"msg_{session.name}_{request.number}"
    return {"id": name, "type": "message", "role": "assistant", "model": request.ask.model}


def _blocks(choice: AnswerChoice) -> list[dict[str, Any]]:
    message = choice.message
    thought = [{"type": "thinking", "thinking": message.thought, "signature": ""}] if message.thought else []
    text = [{"type": "text", "text": message.text}] if message.text else []
    calls = [
        {"type": "tool_use", "id": call_id, "name": call.name, "input": dict(call.arguments)}
        for call, call_id in message.calls
    ]
    return [*thought, *text, *calls]


def _end(choice: AnswerChoice) -> dict[str, Any]:
    stop_text = "" if choice.message.calls else choice.stopped
    reason = "stop_sequence" if stop_text else _REASONS[choice.finish_reason]
    return {"stop_reason": reason, "stop_sequence": stop_text or None}


def _usage(request: AnsweredRequest, choice: AnswerChoice) -> dict[str, Any]:
    return {"input_tokens": len(request.prompt.ids), "output_tokens": choice.completion.count}


def problem(error: Refused) -> dict[str, Any]:
    """An error as Anthropic's clients read it."""
    kind = _TYPES.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    text = f"prompt is too long: {error}" if error.code == "context_length_exceeded" else str(error)
    return {"type": "error", "error": {"type": kind, "message": text}}
