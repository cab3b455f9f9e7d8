"""An interpreter behind HTTP, for a container of its own: paths, bodies, errors, authorisation."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson
from flask import Flask, Response

from envsuite.core.addresses import is_private, open_socket
from envsuite.core.errors import UsageError
from envsuite.interpreter.base import SOURCE, Limits
from envsuite.interpreter.inside.kernel import hide_from_equals
from envsuite.interpreter.sessions import InterpreterSessions
from envsuite.remote.guard import RequestGuard
from envsuite.remote.listening import in_thread, run_until_signal
from envsuite.remote.problems import answer_errors, json_response, request_body
from envsuite.remote.protocol import TOKEN_VARIABLE, HttpProblem
from envsuite.remote.tokens import check_token
from envsuite.remote.wsgi import WSGIServer

log = logging.getLogger("envsuite.interpreter")
MAX_BODY = 8 * SOURCE
"""Most bytes of a request: the longest code, escaped."""
THREADS = 128
"""Calls that run at a time; others wait."""
SWEEP_SECONDS = 5.0
OPEN = ("/healthz",)
"""Paths that need no token."""


@dataclass(frozen=True)
class InterpreterSettings:
    """The settings of a server."""

    interpreter: str = "auto"
    """Name of the interpreter."""
    host: str = "127.0.0.1"
    """Address to listen at; by default only this machine can connect."""
    port: int = 8080
    """Port; 0 for any free one."""
    token: str | None = field(default=None, repr=False)
    """Token required from clients; ``None`` for none."""
    limits: Limits = field(default_factory=Limits)
    """The most that a session may use."""
    max_sessions: int = 1024
    """Most sessions at a time."""
    idle_seconds: float = 900.0
    """Seconds after which an idle session is ended."""

    def __post_init__(self) -> None:
        if self.max_sessions < 1 or not self.idle_seconds > 0:
            raise UsageError("max_sessions must be at least 1, and idle_seconds above 0")
        check_token(self.token)
        if self.interpreter == "unisolated" and self.token is None:
            raise UsageError(
                "the interpreter unisolated runs a client's code as this user: demand a token from clients, with "
                f"--token-file or {TOKEN_VARIABLE}"
            )


def make_app(sessions: InterpreterSessions) -> Flask:
    """Makes the WSGI application of a server with these sessions."""
    app = Flask("envsuite-interpreter", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY

    answer_errors(app, log)

    @app.get("/healthz")
    def healthz() -> Response:
        interpreter = sessions.interpreter
        health = {"status": "ok", "interpreter": interpreter.name, "isolation": list(interpreter.isolation)}
        return json_response({**health, "sessions": len(sessions), "limits": dataclasses.asdict(sessions.most)})

    @app.post("/v1/sessions")
    def create() -> Response:
        body = _body(key=str, limits=dict)
        return json_response({"session": sessions.create(body["key"][:128], body["limits"])})

    @app.post("/v1/sessions/<name>/run")
    def run(name: str) -> Response:
        body = _body(number=int, code=str)
        return json_response(sessions.run(name, body["number"], body["code"]))

    @app.delete("/v1/sessions/<name>")
    def close(name: str) -> Response:
        sessions.close(name)
        return Response(status=204)

    return app


def _body(**kinds: type) -> dict[str, Any]:
    """Returns the request's body: an object with fields of these kinds, and no others."""
    try:
        body = orjson.loads(request_body())
    except orjson.JSONDecodeError as error:
        raise HttpProblem(400, "malformed", f"the body is not JSON: {error}") from error
    if not isinstance(body, dict) or set(body) != set(kinds):
        raise HttpProblem(422, "invalid", f"the body must be an object with {', '.join(kinds)}, and nothing else")
    for name, kind in kinds.items():
        if not isinstance(body[name], kind) or isinstance(body[name], bool):
            raise HttpProblem(422, "invalid", f"{name} must be of type {kind.__name__}", field=name)
    return body


class InterpreterServer:
    """Serves sessions over HTTP until it is stopped.

    Args:
        settings: Its settings.

    Raises:
        UsageError: The interpreter does not work here, or the address is in use.
    """

    def __init__(self, settings: InterpreterSettings) -> None:
        self.sessions = InterpreterSessions(
            settings.interpreter, settings.limits, settings.max_sessions, settings.idle_seconds
        )
        self._http = WSGIServer(
            make_app(self.sessions), open_socket(settings.host, settings.port), MAX_BODY, threads=THREADS,
            guard=RequestGuard(is_private(settings.host), settings.token, OPEN), quick=OPEN.__contains__,
            headers=[("Server", "envsuite")],
        )  # fmt: skip
        self._stopped = threading.Event()
        self.url = self._http.url

    def run(self) -> None:
        """Serves until :meth:`stop`."""
        threading.Thread(target=self._sweep, daemon=True).start()
        self._http.run()
        self.sessions.close_all()

    def stop(self) -> None:
        """Ends :meth:`run`, from a signal or another thread."""
        self._stopped.set()
        self._http.stop()

    def _sweep(self) -> None:
        while not self._stopped.wait(min(SWEEP_SECONDS, self.sessions.idle_seconds / 2)):
            self.sessions.sweep()


def serve(settings: InterpreterSettings) -> None:
    """Serves until SIGTERM or SIGINT."""
    if sys.platform == "linux":
        hide_from_equals()  # the environment has the token
    server = InterpreterServer(settings)
    interpreter = server.sessions.interpreter
    log.warning("%s: %s (%s)", server.url, interpreter.name, "; ".join(interpreter.isolation))
    run_until_signal(server)


@contextlib.contextmanager
def serving(settings: InterpreterSettings) -> Iterator[InterpreterServer]:
    """Runs a server in a thread of this process for the duration of the block."""
    server = InterpreterServer(settings)
    with in_thread(server):
        yield server
