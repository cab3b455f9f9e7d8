"""The HTTP side of a server: paths, bodies and errors."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import orjson
from flask import Blueprint, Flask, Response, g, request

from envsuite.remote.problems import answer_errors, request_body
from envsuite.remote.protocol import HttpProblem
from envsuite.serving.direct import Direct, headers
from envsuite.serving.direct import batch as answer_batch
from envsuite.serving.front import Front
from envsuite.serving.host import Answer
from envsuite.serving.schemas import REQUEST_CHECKS, document, parse_body

log = logging.getLogger("envsuite.serving")
OPEN = ("/healthz", "/readyz", "/openapi.json")
"""Paths that need no token."""


def make_app(front: Front, ready: Callable[[], bool], blueprints: Sequence[Blueprint] = ()) -> Flask:
    """Makes the WSGI application of a server.

    Args:
        front: Its sessions.
        ready: Returns whether new sessions can start immediately.
        blueprints: Further paths, with the same token and limits.
    """
    app = Flask("envsuite", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = front.settings.max_body
    app.register_blueprint(_calls(front))
    app.register_blueprint(_listings(front))
    app.register_blueprint(_health(front, ready))
    for blueprint in blueprints:
        app.register_blueprint(blueprint)

    @app.before_request
    def begin() -> None:
        g.began = time.perf_counter()

    @app.after_request
    def measure(response: Response) -> Response:
        front.metrics.request(response.status_code, time.perf_counter() - g.began)
        return response

    answer_errors(app, log)
    app.wsgi_app = Direct(app.wsgi_app, front)  # type: ignore[method-assign]
    return app


def _response(answer: Answer) -> Response:
    response = Response(answer[1], answer[0], headers=headers(answer))
    if answer[0] == 204:
        del response.headers["Content-Type"]
    return response


def _body(op: str) -> dict[str, Any]:
    return parse_body(op, request_body())


def _calls(front: Front) -> Blueprint:
    calls = Blueprint("calls", __name__, url_prefix="/v1")

    @calls.post("/sessions")
    def create() -> Response:
        return _response(front.call("create", _body("create")))

    def execute(op: str, session: str) -> Response:
        body = _body(op) if op in REQUEST_CHECKS else {}
        return _response(front.call(op, {**body, "session": session}))

    for method, op in (("GET", "show"), ("DELETE", "close")):
        calls.add_url_rule("/sessions/<session>", op, partial(execute, op), methods=[method])
    for op in ("reset", "step", "snapshot", "restore", "propose", "identify"):
        calls.add_url_rule(f"/sessions/<session>/{op}", op, partial(execute, op), methods=["POST"])

    @calls.post("/batch")
    def batch() -> Response:
        return _response(answer_batch(front, _body("batch")))

    return calls


def _listings(front: Front) -> Blueprint:
    listings = Blueprint("listings", __name__, url_prefix="/v1")

    @listings.get("/environments")
    def environments() -> Response:
        offers = [
            {"id": o.env_id, "max_episode_steps": o.max_episode_steps, "arguments": dict(o.arguments)}
            for o in front.offers.values()
        ]
        return _response((200, orjson.dumps({"environments": offers})))

    @listings.get("/environments/<path:env_id>")
    def environment(env_id: str) -> Response:
        return _response(front.call("describe", {"environment": env_id}))

    @listings.post("/environments/<path:env_id>")
    def describe(env_id: str) -> Response:
        return _response(front.call("describe", {**_body("describe"), "environment": env_id}))

    @listings.get("/environments/<path:env_id>/tools")
    def tools(env_id: str) -> Response:
        return _part(env_id, lambda description: {"environment": env_id, "tools": description["tools"]})

    @listings.get("/environments/<path:env_id>/tasks")
    def tasks(env_id: str) -> Response:
        split = request.args.get("split")

        def list_tasks(description: dict[str, Any]) -> dict[str, Any]:
            manifest = description["tasks"]
            if split is not None and split not in manifest["splits"]:
                detail = f"split: {env_id} has no split {split!r}; it has {', '.join(manifest['splits'])}"
                raise HttpProblem(404, "refused", detail, field="split", error="UnknownTask")
            rows = [
                {"id": task_id, "split": name, "type": manifest["types"][task_id]}
                for name, ids in manifest["splits"].items()
                if split in (None, name)
                for task_id in ids
            ]
            return {"environment": env_id, **{k: manifest[k] for k in ("source", "version", "hash")}, "tasks": rows}

        return _part(env_id, list_tasks)

    def _part(env_id: str, part: Callable[[dict[str, Any]], dict[str, Any]]) -> Response:
        status, body = front.call("describe", {"environment": env_id})
        return _response((status, orjson.dumps(part(orjson.loads(body))) if status == 200 else body))

    return listings


def _health(front: Front, ready: Callable[[], bool]) -> Blueprint:
    health = Blueprint("health", __name__)
    document_bytes = orjson.dumps(document(front.offers))

    @health.get("/healthz")
    def healthz() -> Response:
        return _response((200, b'{"status":"ok"}'))

    @health.get("/readyz")
    def readyz() -> Response:
        if front.draining:
            raise HttpProblem(503, "draining", "the server is about to end", wait=1)
        if not ready():
            raise HttpProblem(503, "draining", "workers are starting", wait=1)
        return _response((200, b'{"status":"ready"}'))

    @health.get("/metrics")
    def metrics() -> Response:
        gauges = {
            "envsuite_sessions": ("Number of sessions.", float(front.sessions)),
            "envsuite_sessions_limit": ("Maximum number of sessions.", float(front.settings.max_sessions)),
            "envsuite_requests_in_flight": ("Number of running requests on sessions.", float(front.busy)),
        }
        return Response(front.metrics.text(gauges), mimetype="text/plain; version=0.0.4")

    @health.get("/openapi.json")
    def openapi() -> Response:
        return _response((200, document_bytes))

    return health
