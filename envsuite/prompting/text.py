"""Calls as text: reading them strictly, and writing them so that they are read back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from envsuite.core.errors import UsageError
from envsuite.core.tools import Tool, ToolCall

MAX_DEPTH = 32
"""Maximum nesting of arguments. Deeper ones are refused: no tool needs them, and pickling them would overflow."""
THOUGHT_END = "</think>"


@dataclass(frozen=True)
class MalformedText:
    """The reason why a text is no call."""

    reason: str


TAGS = ("<action>", "</action>", "<tool_call>", "</tool_call>", "<think>", THOUGHT_END)


def bodies(completion: str, opening: str, closing: str) -> Iterator[str | MalformedText]:
    """Yields the bodies between the tags after the thought, left to right."""
    thought = completion.find(THOUGHT_END)
    position = 0 if thought < 0 else thought + len(THOUGHT_END)
    while (start := completion.find(opening, position)) >= 0:
        start += len(opening)
        end = completion.find(closing, start)
        if end < 0:
            yield MalformedText(f"{opening} is never closed")
            return
        body = completion[start:end]
        yield MalformedText(f"{opening} inside {opening}") if opening in body else body
        position = end + len(closing)


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _finite(number: str) -> float:
    if not isfinite(value := float(number)):
        raise ValueError("a number is too large")
    return value


DECODER = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)


def read_calls(body: str, many: bool) -> list[ToolCall] | MalformedText:
    """Parses ``body`` as the JSON of a call or, with ``many``, of a list of calls."""
    value = _decode_json(body)
    if isinstance(value, MalformedText):
        return value
    items = value if many and isinstance(value, list) else [value]
    if not items:
        return MalformedText("an action needs at least one tool call")
    for item in items:
        if not isinstance(item, dict) or item.keys() != {"name", "arguments"}:
            return MalformedText('a call is {"name": …, "arguments": {…}}')
        if not isinstance(item["name"], str) or not isinstance(item["arguments"], dict):
            return MalformedText('of a call, "name" is a string and "arguments" an object')
    if (problem := _unfit(value, body)) is not None:
        return problem
    return [ToolCall(item["name"], item["arguments"]) for item in items]


def read_arguments(text: str) -> dict[str, Any] | MalformedText:
    """Parses ``text`` as the JSON of a call's arguments."""
    value = _decode_json(text)
    if isinstance(value, MalformedText):
        return value
    if not isinstance(value, dict):
        return MalformedText("not a JSON object")
    return _unfit(value, text) or value


def _decode_json(text: str) -> Any:
    """Returns the value of a JSON text; :class:`MalformedText` if it is none."""
    try:
        return DECODER.decode(text)
    except RecursionError:
        return MalformedText("the JSON is nested too deeply")
    except ValueError as error:
        return MalformedText(f"not JSON: {error}")


def _unfit(value: object, text: str) -> MalformedText | None:
    """Returns why the value of a JSON text can be no part of a call; ``None`` if it can."""
    if deeper_than(value, MAX_DEPTH):
        return MalformedText(f"the JSON is nested deeper than {MAX_DEPTH}")
    if not is_unicode(text if "\\u" not in text else json.dumps(value, ensure_ascii=False)):
        return MalformedText("the call is not valid Unicode")
    return None


def deeper_than(value: object, depth: int) -> bool:
    """Whether ``value`` nests lists and objects deeper than ``depth``."""
    level = [value]
    for _ in range(depth):
        children: list[object] = []
        for item in level:
            if isinstance(item, dict):
                children += item.values()
            elif isinstance(item, list):
                children += item
        if not children:
            return False
        level = children
    return True


def is_unicode(text: str) -> bool:
    """Whether ``text`` has no lone surrogate, which can be neither tokenised nor stored."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def dump(call: ToolCall) -> str:
    """Returns the JSON of ``call``.

    Raises:
        UsageError: An argument cannot be written as JSON.
    """
    value = {"name": call.name, "arguments": dict(call.arguments)}
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise UsageError(f"the call of {call.name} cannot be written as JSON: {error}") from error


def escape_tags(text: str) -> str:
    """Returns the JSON ``text``, with ``<`` escaped if it contains a tag."""
    return text.replace("<", "\\u003c") if any(tag in text for tag in TAGS) else text


def write_thought(thought: str) -> str:
    """Returns ``thought`` in its tags; ``""`` for none.

    Raises:
        UsageError: It contains ``</think>``.
    """
    if THOUGHT_END in thought:
        raise UsageError(f"a thought must not contain {THOUGHT_END}: it would end there")
    return f"<think>{thought}</think>" if thought else ""


def listing(tools: Sequence[Tool], title: str = "Tools") -> str:
    """Returns the function schemas of ``tools``, one a line, for a system message."""
    lines = (json.dumps(tool.as_openai()["function"], ensure_ascii=False) for tool in tools)
    return f"{title}:\n" + "\n".join(lines)
