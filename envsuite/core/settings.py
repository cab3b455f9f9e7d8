"""Settings given by name."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

import orjson

from envsuite.core.errors import UsageError, unknown

T = TypeVar("T")


def settings_of(make: Callable[..., T], kind: str, values: Mapping[str, Any]) -> T:
    """Makes an instance of the data class ``make`` from ``values``; other fields have their defaults.

    Args:
        make: A data class.
        kind: Kind of setting for errors, e.g. ``"difficulty of WebShop-v0"``.
        values: Values by name of the field.

    Raises:
        UnknownName: A field does not exist.
    """
    names = [field.name for field in fields(make)]  # type: ignore[arg-type]
    for name in values:
        if name not in names:
            raise unknown(kind, name, names)
    return make(**values)


def whole(name: str, value: object, least: int | None = None, most: int | None = None) -> int:
    """Returns an argument as an integer: JSON's 6.0 is refused, since it would not be the 6 of others in caches.

    Raises:
        UsageError: The value of ``name`` is no whole number, or is out of range.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"{name}={value!r} is not a whole number")
    if (least is not None and value < least) or (most is not None and value > most):
        raise UsageError(f"{name}={value}: give {least or 0} {'or more' if most is None else f'to {most}'}")
    return value


def read_option(text: str) -> tuple[str, Any]:
    """Returns name and value of ``--option NAME=VALUE``, the value as JSON, or else as text.

    Raises:
        UsageError: It has another form, or has a key twice.
    """
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise UsageError(f"--option {text!r}; it must be like NAME=VALUE, e.g. max_distractors=5")
    try:
        return name, read_json(value, f"--option {name}")
    except orjson.JSONDecodeError:
        return name, value


def read_json(text: str | bytes, where: str) -> Any:
    """Returns the value of JSON that a person wrote.

    Args:
        text: The JSON.
        where: Its file or option, for the message.

    Raises:
        UsageError: An object has a key twice; the message names it, and the line of its last place.
        ValueError: It is not JSON.
    """
    value = orjson.loads(text)
    source = text if isinstance(text, str) else text.decode()

    def single(pairs: list[tuple[str, Any]]) -> None:
        for key, count in Counter(key for key, _ in pairs).items():
            if count > 1:
                line = source[: max(source.rfind(json.dumps(key, ensure_ascii=False)), 0)].count("\n") + 1
                raise UsageError(f"{where}, line {line}: {key} is given twice; write it once")

    json.loads(source, object_pairs_hook=single)
    return value
