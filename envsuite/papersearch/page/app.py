"""Serves the page: a document with its script, and the episodes of its tabs as JSON.

The rules are not here: what the page does is a step of the environment. A tab identifies its episode by a key in the
header ``X-Visit``, which no page of another site can know or send.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from functools import partial
from importlib.resources import files
from typing import Any

import orjson

from envsuite.core.errors import EnvsuiteError, UnknownTask, UsageError, require_extra
from envsuite.core.schemas import object_schema
from envsuite.core.tools import Tool, ToolCall
from envsuite.papersearch.env import PaperSearchEnv
from envsuite.papersearch.page.state import paper_details, state
from envsuite.papersearch.page.visits import PageTasks, Visit
from envsuite.remote.pages.visitors import Visitors

with require_extra("`envsuite play papersearch --browser` needs Flask and uvicorn", "serve"):
    from flask import Flask, Response, abort, request
    from werkzeug.exceptions import HTTPException

    from envsuite.remote.pages.serving import constant, guard_page, serve_page

__all__ = ["create_app", "serve_page"]

CAPACITY = 64
"""Maximum number of visits."""
LARGEST_BODY = 1 << 16
"""Limit in bytes of a request's body."""
MATCHES = 50
"""Tasks that a search for tasks returns."""
FILES = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/pool.js": ("pool.js", "text/javascript"),
    "/graph.js": ("graph.js", "text/javascript"),
    "/elements.js": ("elements.js", "text/javascript"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'none'; "
    "base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
_MESSAGES = {
    403: "The request came from another site; use the page itself.",
    404: "There is nothing at this address.",
    405: "This address does not take such a request.",
    413: f"The request is larger than {LARGEST_BODY:,} bytes.",
    421: "The page has another name. Open it by a name of this machine, or start it with --host 0.0.0.0.",
    500: "Something broke in the server; its log says what.",
}


def _body(**fields: Mapping[str, Any]) -> Tool:
    """Returns what checks the body of a request: an object with these fields, all required."""
    return Tool("request", "", object_schema(fields))


_CHANGE = {"type": "integer", "minimum": 0}
_UNDO = _body(change=_CHANGE)
_REVEAL = _body(show={"type": "boolean"})
_BEGIN = _body(change=_CHANGE, task={"type": "string", "maxLength": 1_000})
_MOVE = _body(change=_CHANGE, to={"enum": ["same", "next", "previous", "random"]})


def create_app(env: PaperSearchEnv, tasks: PageTasks, hosts: Collection[str] | None = None) -> Flask:
    """Creates the page as a WSGI application.

    Args:
        env: The environment in which all episodes are played, one request at a time.
        tasks: The tasks.
        hosts: Host names of the page; requests for others are refused. By default any.
    """
    app = Flask("envsuite.papersearch.page", static_folder=None)
    app.config.update(MAX_CONTENT_LENGTH=LARGEST_BODY)
    visitors: Visitors[Visit] = Visitors(CAPACITY)
    lock = threading.Lock()
    properties: dict[str, Any] = {"tool": {"enum": [tool.name for tool in env.tools]}, "argument": {"type": "string"}}
    items = _body(**properties).parameters
    step_body = _body(change=_CHANGE, calls={"type": "array", "minItems": 1, "maxItems": env.max_calls, "items": items})
    arguments = {tool.name: next(iter(tool.parameters["properties"])) for tool in env.tools}

    def current_visit() -> Visit:
        visit = visitors.find(request.headers.get("X-Visit", ""))
        if visit is None:
            abort(_refusal(410, "This episode is no longer on the server."))
        return visit

    guard_page(app, hosts, POLICY)

    for address, (name, kind) in FILES.items():
        content = (files("envsuite.papersearch.page") / name).read_bytes()
        app.add_url_rule(address, name, partial(constant, content, kind))

    @app.post("/api/visit")
    def visit() -> Response:
        with lock:
            new = visitors.add(Visit(env, tasks))
            return _json({"visit": new.key, "state": state(new)})

    @app.get("/api/state")
    def show() -> Response:
        visit = current_visit()
        with lock:
            return _json({"state": state(visit)})

    def step(visit: Visit, body: Mapping[str, Any]) -> None:
        visit.act(tuple(ToolCall(call["tool"], {arguments[call["tool"]]: call["argument"]}) for call in body["calls"]))

    def reveal(visit: Visit, body: Mapping[str, Any]) -> None:
        visit.revealed = body["show"]

    def move(visit: Visit, body: Mapping[str, Any]) -> None:
        if body["to"] == "same":
            visit.begin(visit.task_id)
        elif body["to"] == "random":
            visit.random()
        else:
            visit.move(1 if body["to"] == "next" else -1)

    changes: Mapping[str, tuple[Tool, Callable[[Visit, Mapping[str, Any]], None]]] = {
        "step": (step_body, step),
        "undo": (_UNDO, lambda visit, body: visit.undo()),
        "score": (_REVEAL, reveal),
        "move": (_MOVE, move),
        "begin": (_BEGIN, lambda visit, body: visit.begin(body["task"])),
    }

    def answer_change(form: Tool, change: Callable[[Visit, Mapping[str, Any]], None]) -> Response:
        visit, body = current_visit(), _read(form)
        with lock:
            if body.get("change", visit.changes) != visit.changes:
                why = "The episode went on elsewhere, perhaps in a copy of this tab; this is where it is."
                abort(_json({"error": why, "state": state(visit)}, 409))
            change(visit, body)
            return _json({"state": state(visit)})

    for name, (form, change) in changes.items():
        app.add_url_rule(f"/api/{name}", name, partial(answer_change, form, change), methods=["POST"])

    @app.get("/api/hint")
    def hint() -> Response:
        visit = current_visit()
        with lock:
            calls = [{"tool": call.name, "argument": call.arguments[arguments[call.name]]} for call in visit.hint()]
        return _json({"calls": calls})

    @app.get("/api/tasks")
    def search_tasks() -> Response:
        words = request.args.get("words", "").lower().split()
        texts = ((task_id, env.collection.task(task_id)["text"]) for task_id in tasks.ids)
        matching = [
            {"id": task_id, "query": text}
            for task_id, text in texts
            if all(word in f"{task_id} {text}".lower() for word in words)
        ]
        return _json({"total": len(matching), "tasks": matching[:MATCHES]})

    @app.get("/api/paper")
    def paper() -> Response:
        visit = current_visit()
        with lock:
            details = paper_details(visit.enter().session, request.args.get("id", ""))
        return _refusal(404, "This paper is not in the pool.") if details is None else _json(details)

    @app.errorhandler(HTTPException)
    def answer_http_error(error: HTTPException) -> Response:
        if isinstance(error.response, Response):
            return error.response
        status = error.code or 500
        response = _refusal(status, _MESSAGES.get(status, error.description or error.name))
        response.headers.extend({name: value for name, value in error.get_headers() if name == "Allow"})
        return response

    @app.errorhandler(EnvsuiteError)
    def answer_env_error(error: EnvsuiteError) -> Response:
        if isinstance(error, UsageError | UnknownTask):
            return _refusal(400, str(error))
        app.logger.error("%s", error)
        return _refusal(500, str(error))

    return app


def _read(form: Tool) -> dict[str, Any]:
    """Returns the body of the request, which has the fields of ``form``."""
    if request.mimetype != "application/json":
        abort(_refusal(415, "The body must be JSON (Content-Type: application/json)."))
    try:
        body = orjson.loads(request.get_data())
    except orjson.JSONDecodeError as error:
        abort(_refusal(400, f"The body is not JSON: {error}."))
    if (problem := form.problem(body)) is not None:
        abort(_refusal(400, f"The request is not one of this page's: {problem}."))
    return body  # type: ignore[no-any-return]


def _refusal(status: int, why: str) -> Response:
    return _json({"error": why}, status)


def _json(value: Mapping[str, Any], status: int = 200) -> Response:
    return Response(orjson.dumps(value), status, mimetype="application/json")
