"""Calls whose arguments stand between tags each, without JSON's quotes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from envsuite.core.tools import Tool, ToolCall
from envsuite.prompting.formats.base import MAX_NAME, SPACE, CallMatch, CallMismatch, Format, decode, skip

_PYTHON = {"True": True, "False": False, "None": None}


@dataclass(frozen=True)
class TaggedCalls(Format):
    """A tag per argument: ``<tool_call><function=name><parameter=key>value</parameter></function></tool_call>``.

    A value whose schema says ``string`` is taken as it is written; any other is JSON, or Python's ``True``, ``False``
    or ``None``, and is text if it is neither.
    """

    name: str
    opening: tuple[str, ...]
    """Tags before the name, with blanks between them or not."""
    name_end: tuple[str, ...]
    """Text after the name: the first of these."""
    key: tuple[str, str]
    """Text before and after an argument's name."""
    value: tuple[str, str]
    """Text before and after its value."""
    closing: tuple[str, ...]
    """Tags after the arguments, with blanks between them or not."""
    line_ends: bool = False
    """Whether a line end stands on each side of a value and is no part of it."""
    section_ends: tuple[str, ...] = ()
    thought: tuple[str, str] = ("<think>", "</think>")

    def read(self, text: str, tools: Mapping[str, Tool]) -> Iterator[CallMatch | CallMismatch]:
        """Yields the calls."""
        at = 0
        while (start := text.find(self.opening[0], at)) >= 0:
            match = self._call(text, start, tools)
            yield match
            at = match.end

    def _call(self, text: str, start: int, tools: Mapping[str, Tool]) -> CallMatch | CallMismatch:
        at = start + len(self.opening[0])
        for tag in self.opening[1:]:
            if (after := skip(text, at, tag)) < 0:
                return CallMismatch(f"no {tag} after {self.opening[0]}", at)
            at = after
        ends = [(end, mark) for mark in self.name_end if (end := text.find(mark, at, at + MAX_NAME)) >= 0]
        if not ends:
            return CallMismatch("the name of the tool never ends", at)
        name_end, mark = min(ends)
        name = text[at:name_end].strip()
        at = name_end + (0 if mark in (self.key[0], self.closing[0]) else len(mark))
        types = _types(tools.get(name))
        arguments: dict[str, Any] = {}
        while (key_at := skip(text, at, self.key[0])) >= 0:
            key_end = text.find(self.key[1], key_at, key_at + MAX_NAME)
            if key_end < 0:
                return CallMismatch("the name of an argument never ends", key_at)
            value_at = key_end + len(self.key[1])
            if self.value[0] and (value_at := skip(text, value_at, self.value[0])) < 0:
                return CallMismatch(f"no {self.value[0]} after the name of an argument", key_end)
            value_end = text.find(self.value[1], value_at)
            if value_end < 0:
                return CallMismatch(f"an argument without {self.value[1]}", len(text))
            key = text[key_at:key_end].strip()
            if key in arguments:
                return CallMismatch(f"the argument {key!r} is given twice", value_end)
            arguments[key] = self._value(text[value_at:value_end], types.get(key, frozenset()))
            at = value_end + len(self.value[1])
        for tag in self.closing:
            if (after := skip(text, at, tag)) < 0:
                return CallMismatch(f"no {tag} after the arguments", at)
            at = after
        return CallMatch(ToolCall(name, arguments), start, at) if name else CallMismatch("a call has a name", at)

    def _value(self, text: str, types: frozenset[str]) -> Any:
        if self.line_ends:
            text = text.removeprefix("\n").removesuffix("\n")
        if types == {"string"}:
            return text
        value = decode(text, 0)
        if not isinstance(value, CallMismatch) and SPACE.match(text, value[1]).end() == len(text):  # type: ignore[union-attr]
            return value[0]
        return _PYTHON.get(text.strip(), text)


@dataclass(frozen=True)
class MarkedCalls(TaggedCalls):
    """As :class:`TaggedCalls`; each argument says itself whether it is text: ``name="key" string="true"``."""

    def _call(self, text: str, start: int, tools: Mapping[str, Tool]) -> CallMatch | CallMismatch:
        match = super()._call(text, start, {})
        if isinstance(match, CallMismatch):
            return match
        arguments = {}
        for key, value in match.call.arguments.items():
            plain, _, is_text = key.partition('" string="')
            if is_text not in ("true", "false") or plain in arguments:
                return CallMismatch('an argument says string="true" or string="false", and is given once', match.end)
            arguments[plain] = value if is_text == "true" else super()._value(value, frozenset())
        return CallMatch(ToolCall(match.call.name, arguments), match.start, match.end)

    def _value(self, text: str, types: frozenset[str]) -> Any:
        return text


def _types(tool: Tool | None) -> dict[str, frozenset[str]]:
    """Returns the JSON types that each argument of ``tool`` may have."""
    properties = {} if tool is None else tool.parameters.get("properties", {})
    return {key: frozenset(_allowed_types(schema)) for key, schema in properties.items()}


def _allowed_types(schema: Any) -> Iterator[str]:
    if not isinstance(schema, dict):
        return
    types = schema.get("type", ())
    yield from (types,) if isinstance(types, str) else types
    for value in [*schema.get("enum", ()), *([schema["const"]] if "const" in schema else ())]:
        yield "string" if isinstance(value, str) else "other"
    for union in ("anyOf", "oneOf"):
        for branch in schema.get(union, ()):
            yield from _allowed_types(branch)
