"""Calls as Gemma writes them: JSON with bare keys, and strings between a control token on each side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from envsuite.core.tools import Tool, ToolCall
from envsuite.prompting.formats.base import MAX_NAME, CallMatch, CallMismatch, Format, decode, skip
from envsuite.prompting.text import MAX_DEPTH

_WORDS = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}


class _ParseFailure(Exception):
    def __init__(self, reason: str, end: int) -> None:
        self.mismatch = CallMismatch(reason, end)


@dataclass(frozen=True)
class BracedCalls(Format):
    """``<|tool_call>call:name{key:<|"|>text<|"|>,count:2}<tool_call|>``."""

    name: str
    opening: str
    closing: str
    quote: str
    thought: tuple[str, str] = ("<think>", "</think>")

    def read(self, text: str, tools: Mapping[str, Tool]) -> Iterator[CallMatch | CallMismatch]:
        """Yields the calls."""
        at = 0
        while (start := text.find(self.opening, at)) >= 0:
            at = start + len(self.opening)
            brace = text.find("{", at, at + MAX_NAME)
            if brace <= at:
                yield CallMismatch("no {…} after the name", at)
                continue
            name = text[at:brace]
            try:
                arguments, at = self._object(text, brace, 1)
            except _ParseFailure as failure:
                yield failure.mismatch
                at = failure.mismatch.end
                continue
            if (end := skip(text, at, self.closing)) < 0:
                yield CallMismatch(f"no {self.closing} after the arguments", at)
                continue
            yield CallMatch(ToolCall(name, arguments), start, end)
            at = end

    def _object(self, text: str, at: int, depth: int) -> tuple[dict[str, Any], int]:
        members: dict[str, Any] = {}
        at += 1
        if text.startswith("}", at):
            return members, at + 1
        while True:
            key, at = self._key(text, at)
            if key in members:
                raise _ParseFailure(f"the key {key!r} is given twice", at)
            members[key], at = self._value(text, at, depth)
            if (after := skip(text, at, "}")) >= 0:
                return members, after
            at = self._comma(text, at)

    def _list(self, text: str, at: int, depth: int) -> tuple[list[Any], int]:
        values: list[Any] = []
        at += 1
        if text.startswith("]", at):
            return values, at + 1
        while True:
            value, at = self._value(text, at, depth)
            values.append(value)
            if (after := skip(text, at, "]")) >= 0:
                return values, after
            at = self._comma(text, at)

    def _comma(self, text: str, at: int) -> int:
        if (after := skip(text, at, ",")) < 0:
            raise _ParseFailure("no comma, bracket or brace after a value", at)
        return after

    def _key(self, text: str, at: int) -> tuple[str, int]:
        if (start := skip(text, at, self.quote)) >= 0:
            key, at = self._string(text, start)
            if (after := skip(text, at, ":")) < 0:
                raise _ParseFailure("no colon after a key", at)
            return key, after
        end = text.find(":", at, at + MAX_NAME)
        if end < 0:
            raise _ParseFailure("no colon after a key", at)
        return text[at:end].strip(), end + 1

    def _string(self, text: str, at: int) -> tuple[str, int]:
        end = text.find(self.quote, at)
        if end < 0:
            raise _ParseFailure(f"a text without {self.quote} at its end", len(text))
        return text[at:end], end + len(self.quote)

    def _value(self, text: str, at: int, depth: int) -> tuple[Any, int]:
        if depth > MAX_DEPTH:
            raise _ParseFailure(f"the arguments are nested deeper than {MAX_DEPTH}", at)
        at = skip(text, at, "")
        if text.startswith(self.quote, at):
            return self._string(text, at + len(self.quote))
        if text.startswith("{", at):
            return self._object(text, at, depth + 1)
        if text.startswith("[", at):
            return self._list(text, at, depth + 1)
        for word, value in _WORDS.items():
            if text.startswith(word, at):
                return value, at + len(word)
        number = decode(text, at)
        if isinstance(number, CallMismatch):
            raise _ParseFailure(number.reason, number.end)
        if isinstance(number[0], str):
            raise _ParseFailure(f"a text stands between {self.quote}", number[1])
        return number
