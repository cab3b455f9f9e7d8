"""Options of environments: name, type, default, limits and meaning of each stand in one place."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from types import UnionType
from typing import Any, ClassVar, Self, Union, get_args, get_origin, get_type_hints

from envsuite.core.errors import UsageError, unknown
from envsuite.core.tools import Tool, shorten_reason

SEED: Mapping[str, Any] = {"minimum": -(2**63), "maximum": 2**63 - 1}
"""Limits of a seed."""
PATH = "path"
"""``format`` of an option that may be a path: a server opens a path only where it is allowed to."""
SEARCH = "search"
"""``format`` of an option that is the description of a search, which may name files and servers."""
_JSON = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}


def option(
    default: Any, about: str, *, clients: Mapping[str, Any] | None = None, offered: bool = True, **limits: Any
) -> Any:
    """Declares an option in a subclass of :class:`EnvOptions`, where its annotation says its type.

    Args:
        default: Its value where none is given.
        about: What it means, as users read it.
        clients: Further limits, for clients of a server; as ``limits``.
        offered: Whether clients of a server may give it.
        limits: Keywords of JSON Schema, e.g. ``minimum=1`` or ``enum=("text", "image")``; ``items`` are those of
            each item of a sequence.
    """
    return field(default=default, metadata={"about": about, "clients": clients, "offered": offered, "limits": limits})


def source(
    default: str | None = "builtin",
    about: str = 'where the tasks come from: "builtin", "generated", "official" or a path',
    names: Sequence[str] = ("builtin", "generated", "official"),
) -> Any:
    """Declares the option ``source``: one of ``names``, or a path."""
    return option(default, about, format=PATH, maxLength=4096, examples=list(names))


@dataclass(frozen=True, kw_only=True)
class EnvOptions:
    """The options that every environment has; a subclass adds those of its own.

    An annotation is made of ``int``, ``float``, ``str``, ``bool``, ``None``, sequences and mappings of these, and of
    types that only this process knows, such as paths and functions: values of the latter are taken as they are.

    Raises:
        UnknownName: An option has no such value.
        UsageError: A value is of another type, or out of its limits.
    """

    env_id: ClassVar[str] = "the environment"
    """The environment, for errors."""
    split: str | None = option("train", "split from which a reset draws; with null, each reset must name its task")
    tasks: str | Iterable[str] | None = option(None, "task ids, or types of tasks, to keep; null keeps all")
    render_mode: str | None = option(None, "what render() returns", offered=False)

    def __post_init__(self) -> None:
        """Checks all values; makes tuples of sequences."""
        for name, form in self.schema().items():
            value = getattr(self, name)
            if "array" in form.get("type", ()) and isinstance(value, Iterable) and not isinstance(value, str | tuple):
                object.__setattr__(self, name, tuple(value))
        self.check({entry.name: getattr(self, entry.name) for entry in fields(self)})

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Returns the options with the given values, and the defaults of others.

        Raises:
            UnknownName: There is no such option, or an option has no such value.
            UsageError: A value is of another type, or out of its limits.
        """
        names = [entry.name for entry in fields(cls)]
        for name in given:
            if name not in names:
                raise unknown(f"argument of {cls.env_id}", name, (*names, "url"))
        return cls(**given)

    @classmethod
    def schema(cls, client: bool = False) -> dict[str, dict[str, Any]]:
        """Returns the JSON Schema of each option; with ``client``, of those that clients of a server may give."""
        return dict(_schema(cls, client))

    @classmethod
    def check(cls, values: Mapping[str, Any], client: bool = False) -> None:
        """Checks the values of some options.

        Args:
            values: Name -> value.
            client: Whether they are those of a client of a server.

        Raises:
            UnknownName: There is no such option, or an option has no such value.
            UsageError: A value is of another type, or out of its limits.
        """
        forms = _schema(cls, client)
        for name in values:
            if name not in forms:
                raise unknown(f"argument of {cls.env_id}", name, forms)
        for name, value in values.items():
            if not client and _is_python(cls, name, value):
                continue
            if _tool(cls, client, name).problem({name: value}) is not None or _inexact(value, forms[name]):
                _refuse_unknown(f"{name} of {cls.env_id}", value, forms[name])
                raise UsageError(f"{name}={shorten_reason(repr(value))}: expected {values_of(forms[name])}")


_hints: Callable[[Any], dict[str, Any]] = cache(get_type_hints)


