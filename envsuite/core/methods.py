"""Tools as Python methods, for libraries that read a tool off its signature and docstring."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

from envsuite.core.tools import Tool, ToolCall

T = TypeVar("T")
TYPES: Mapping[str, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "object": dict[str, Any],
    "array": list[Any],
    "null": None,
}
"""Annotations of JSON Schema's types; any other schema is ``Any``."""


def as_method(tool: Tool, act: Callable[[T, ToolCall], str]) -> Callable[..., str]:
    """A method with the name, the typed parameters and the documentation (Google style) of ``tool``.

    Set on a class, it makes each call of the tool ``act(self, call)``, whose result it returns. Arguments that the
    schema does not require may be left out or ``None``; their values are not checked, the environment does that.

    Args:
        tool: Its parameters must be a schema with ``properties``.
        act: Takes the object that the method is called on and the call, and returns what the agent is told.
    """
    properties = tool.parameters["properties"]
    required = [name for name in properties if name in tool.parameters.get("required", ())]
    optional = [name for name in properties if name not in required]
    types = {name: _annotation(properties[name]) for name in required}
    types |= {name: _annotation(properties[name]) | None for name in optional}
    signature = inspect.Signature(
        [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
        + [
            inspect.Parameter(
                name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                annotation=annotation,
                default=None if name in optional else inspect.Parameter.empty,
            )
            for name, annotation in types.items()
        ],
        return_annotation=str,
    )

    def method(self: T, /, *values: Any, **named: Any) -> str:
        given = signature.bind(self, *values, **named).arguments
        del given["self"]
        kept = {name: value for name, value in given.items() if value is not None or name in required}
        return act(self, ToolCall(tool.name, kept))

    meanings = [
        f"\n    {name}: {textwrap.indent(properties[name].get('description', name), ' ' * 8).lstrip()}"
        for name in types
    ]
    method.__name__ = method.__qualname__ = tool.name
    method.__doc__ = tool.description + "".join(["\n\nArgs:", *meanings] if meanings else [])
    method.__annotations__ = {**types, "return": str}
    method.__signature__ = signature  # type: ignore[attr-defined]
    return method


def _annotation(schema: Mapping[str, Any]) -> Any:
    if "enum" in schema:
        return Literal[tuple(schema["enum"])]
    kind = schema.get("type")
    if kind == "array" and "items" in schema:
        return list[_annotation(schema["items"])]  # type: ignore[misc]
    return TYPES.get(kind, Any) if isinstance(kind, str) else Any
