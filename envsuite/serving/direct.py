"""Answers the most frequent requests without the web framework.

A framework takes 160 µs for a request whose step takes 10. Every request except a well-formed
``create``, ``reset``, ``step`` or ``batch`` goes to the framework, which reports errors.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any

import orjson

from envsuite.remote.problems import BUG
from envsuite.remote.protocol import JSON_TYPE, PROBLEM_TYPE, HttpProblem
from envsuite.serving.front import Front
from envsuite.serving.host import Answer
from envsuite.serving.schemas import parse_body

log = logging.getLogger("envsuite.serving")
Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
LINES = {status.value: f"{status.value} {status.phrase}" for status in HTTPStatus}


class Direct:
    """A WSGI application in front of another one.

    Args:
        rest: The application for all other requests.
        front: The sessions.
    """

    def __init__(self, rest: Application, front: Front) -> None:
        self._rest, self._front = rest, front

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Answers one request."""
        call = self._call(environ)
        if call is None:
            return self._rest(environ, start_response)
        began = time.perf_counter()
        op, session = call
        try:
            body = parse_body(op, environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
            if session:
                body["session"] = session
            status, answer = batch(self._front, body) if op == "batch" else self._front.call(op, body)
        except HttpProblem as problem:
            status, answer = problem.status, problem.document()
        except Exception as error:  # whatever it is, the client gets a problem document, not a dropped connection
            log.error("%s failed", environ["PATH_INFO"], exc_info=error)
            status, answer = BUG.status, BUG.document()
        start_response(LINES[status], headers((status, answer)))
        self._front.metrics.request(status, time.perf_counter() - began)
        return [answer]

    def _call(self, environ: dict[str, Any]) -> tuple[str, str] | None:
        """Returns operation and session of a request that is answered here; ``None`` for others."""
        length = environ.get("CONTENT_LENGTH", "")
        if environ["REQUEST_METHOD"] != "POST" or environ.get("CONTENT_TYPE") != JSON_TYPE:
            return None
        if not (length.isascii() and length.isdecimal()) or int(length) > self._front.settings.max_body:
            return None
        match environ["PATH_INFO"].split("/"):
            case ["", "v1", "batch"]:
                return "batch", ""
            case ["", "v1", "sessions"]:
                return "create", ""
            case ["", "v1", "sessions", session, ("reset" | "step") as op] if session:
                return op, session
        return None


def batch(front: Front, body: dict[str, Any]) -> Answer:
    """Answers a batch."""
    answers = front.batch(body["calls"])
    results = [{"status": status, "body": orjson.Fragment(body) if body else None} for status, body in answers]
    return 200, orjson.dumps({"results": results})


def headers(answer: Answer) -> list[tuple[str, str]]:
    """Returns the headers of an answer."""
    status, body = answer
    if status == 204:
        return []
    fields = [("Content-Type", JSON_TYPE if status < 300 else PROBLEM_TYPE), ("Content-Length", str(len(body)))]
    if status == 401:
        fields.append(("WWW-Authenticate", "Bearer"))
    if status in (429, 503):
        fields.append(("Retry-After", str(orjson.loads(body)["retry_after"])))
    return fields
