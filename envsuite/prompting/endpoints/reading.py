"""The body of a chat completion, read strictly."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from envsuite.prompting import Answer, RawCall

_REASONING = ("reasoning_content", "reasoning")
"""Fields in which endpoints give a model's thought."""


class MalformedAnswer(ValueError):
    """A body that is no chat completion; the same request may get a sound one."""


@dataclass(frozen=True)
class AnswerTokens:
    """Tokens of a request, as the endpoint counts them."""

    prompt: int = 0
    cached: int = 0
    """Tokens of the prompt that it had computed before."""
    answer: int = 0

    def __add__(self, other: AnswerTokens) -> AnswerTokens:
        """Adds two counts."""
        return AnswerTokens(self.prompt + other.prompt, self.cached + other.cached, self.answer + other.answer)


@dataclass(frozen=True)
class Reply:
    """A chat completion."""

    answer: Answer
    finish_reason: str
    """``"stop"`` or ``"length"``."""
    model: str
    """Name of the model that answered; empty where it is not told."""
    tokens: AnswerTokens | None
    """``None`` where the endpoint does not count."""


def read(body: object) -> Reply:
    """Returns the completion in the JSON of an answer.

    Raises:
        MalformedAnswer: It has none, or one that was not finished.
    """
    choices = _field(body, "choices")
    if not isinstance(choices, list) or not choices:
        raise MalformedAnswer(f"an answer without choices: {_brief(body)}")
    choice = choices[0]
    message = _field(choice, "message")
    if not isinstance(message, dict):
        raise MalformedAnswer(f"an answer without a message: {_brief(choice)}")
    reason = _field(choice, "finish_reason")
    if not isinstance(reason, str):
        raise MalformedAnswer(f"an answer that was not finished: {_brief(choice)}")
    if reason == "error":
        raise MalformedAnswer(f"the endpoint failed within its answer: {_brief(choice)}")
    content = _text(message.get("content")) or _text(message.get("refusal"))
    thought = next((text for name in _REASONING if (text := _text(message.get(name)))), "")
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise MalformedAnswer(f"tool_calls that are no list: {_brief(calls)}")
    model = _field(body, "model")
    return Reply(
        Answer(content, tuple(_read_call(call) for call in calls), thought),
        "length" if reason == "length" else "stop",
        model if isinstance(model, str) else "",
        _tokens(_field(body, "usage")),
    )


def _read_call(call: object) -> RawCall:
    """Returns a call as it stands; whether it makes sense is for the policy to answer for."""
    function = _field(call, "function")
    name, arguments = _field(function, "name"), _field(function, "arguments")
    text = arguments if isinstance(arguments, str | None) else json.dumps(arguments)
    return RawCall(_text(name), _text(text), _text(_field(call, "id")))


def _tokens(usage: object) -> AnswerTokens | None:
    prompt, answer = (_count(_field(usage, name)) for name in ("prompt_tokens", "completion_tokens"))
    if prompt is None or answer is None:
        return None
    cached_tokens = _count(_field(_field(usage, "prompt_tokens_details"), "cached_tokens")) or 0
    return AnswerTokens(prompt, min(cached_tokens, prompt), answer)


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _text(content: object) -> str:
    """Returns a text, which some endpoints give in parts; a lone surrogate, which cannot be sent, as U+FFFD."""
    if isinstance(content, list):
        return "".join(_text(_field(part, "text")) for part in content)
    text = content if isinstance(content, str) else ""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _field(value: object, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _brief(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 200 else f"{text[:200]}…"
