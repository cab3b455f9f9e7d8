"""OpenAI's chat completions: requests read, answers written."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from envsuite.core.tools import Tool, ToolCall
from trainers.gateway.messages import Message, ParsedRequest, Refused
from trainers.gateway.reading import Fields, canonical, episode_of, wrong
from trainers.gateway.session import AnswerChoice, AnsweredRequest, Session

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty")
"""Settings in place of which those of the run are taken."""
_MASKS = ("logit_bias", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar")
_SHOWN = ("stream", "stream_options", "logprobs", "top_logprobs", "store", "service_tier")
"""Fields that change what is shown of an answer, or nothing: a request that differs in them alone is the same."""
_HARMLESS = (*_SHOWN, "user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention")
_MOST = ("max_completion_tokens", "max_tokens")
_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


def read(fields: Fields) -> ParsedRequest:
    """Reads a request.

    Two are the same where all their fields are, whatever the order, besides those that change only how the answer is
    shown: a client may repeat in one piece what it has asked for as a stream.

    Raises:
        Refused: It is not as OpenAI has them, or asks for what a text model without stored state cannot give.
    """
    for name in fields.present_names("functions", "function_call", "audio", "web_search_options"):
        raise wrong(name, "is not served; calls are asked for by tools", "unsupported_parameter")
    if fields.may("top_logprobs", int, 0):
        raise wrong("top_logprobs", "only the tokens that were sampled have log-probabilities", "unsupported_parameter")
    tools = tuple(tool(fields_of_tool) for fields_of_tool in fields.objects("tools"))
    return ParsedRequest(
        model=fields.need("model", str),
        messages=tuple(message_in(message) for message in fields.objects("messages")),
        tools=tools,
        count=fields.may("n", int, 1, 128) or 1,
        max_tokens=next(filter(None, [fields.may(name, int, 1) for name in _MOST]), None),
        stop=fields.texts("stop"),
        masking=tuple(masking(fields, tools)),
        replaced=fields.present_names(*_SAMPLING),
        **episode_of(fields),
        body=b"chat" + canonical(fields, *_SHOWN),
        shown={
            "stream": fields.may("stream", bool),
            "usage": fields.object("stream_options").may("include_usage", bool),
            "logprobs": fields.may("logprobs", bool),
        },
        ignored=(*strict(fields), *fields.unread(*_HARMLESS)),
    )


def message_in(fields: Fields) -> Message:
    """A message of a request."""
    role, text = fields.need("role", str), fields.content()
    if role in ("system", "developer"):
        return Message("system", text)
    if role == "user":
        return Message("user", text)
    if role == "tool":
        return Message("tool", text, call_id=fields.need("tool_call_id", str))
    if role != "assistant":
        raise wrong(fields.path("role"), f"is {role[:40]!r}; it must be system, developer, user, assistant or tool")
    thought = fields.may("reasoning_content", str) or fields.may("reasoning", str) or ""
    return Message("assistant", text, tuple(_call(call) for call in fields.objects("tool_calls")), thought)


def _call(fields: Fields) -> tuple[ToolCall, str]:
    function = fields.object("function")
    return ToolCall(function.need("name", str), function.json("arguments")), fields.need("id", str)


def tool(fields: Fields, flat: bool = False) -> Tool:
    """A tool; with ``flat`` its name and schema stand beside its type, as responses have them."""
    if fields.need("type", str) != "function":
        raise wrong(fields.path("type"), "must be function", "unsupported_parameter")
    return (fields if flat else fields.object("function")).tool("parameters")


def strict(fields: Fields) -> Iterator[str]:
    """Yields ``strict`` where a tool has it: arguments are checked by the agent."""
    for entry in fields.objects("tools"):
        if entry.present_names("strict") or entry.object("function").present_names("strict"):
            yield "strict"
            return


def masking(fields: Fields, tools: Sequence[Tool]) -> Iterator[str]:
    """Yields the fields that would mask the distribution."""
    choice = fields.get("tool_choice")
    if choice not in (None, "auto", "none", "required") and not isinstance(choice, dict):
        raise wrong("tool_choice", "must be auto, none, required or a function")
    if choice not in (None, "auto") and (tools or choice != "none"):
        yield "tool_choice"
    if fields.may("parallel_tool_calls", bool) is False and tools:
        yield "parallel_tool_calls"
    if fields.object("response_format").value.get("type", "text") != "text":
        yield "response_format"
    yield from fields.present_names(*_MASKS)


def answer(
    session: Session, request: AnsweredRequest, choices: Sequence[AnswerChoice], shown: Mapping[str, Any]
) -> dict[str, Any]:
    """The answer as a whole.

    Args:
        session: Has the request.
        request: The request.
        choices: What it was answered.
        shown: :attr:`~trainers.gateway.messages.ParsedRequest.shown` of the request that is answered now.
    """
    entries = [
        {
            "index": i,
            "message": _answer_message(choice.message),
            "logprobs": _logprobs(session, choice) if shown.get("logprobs") else None,
            "finish_reason": choice.finish_reason,
        }
        for i, choice in enumerate(choices)
    ]
    return {**head(session, request, choices, "chat.completion"), "choices": entries, "usage": _usage(request, choices)}


def chunks(
    session: Session, request: AnsweredRequest, choices: Sequence[AnswerChoice], shown: Mapping[str, Any]
) -> Iterator[bytes]:
    """The answer as a stream of events: the engine gives it whole, here it comes in pieces."""
    about = head(session, request, choices, "chat.completion.chunk")
    usage: dict[str, Any] = {"usage": None} if shown.get("usage") else {}

    def event(entries: list[dict[str, Any]], **more: Any) -> bytes:
        return b"data: " + orjson.dumps({**about, "choices": entries, **usage, **more}) + b"\n\n"

    def delta(index: int, part: dict[str, Any], reason: str | None = None, logprobs: Any = None) -> bytes:
        return event([{"index": index, "delta": part, "logprobs": logprobs, "finish_reason": reason}])

    for i, choice in enumerate(choices):
        message = choice.message
        yield delta(i, {"role": "assistant", "content": ""})
        for piece in pieces(message.thought):
            yield delta(i, {"reasoning_content": piece})
        for piece in pieces(message.text):
            yield delta(i, {"content": piece})
        for n, call in enumerate(_calls(message)):
            function = call.pop("function")
            yield delta(i, {"tool_calls": [{"index": n, **call, "function": {**function, "arguments": ""}}]})
            for piece in pieces(function["arguments"]):
                yield delta(i, {"tool_calls": [{"index": n, "function": {"arguments": piece}}]})
        yield delta(i, {}, choice.finish_reason, _logprobs(session, choice) if shown.get("logprobs") else None)
    if usage:
        yield event([], usage=_usage(request, choices))
    yield b"data: [DONE]\n\n"


def pieces(text: str, length: int = 64) -> Iterator[str]:
    """A text in pieces of so many characters."""
    return (text[at : at + length] for at in range(0, len(text), length))


def head(session: Session, request: AnsweredRequest, choices: Sequence[AnswerChoice], kind: str) -> dict[str, Any]:
    """The fields with which answers begin."""
    version = max((int(v) for choice in choices for v in choice.completion.policy_version), default=0)
    return {
        "id": f"chatcmpl-{session.name}-{request.number}",
        "object": kind,
        "created": int(time.time()),
        "model": request.ask.model,
        "system_fingerprint": f"policy-{version}",
    }


def _calls(message: Message) -> list[dict[str, Any]]:
    return [
        {"id": call_id, "type": "function", "function": {"name": call.name, "arguments": json_of(call)}}
        for call, call_id in message.calls
    ]


def json_of(call: ToolCall) -> str:
    """The arguments of a call as a text."""
    return orjson.dumps(dict(call.arguments)).decode()


def message_of(message: Message) -> dict[str, Any]:
    """A message as requests have it."""
    if message.role == "assistant":
        return {name: value for name, value in _answer_message(message).items() if name != "refusal"}
    answers = {"tool_call_id": message.call_id} if message.role == "tool" else {}
    return {"role": message.role, "content": message.text, **answers}


def _answer_message(message: Message) -> dict[str, Any]:
    calls = {"tool_calls": _calls(message)} if message.calls else {}
    thought = {"reasoning_content": message.thought} if message.thought else {}
    content = None if calls and not message.text else message.text
    return {"role": "assistant", "content": content, "refusal": None, **thought, **calls}


def _logprobs(session: Session, choice: AnswerChoice) -> dict[str, Any]:
    parts = session.writer.token_bytes(choice.completion.token_ids.tolist())
    tokens = [
        {"token": part.decode("utf-8", "replace"), "logprob": float(logprob), "bytes": list(part), "top_logprobs": []}
        for part, logprob in zip(parts, choice.completion.logprobs, strict=True)
    ]
    return {"content": tokens, "refusal": None}


def _usage(request: AnsweredRequest, choices: Sequence[AnswerChoice]) -> dict[str, Any]:
    prompt, completion = len(request.prompt.ids), sum(choice.completion.count for choice in choices)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def problem(error: Refused) -> dict[str, Any]:
    """An error as OpenAI's clients read it."""
    kind = "server_error" if error.status >= 500 else _TYPES.get(error.status, "invalid_request_error")
    return {"error": {"message": str(error), "type": kind, "param": error.param, "code": error.code}}
