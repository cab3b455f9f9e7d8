"""Calls as Python writes them."""

from __future__ import annotations

import ast
import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from envsuite.core.tools import Tool, ToolCall
from envsuite.prompting.formats.base import CallMatch, CallMismatch, Format
from envsuite.prompting.text import MAX_DEPTH

_WORDS = {"true": True, "false": False, "null": None}
_LARGEST = 2**1024


@dataclass(frozen=True)
class PythonicCalls(Format):
    """``name(key="text", count=2)`` between tags, one call a line; ``name.call(…)`` is read, too.

    Without a closing tag, the calls go to the end of the completion.
    """

    name: str
    opening: str
    closing: str = ""
    thought: tuple[str, str] = ("<think>", "</think>")

    def read(self, text: str, tools: Mapping[str, Tool]) -> Iterator[CallMatch | CallMismatch]:
        """Yields the calls."""
        at = 0
        while (start := text.find(self.opening, at)) >= 0:
            body = start + len(self.opening)
            end = text.find(self.closing, body) if self.closing else len(text)
            if end < 0:
                yield CallMismatch(f"{self.opening} is never closed", len(text))
                return
            at = end + len(self.closing)
            yield from self._calls(text[body:end], start, at)

    def _calls(self, body: str, start: int, end: int) -> Iterator[CallMatch | CallMismatch]:
        if sum(map(body.count, "([{")) > 16 * MAX_DEPTH and _depth(body) > MAX_DEPTH:
            yield CallMismatch(f"brackets are nested deeper than {MAX_DEPTH}", end)
            return
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                calls = [_call(statement) for statement in ast.parse(body.strip()).body]
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            yield CallMismatch(f"not a call a line: {error}", end)
            return
        for call in calls:
            yield CallMatch(call, start, end)


def _call(statement: ast.stmt) -> ToolCall:
    node = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(node, ast.Call) or node.args or any(keyword.arg is None for keyword in node.keywords):
        raise ValueError("a call is name(key=value, …)")
    if len({keyword.arg for keyword in node.keywords}) < len(node.keywords):
        raise ValueError("an argument is given twice")
    name = ast.unparse(node.func)
    return ToolCall(name.removesuffix(".call"), {str(keyword.arg): _value(keyword.value) for keyword in node.keywords})


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id in _WORDS:
        return _WORDS[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        return {_key(key): _value(item) for key, item in zip(node.keys, node.values, strict=True)}
    value = ast.literal_eval(node)
    if (isinstance(value, float) and not math.isfinite(value)) or (isinstance(value, int) and abs(value) >= _LARGEST):
        raise ValueError("a number is too large")
    if not isinstance(value, str | int | float | None):
        raise ValueError(f"{type(value).__name__} is no type of JSON")
    return value


def _key(node: ast.expr | None) -> str:
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        raise ValueError("the key of an object is no string")
    return node.value


def _depth(text: str) -> int:
    """Returns how deep brackets nest in ``text``, those in strings included: an upper limit."""
    depth = deepest = 0
    for character in text:
        if character in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in ")]}":
            depth -= 1
    return deepest
