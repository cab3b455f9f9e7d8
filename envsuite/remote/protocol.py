"""The protocol of server and clients: names, numbers, and the mapping of errors.

The page ``docs/serving.md`` describes the whole contract, ``envsuite/serving/openapi.json`` in the form of OpenAPI.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

import orjson

from envsuite.core.env import Observation
from envsuite.core.errors import (
    DataError,
    EnvsuiteError,
    MissingExtra,
    UnknownName,
    UnknownTask,
    UsageError,
    WorkerLost,
)
from envsuite.core.images import as_png, from_png

TOKEN_VARIABLE = "ENVSUITE_TOKEN"
"""Environment variable of the bearer token, for servers and clients."""
JSON_TYPE = "application/json"
PROBLEM_TYPE = "application/problem+json"
EPISODE = ("task_id", "task_type", "split", "versions")
"""Keys of an info that hold for a whole episode: in the answer to a reset, not in those to its steps."""

ERRORS: Mapping[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (UnknownTask, UnknownName, DataError, MissingExtra, WorkerLost, UsageError, TypeError, ValueError)
}
"""Exceptions that a client raises as a local environment would."""
STATUS: Mapping[type[Exception], int] = {
    UnknownTask: 404,
    UnknownName: 422,
    DataError: 422,
    MissingExtra: 422,
    WorkerLost: 410,
    UsageError: 409,
    EnvsuiteError: 422,
}
"""HTTP status of the errors of environments."""
TITLES: Mapping[str, str] = {
    "malformed": "The request cannot be read",
    "invalid": "A field of the request is wrong",
    "unauthorized": "A bearer token is needed",
    "misdirected": "The request is for another host",
    "foreign-page": "The page of another site asks",
    "not-found": "There is nothing at this address",
    "method": "This address takes another method",
    "too-large": "The request is too large",
    "media-type": "Bodies are JSON",
    "unknown-environment": "This server does not offer the environment",
    "unknown-session": "This server has no such session",
    "unknown-snapshot": "The snapshot is gone",
    "session-lost": "The session has failed",
    "session-ended": "The session has ended",
    "out-of-order": "A call is missing, or was answered long ago",
    "refused": "The environment refuses the call",
    "capacity": "The server is full",
    "connections": "The server has too many connections",
    "draining": "The server is about to end",
    "internal": "The server has a bug",
}
"""Titles of problems, by the last part of the problem's type."""


def as_json(observation: Observation, task: bool = True) -> dict[str, Any]:
    """Returns an observation as an answer has it: images as PNG, in base64.

    Args:
        observation: The observation.
        task: With the instruction, which is told where an episode begins or goes on.

    Raises:
        MissingExtra: It has images, and Pillow is not installed.
    """
    answer: dict[str, Any] = {"task": observation["task"]} if task else {}
    answer |= {name: observation[name] for name in ("text", "commands", "tools") if name in observation}
    if "images" in observation:
        answer["images"] = [base64.b64encode(as_png(image)).decode() for image in observation["images"]]
    return answer


def from_json(task: str, answer: Mapping[str, Any]) -> Observation:
    """Returns the observation in an answer, of an episode with this instruction.

    Raises:
        DataError: An image is no PNG file.
        MissingExtra: It has images, and Pillow is not installed.
    """
    observation = Observation(task=task, text=answer["text"], commands=tuple(answer["commands"]))
    if "tools" in answer:
        observation["tools"] = tuple(answer["tools"])
    if "images" in answer:
        try:
            files = (base64.b64decode(image, validate=True) for image in answer["images"])
            observation["images"] = tuple(map(from_png, files))
        except binascii.Error as error:
            raise DataError(f"an image of the server's answer is not in base64: {error}") from error
    return observation


class HttpProblem(Exception):
    """An answer other than success: a problem document (RFC 9457) with its status.

    Args:
        status: HTTP status.
        kind: One of :data:`TITLES`.
        detail: The error and its remedy.
        field: The field of the request that is wrong, e.g. ``"calls.0.name"``.
        error: Name of the exception that a client raises, one of :data:`ERRORS`.
        wait: Seconds after which to retry.
        more: Further members of the document.
    """

    def __init__(
        self,
        status: int,
        kind: str,
        detail: str,
        *,
        field: str | None = None,
        error: str = "UsageError",
        wait: int | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status, self.kind, self.detail, self.field, self.error = status, kind, detail, field, error
        self.wait, self.more = wait, dict(more or {})

    def document(self) -> bytes:
        """Returns the problem as JSON."""
        body: dict[str, Any] = {
            "type": f"urn:envsuite:problem:{self.kind}",
            "title": TITLES[self.kind],
            "status": self.status,
            "detail": self.detail,
            "error": self.error,
        }
        if self.field is not None:
            body["field"] = self.field
        if self.wait is not None:
            body["retry_after"] = self.wait
        return orjson.dumps({**body, **self.more})


def problem_of(error: Exception) -> HttpProblem:
    """Returns the problem that reports an ``error`` which the client can correct.

    Args:
        error: An :class:`~envsuite.core.errors.EnvsuiteError`, or a ``TypeError`` or ``ValueError`` of a constructor.
    """
    name = next((name for name, kind in ERRORS.items() if isinstance(error, kind)), "UsageError")
    status = next((status for kind, status in STATUS.items() if isinstance(error, kind)), 422)
    return HttpProblem(status, "refused", str(error), error=name)
