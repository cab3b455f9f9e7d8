"""Settings that people give by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

from envsuite.core.errors import unknown

T = TypeVar("T")


def settings_of(make: Callable[..., T], kind: str, values: Mapping[str, Any]) -> T:
    """The data class ``make`` with the fields that ``values`` name, the others as they are by default.

    Args:
        make: A data class.
        kind: What a setting is called, e.g. ``"difficulty of WebShop-v0"``.
        values: Values by name of the field.

    Raises:
        UnknownName: There is no such field.
    """
    known = [field.name for field in fields(make)]  # type: ignore[arg-type]
    for name in values:
        if name not in known:
            raise unknown(kind, name, known)
    return make(**values)
