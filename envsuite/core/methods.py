"""Converts tools to Python methods, for libraries that derive a tool from signature and docstring."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from inspect import Parameter, Signature
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
"""Annotations of JSON Schema's types; other schemas become ``Any``."""


def as_method(tool: Tool, act: Callable[[T, ToolCall], str]) -> Callable[..., str]:
    """Returns a method with the name, the typed parameters and the documentation (Google style) of ``tool``.

    As an attribute of a class, the method returns ``act(self, call)`` for each call of the tool. Arguments that the
    schema does not require may be omitted or ``None``; values are checked by the environment, not here.

    Args:
        tool: The tool; its parameters must be a schema with ``properties``.
        act: Called with the method's object and the call; returns the text for the agent.
    """
    properties = tool.parameters["properties"]
    required_names = [name for name in properties if name in tool.parameters.get("required", ())]
    optional = [name for name in properties if name not in required_names]
    types = {name: _annotation(properties[name]) for name in required_names}
    types |= {name: _annotation(properties[name]) | None for name in optional}
    parameters = [Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)]
    for name, annotation in types.items():
        default = None if name in optional else Parameter.empty
        parameters.append(Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=annotation))
    signature = Signature(parameters, return_annotation=str)

    def method(self: T, /, *values: Any, **keywords: Any) -> str:
        arguments = signature.bind(self, *values, **keywords).arguments
        del arguments["self"]
        arguments = {name: value for name, value in arguments.items() if value is not None or name in required_names}
        return act(self, ToolCall(tool.name, arguments))

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
