"""The OpenAPI document of a server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envsuite import __version__
from envsuite.remote.protocol import JSON_TYPE, PROBLEM_TYPE
from envsuite.serving.schemas import ANSWERS, REQUESTS

_TEXT = {"type": "string"}
_ERRORS = {
    400: "The body is not JSON.",
    401: "The bearer token is missing or wrong.",
    404: "There is no such environment, session, task or split.",
    405: "The address takes another method.",
    409: "The call is out of order, or the environment does not take it now.",
    410: "The session has ended: it idled for long, its world failed, or its process was lost.",
    413: "The body is too large.",
    415: "The body is not declared as JSON.",
    422: "A field is wrong; the problem names it.",
    429: "All sessions are taken.",
    503: "The server starts or ends.",
}
_READ = (401, 404, 405, 422)
_WRITE = (400, *_READ, 409, 410, 413, 415)


def document(environments: Mapping[str, object]) -> dict[str, Any]:
    """Returns the OpenAPI 3.1 document of a server that offers ``environments``."""
    env_id = _parameter("env_id", "path", {"type": "string"}, next(iter(environments)))
    session = _parameter("session", "path", _TEXT)
    split = {**_parameter("split", "query", _TEXT), "required": False}
    description = _operation("Tools, tasks and horizon", "Description", errors=(*_READ, 410), parameters=[env_id])
    paths = {
        "/v1/environments": {"get": _operation("The environments of this server", "Listing", errors=(401, 405))},
        "/v1/environments/{env_id}": {
            "get": {**description, "operationId": "environment"},
            "post": {
                **_operation("The same, made with arguments", "Description", "describe", (*_WRITE,), [env_id]),
                "operationId": "describe",
            },
        },
        "/v1/environments/{env_id}/tools": {
            "get": _operation(
                "Its tools, as OpenAI function schemas", "Tools", errors=(*_READ, 410), parameters=[env_id]
            )
        },
        "/v1/environments/{env_id}/tasks": {
            "get": _operation(
                "Its tasks, of all splits or of one", "Tasks", errors=(*_READ, 410), parameters=[env_id, split]
            )
        },
        "/v1/sessions": {"post": _operation("Make a session", "Session", "create", (*_WRITE, 429, 503))},
        "/v1/sessions/{session}": {
            "get": _operation(
                "The session, and the number of its next call", "Session", errors=(*_READ, 410), parameters=[session]
            ),
            "delete": _operation("End it", None, errors=(*_READ, 410), parameters=[session]),
        },
        **{
            f"/v1/sessions/{{session}}/{op}": {"post": _operation(summary, answer, request, _WRITE, [session])}
            for op, summary, answer, request in (
                ("reset", "Start an episode", "Begun", "reset"),
                ("step", "Take a step", "Stepped", "step"),
                ("snapshot", "Keep the state of the episode", "Snapshot", None),
                ("restore", "Go on from a snapshot", "Restored", "restore"),
                ("propose", "A random call that fits a tool, drawn from a generator's state", "Proposal", "propose"),
                ("identify", "Goals of tasks, and what identifies them originally", "IdentifiedTasks", "identify"),
            )
        },
        "/v1/batch": {"post": _operation("Many calls at once", "Results", "batch", (400, 401, 405, 413, 415, 422))},
        "/healthz": {"get": {**_operation("The process lives", "Status", errors=(405,)), "security": []}},
        "/readyz": {"get": {**_operation("New sessions are taken", "Status", errors=(405, 503)), "security": []}},
        "/openapi.json": {"get": {**_operation("This document", "Document", errors=(405,)), "security": []}},
        "/metrics": {"get": _metrics()},
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "envsuite",
            "version": __version__,
            "description": "Environments for language agents. Errors are problem documents (RFC 9457).",
        },
        "paths": paths,
        "security": [{"token": []}, {}],
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {
                **ANSWERS,
                "Tools": {
                    "type": "object",
                    "properties": {
                        "environment": _TEXT,
                        "tools": {"type": "array", "items": {"$ref": "#/components/schemas/Tool"}},
                    },
                    "required": ["environment", "tools"],
                },
                "Status": {"type": "object", "properties": {"status": _TEXT}, "required": ["status"]},
                "Document": {"type": "object", "required": ["openapi", "paths"]},
            },
        },
    }


def _parameter(name: str, place: str, schema: Mapping[str, Any], example: str | None = None) -> dict[str, Any]:
    parameter: dict[str, Any] = {"name": name, "in": place, "required": True, "schema": dict(schema)}
    return parameter if example is None else {**parameter, "example": example}


def _operation(
    summary: str,
    answer: str | None,
    request: str | None = None,
    errors: tuple[int, ...] = (),
    parameters: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    operation: dict[str, Any] = {"summary": summary, "responses": {}}
    if parameters:
        operation["parameters"] = parameters
    if request is not None:
        operation["requestBody"] = {"required": True, "content": {JSON_TYPE: {"schema": REQUESTS[request]}}}
    if answer is None:
        operation["responses"]["204"] = {"description": "It has ended."}
    else:
        content = {JSON_TYPE: {"schema": {"$ref": f"#/components/schemas/{answer}"}}}
        operation["responses"]["200"] = {"description": summary + ".", "content": content}
    for status in errors:
        problem = {PROBLEM_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
        operation["responses"][str(status)] = {"description": _ERRORS[status], "content": problem}
        if status in (429, 503):
            wait = {"Retry-After": {"required": True, "schema": {"type": "integer"}, "description": "Seconds."}}
            operation["responses"][str(status)]["headers"] = wait
    return operation


def _metrics() -> dict[str, Any]:
    operation = _operation("Counters, as Prometheus reads them", "Status", errors=(401, 405))
    operation["responses"]["200"]["content"] = {"text/plain": {"schema": _TEXT}}
    return operation
