"""Flask applications whose answers are JSON, and whose errors are problem documents."""

from __future__ import annotations

import logging
from typing import Any

import orjson
from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException

from envsuite.remote.protocol import JSON_TYPE, PROBLEM_TYPE, HttpProblem

KINDS = {404: "not-found", 405: "method", 413: "too-large", 415: "media-type", 401: "unauthorized"}
"""Kinds of problems, by status; others are malformed or internal."""
BUG = HttpProblem(500, "internal", "the server has a bug, which its log describes", error="WorkerLost")


def problem_response(problem: HttpProblem) -> Response:
    """Returns a problem's document as a response."""
    response = Response(problem.document(), problem.status, content_type=PROBLEM_TYPE)
    if problem.wait is not None:
        response.headers["Retry-After"] = str(problem.wait)
    return response


def answer_errors(app: Flask, log: logging.Logger) -> None:
    """Has an application answer every error with a problem document, and log those that are bugs."""

    @app.errorhandler(HttpProblem)
    def tell(problem: HttpProblem) -> Response:
        return problem_response(problem)

    @app.errorhandler(HTTPException)
    def refuse(error: HTTPException) -> Response:
        status = error.code or 500
        kind = KINDS.get(status, "malformed" if status < 500 else "internal")
        response = problem_response(HttpProblem(status, kind, error.description or error.name))
        response.headers.extend((name, value) for name, value in error.get_headers() if name == "Allow")
        return response

    @app.errorhandler(Exception)
    def report_bug(error: Exception) -> Response:
        log.error("%s %s failed", request.method, request.path, exc_info=error)
        return problem_response(BUG)


def request_body() -> bytes:
    """Returns the body of the request, which must be JSON by its header.

    Raises:
        HttpProblem: It is not.
    """
    if request.mimetype != JSON_TYPE:
        detail = f"Content-Type is {request.mimetype or 'nothing'}; send {JSON_TYPE}"
        raise HttpProblem(415, "media-type", detail, field="Content-Type")
    return request.get_data(cache=False)


def json_response(content: Any) -> Response:
    """Returns a response of JSON."""
    return Response(orjson.dumps(content), content_type=JSON_TYPE)
