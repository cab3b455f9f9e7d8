"""Validators of JSON Schema, which may come from a server or an agent: the only module that makes them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from envsuite.core.errors import DataError

if TYPE_CHECKING:
    import jsonschema_rs


def make_validator(schema: Mapping[str, Any]) -> jsonschema_rs.Validator:
    """Returns the validator of a schema, whose references stay inside it: no address is asked and no file is read.

    Raises:
        DataError: It is not a JSON Schema, or refers to something outside.
    """
    import jsonschema_rs

    try:
        return jsonschema_rs.validator_for(dict(schema), retriever=_refuse)
    except (ValueError, TypeError, jsonschema_rs.ReferencingError) as error:
        raise DataError(f"not a JSON Schema that stands by itself: {_first_line(error)}") from error


def check_schema(schema: Mapping[str, Any]) -> None:
    """Checks the form of a schema, of whichever draft it says to be, without following any reference.

    Raises:
        DataError: It is not a JSON Schema.
    """
    import jsonschema_rs

    try:  # the validator would fetch what "$schema" names
        jsonschema_rs.meta.validate({key: value for key, value in schema.items() if key != "$schema"})
    except ValueError as error:
        raise DataError(f"not a JSON Schema: {_first_line(error)}") from error


def _refuse(uri: str) -> NoReturn:
    raise ValueError("references must stay inside the schema")


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:200]


def object_schema(properties: Mapping[str, Any], optional: Collection[str] = ()) -> dict[str, Any]:
    """Returns the schema of an object that has these properties, but for the optional ones, and no others."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": [name for name in properties if name not in optional],
        "additionalProperties": False,
    }
