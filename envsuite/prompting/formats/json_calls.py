"""Calls whose arguments are JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from envsuite.core.tools import Tool, ToolCall
from envsuite.prompting.formats.base import MAX_NAME, CallMatch, CallMismatch, Format, decode, skip


@dataclass(frozen=True)
class JsonCalls(Format):
    """A JSON object, or a list of them, between tags: ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``."""

    name: str
    opening: str
    closing: str
    """``""`` where only the end of the completion closes a call."""
    keys: tuple[str, str] = ("name", "arguments")
    id_key: str | None = None
    thought: tuple[str, str] = ("<think>", "</think>")

    def read(self, text: str, tools: Mapping[str, Tool]) -> Iterator[CallMatch | CallMismatch]:
        """Yields the calls."""
        at = 0
        while (start := text.find(self.opening, at)) >= 0:
            value = decode(text, start + len(self.opening))
            if isinstance(value, CallMismatch):
                yield value
                at = value.end
                continue
            items, at = value
            if self.closing:
                if (end := skip(text, at, self.closing)) < 0:
                    yield CallMismatch(f"no {self.closing} after the JSON", at)
                    continue
                at = end
            for item in items if isinstance(items, list) else [items]:
                yield self._call(item, start, at)

    def _call(self, item: Any, start: int, end: int) -> CallMatch | CallMismatch:
        name, arguments = self.keys
        known_keys = {name, arguments, "type", self.id_key}
        if not isinstance(item, dict) or not {name, arguments} <= item.keys() <= known_keys:
            return CallMismatch(f'a call is {{"{name}": …, "{arguments}": {{…}}}}', end)
        if not isinstance(item[name], str) or not isinstance(item[arguments], dict):
            return CallMismatch(f'of a call, "{name}" is a string and "{arguments}" an object', end)
        call, call_id = ToolCall(item[name], item[arguments]), item.get(self.id_key)
        return CallMatch(call, start, end, call_id if isinstance(call_id, str) else None)


@dataclass(frozen=True)
class NamedJson(Format):
    """The name, then the arguments as JSON, between tags of their own: ``[TOOL_CALLS]name[ARGS]{…}``."""

    name: str
    opening: str
    separator: str
    closing: str
    id_mark: str = ""
    """Text between the name and the call's id, where the family has one."""
    section_ends: tuple[str, ...] = ()
    id_names: bool = False
    """Whether the text before the separator is an id that contains the name: ``functions.name:0``."""
    thought: tuple[str, str] = ("<think>", "</think>")

    def read(self, text: str, tools: Mapping[str, Tool]) -> Iterator[CallMatch | CallMismatch]:
        """Yields the calls."""
        at = 0
        while (start := text.find(self.opening, at)) >= 0:
            at = start + len(self.opening)
            split = text.find(self.separator, at, at + MAX_NAME)
            if split < 0:
                yield CallMismatch(f"no {self.separator.strip()} after the name", at)
                continue
            name, _, call_id = text[at:split].partition(self.id_mark) if self.id_mark else (text[at:split], "", "")
            if self.id_names:
                name, call_id = name.rpartition(":")[0].removeprefix("functions."), name
            value = decode(text, split + len(self.separator))
            if isinstance(value, CallMismatch):
                yield value
                at = value.end
                continue
            arguments, at = value
            if self.closing:
                if (end := skip(text, at, self.closing)) < 0:
                    yield CallMismatch(f"no {self.closing} after the arguments", at)
                    continue
                at = end
            if not name.strip() or not isinstance(arguments, dict):
                yield CallMismatch("a call has a name, and its arguments are an object", at)
            else:
                yield CallMatch(ToolCall(name.strip(), arguments), start, at, call_id.strip() or None)

    def call_id(self, index: int, call: ToolCall) -> str:
        """Returns an id as the family writes it."""
        return f"functions.{call.name}:{index}" if self.id_names else super().call_id(index, call)