def _schema_of(kind: type[EnvOptions], client: bool) -> dict[str, dict[str, Any]]:
    hints = _hints(kind)
    return {
        entry.name: _form(
            hints[entry.name], {**entry.metadata["limits"], **((client and entry.metadata["clients"]) or {})}
        )
        for entry in fields(kind)
        if entry.metadata["offered"] or not client
    }


_schema: Callable[[Any, bool], dict[str, dict[str, Any]]] = cache(_schema_of)


def _tool_of(kind: type[EnvOptions], client: bool, name: str) -> Tool:
    return Tool("", "", {"type": "object", "properties": {name: _schema(kind, client)[name]}})


_tool: Callable[[Any, bool, str], Tool] = cache(_tool_of)


def _form(hint: Any, limits: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the JSON Schema of a type, without those of its parts that only Python knows."""
    types: list[str] = []
    form: dict[str, Any] = {}
    for part in _parts(hint):
        kind = get_origin(part) or part
        if part in _JSON:
            types.append(_JSON[part])
        elif kind is Mapping:
            types.append("object")
            form["additionalProperties"] = _form(get_args(part)[1], {})
        elif kind in (Iterable, Collection, Sequence):
            types.append("array")
            form["items"] = {**_form(get_args(part)[0], {}), **limits.get("items", {})}
    if types:
        form["type"] = types[0] if len(types) == 1 else types
    return {**_plain(limits), **_plain(form)}


def _plain(form: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a schema with lists in place of tuples, which JSON does not have."""
    return {
        name: list(value) if isinstance(value, tuple) else _plain(value) if isinstance(value, Mapping) else value
        for name, value in form.items()
    }


def _parts(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _is_python(kind: type[EnvOptions], name: str, value: object) -> bool:
    """Returns whether an option takes the value as it is, since its type has a part that only Python knows."""
    json_types = (*_JSON, Mapping, Iterable, Collection, Sequence)
    if value is None or isinstance(value, str | int | float | list | tuple | dict):
        return False
    return any((get_origin(part) or part) not in json_types for part in _parts(_hints(kind)[name]))


def _inexact(value: object, form: Mapping[str, Any] | None) -> bool:
    """Returns whether JSON Schema allows what JSON or a cache does not: 6.0 for the whole number 6, or infinity."""
    form = form or {}
    if isinstance(value, Mapping):
        return any(_inexact(member, form.get("additionalProperties")) for member in value.values())
    if isinstance(value, tuple | list):
        return any(_inexact(member, form.get("items")) for member in value)
    return isinstance(value, float) and ("number" not in form.get("type", "number") or not math.isfinite(value))


def _refuse_unknown(kind: str, value: object, form: Mapping[str, Any]) -> None:
    """Raises :class:`~envsuite.core.errors.UnknownName` for a text that is none of those there are."""
    members, schema = (value, form.get("items", {})) if isinstance(value, tuple | list) else ([value], form)
    for member in members:
        if isinstance(member, str) and "enum" in schema and member not in schema["enum"]:
            raise unknown(kind, member, map(str, schema["enum"]))


_WORDS = {"integer": "whole number", "string": "text", "boolean": "true or false"}


def values_of(form: Mapping[str, Any]) -> str:
    """Returns the values that a schema allows, in a few words."""
    if "enum" in form:
        return ", ".join("null" if choice is None else str(choice) for choice in form["enum"])
    kinds = [form["type"]] if isinstance(form.get("type"), str) else form.get("type", ["anything"])
    return " or ".join(_values_of(kind, form) for kind in kinds)


def _values_of(kind: str, form: Mapping[str, Any]) -> str:
    if kind == "array":
        least, most = form.get("minItems", 0), form.get("maxItems")
        count = f"{least} or more" if most is None else f"{least}" if least == most else f"{least} to {most}"
        items = values_of(form["items"])
        return f"list of {items}" if count == "0 or more" else f"{count} of: {items}"
    if kind == "object":
        return f"mapping to {values_of(form['additionalProperties'])}" if form["additionalProperties"] else "mapping"
    word = _WORDS.get(kind, kind)
    if kind not in ("integer", "number") or form.items() >= SEED.items():
        return word
    above, least, most = form.get("exclusiveMinimum"), form.get("minimum"), form.get("maximum")
    low = [f"above {above}"] * (above is not None) + [f"from {least}"] * (least is not None)
    high = [f"to {most}"] * (most is not None)
    return " ".join([word, *low, *high])
