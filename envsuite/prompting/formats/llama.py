"""Calls as Llama 3 writes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from envsuite.core.tools import Tool
from envsuite.prompting.formats.base import CallMatch, CallMismatch, decode, skip
from envsuite.prompting.formats.json_calls import JsonCalls
from envsuite.prompting.formats.pythonic import PythonicCalls


@dataclass(frozen=True)
class LlamaCalls(JsonCalls):
    """The completion is the call: ``{"name": …, "parameters": {…}}``, or ``<|python_tag|>name.call(key="text")``.

    The tag before JSON is optional; semicolons separate several calls.
    """

    name: str = "llama"
    opening: str = "<|python_tag|>"
    closing: str = ""
    keys: tuple[str, str] = ("name", "parameters")

    def read(self, text: str, tools: Mapping[str, Tool]) -> Iterator[CallMatch | CallMismatch]:
        """Yields the calls."""
        after_tag = skip(text, 0, self.opening)
        at = max(after_tag, 0)
        if skip(text, at, "{") < 0:
            if after_tag >= 0:
                yield from PythonicCalls("", self.opening).read(text, tools)
            return
        while True:
            value = decode(text, at)
            if isinstance(value, CallMismatch):
                yield value
                return
            item, end = value
            following = skip(text, end, "")
            if following < len(text) and text[following] != ";":
                yield CallMismatch("text after the call", len(text))
                return
            yield self._call(item, at, end)
            if following == len(text):
                return
            at = following + 1
