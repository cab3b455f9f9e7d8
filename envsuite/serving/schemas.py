"""Requests and answers of the protocol: the OpenAPI document ``openapi.json``, whose schemas check every request."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import orjson

from envsuite import __version__
from envsuite.core.schemas import make_validator
from envsuite.remote.protocol import HttpProblem

DOCUMENT: Mapping[str, Any] = orjson.loads((files("envsuite.serving") / "openapi.json").read_bytes())
_COMPONENTS: Mapping[str, Any] = DOCUMENT["components"]
_REQUEST = "Request"
"""End of the names of requests' schemas."""


def document(environments: Mapping[str, object]) -> dict[str, Any]:
    """Returns the OpenAPI document of a server that offers ``environments``."""
    env_id = {**_COMPONENTS["parameters"]["env_id"], "example": next(iter(environments))}
    parameters = {**_COMPONENTS["parameters"], "env_id": env_id}
    return {
        **DOCUMENT,
        "info": {**DOCUMENT["info"], "version": __version__},
        "components": {**_COMPONENTS, "parameters": parameters},
    }


class Checker:
    """Checks values against one JSON Schema, whose references stay inside it."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._validator = make_validator(schema)

    def __call__(self, value: object) -> None:
        """Checks ``value``.

        Raises:
            HttpProblem: It does not fit the schema; ``field`` says where.
        """
        if self._validator.is_valid(value):
            return
        error = next(iter(self._validator.iter_errors(value)))
        where = ".".join(str(part) for part in error.instance_path) or "body"
        message = error.message if len(error.message) <= 500 else error.message[:499] + "…"
        raise HttpProblem(422, "invalid", f"{where}: {message}", field=where)


REQUEST_CHECKS = {
    name.removesuffix(_REQUEST).lower(): Checker({**schema, "components": _COMPONENTS})
    for name, schema in _COMPONENTS["schemas"].items()
    if name.endswith(_REQUEST)
}


def parse_body(op: str, body: bytes) -> dict[str, Any]:
    """Parses and checks the body of a request ``op``.

    Raises:
        HttpProblem: The body is not JSON, or does not fit the schema.
    """
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise HttpProblem(400, "malformed", f"the body is not JSON: {error}", field="body") from error
    REQUEST_CHECKS[op](value)
    return value  # type: ignore[no-any-return]
