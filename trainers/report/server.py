"""``envsuite report RUN --serve``: shows a run to browsers while it goes on; it only reads."""

from __future__ import annotations

import gzip
import hashlib
import hmac
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import orjson
from flask import Flask, Response, request

from envsuite.core.addresses import is_private, open_socket
from envsuite.core.errors import DataError, UsageError
from envsuite.remote.guard import RequestGuard
from envsuite.remote.listening import run_until_signal
from envsuite.remote.problems import answer_errors
from envsuite.remote.protocol import TOKEN_VARIABLE, HttpProblem
from envsuite.remote.tokens import check_token
from envsuite.remote.wsgi import WSGIServer
from trainers.report.html import LIVE_SCRIPTS, page, script_json
from trainers.report.live import LiveRun
from trainers.report.methods import DEFAULT

log = logging.getLogger("trainers.report.server")
COOKIE = "envsuite_report"
THREADS = 4
MAX_BODY = 16 * 1024
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "img-src data:; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # with "no-referrer" browsers send the origin "null" with a form
}
LOGIN = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>Token needed</title>
<style>body { font: 1rem/1.5 system-ui, sans-serif; max-width: 24rem; margin: 4rem auto; padding: 0 1rem; }
input, button { font: inherit; padding: .4rem .6rem; width: 100%; box-sizing: border-box; margin-top: .5rem; }</style>
</head><body><h1>Token needed</h1><form method="post" action="login"><label for="token">Token of this server</label>
<input id="token" name="token" type="password" autocomplete="current-password" autofocus required>
<button>Show the run</button></form></body></html>
"""


@dataclass(frozen=True)
class ServeSettings:
    """Where a report is served, and to whom."""

    folder: Path
    """Folder of the run; it need not exist yet."""
    host: str = "127.0.0.1"
    """Address to listen at; by default only this machine can connect."""
    port: int = 8090
    """Port; 0 for any free one."""
    token: str | None = field(default=None, repr=False)
    """Token required from clients; must be given where other machines can connect."""
    methods: Sequence[str] = DEFAULT
    """Methods whose advantages can be asked for."""

    def __post_init__(self) -> None:
        check_token(self.token)
        if self.token is None and not self.local:
            raise UsageError(
                f"--host {self.host} lets other machines connect: give a token, which readers must then send, with "
                f"--token-file or {TOKEN_VARIABLE}; or leave --host out, and forward the port with ssh -L"
            )

    @property
    def local(self) -> bool:
        """Whether only this machine can connect."""
        return is_private(self.host)


def make_app(settings: ServeSettings) -> Flask:
    """Makes the WSGI application: the page, its state as JSON, and packed episodes and advantages."""
    run = LiveRun(settings.folder, settings.methods)
    app = Flask("trainers.report", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY
    key = None if settings.token is None else hashlib.sha256(settings.token.encode()).hexdigest()
    guard = RequestGuard(settings.local, settings.token, open_paths=("/login",))

    @app.before_request
    def admit() -> Response | None:
        refusal = guard.refusal(request.method, request.path, request.headers.get)
        if refusal is None:
            return None
        if refusal.status == 401 and key is not None:
            if hmac.compare_digest(request.cookies.get(COOKIE, "").encode("utf-8", "surrogateescape"), key.encode()):
                return None
            if request.path == "/" and request.method == "GET":
                return Response(LOGIN, 401, mimetype="text/html")
        raise refusal

    @app.after_request
    def with_headers(response: Response) -> Response:
        response.headers.update(HEADERS)
        response.headers.setdefault("Cache-Control", "no-store")
        return response

    answer_errors(app, log)

    @app.get("/")
    def show() -> Response:
        body = run.state()
        data = f'<script type="application/json" id="data">{script_json(body)}</script>\n'
        text = "".join(page("template.html", str(body["name"]), [data], LIVE_SCRIPTS, live=True))
        return _gzip_response(text.encode(), "text/html; charset=utf-8")

    @app.post("/login")
    def login() -> Response:
        token = request.form.get("token", "").encode("utf-8", "surrogateescape")
        if key is None or settings.token is None or not hmac.compare_digest(token, settings.token.encode()):
            return Response(LOGIN, 401, mimetype="text/html")
        response = Response("", 303, headers={"Location": "./"})
        response.set_cookie(COOKIE, key, httponly=True, samesite="Strict")
        return response

    @app.get("/now")
    def now() -> Response:
        return _gzip_response(orjson.dumps(run.now()), "application/json")

    @app.get("/state")
    def state() -> Response:
        return _gzip_response(orjson.dumps(run.state()), "application/json")

    @app.get("/<any(episodes, graphs, advantages):kind>/<name>")
    def part(kind: str, name: str) -> Response:
        try:
            text = run.part(kind, name)
        except DataError as error:
            raise HttpProblem(404, "not-found", str(error).encode("utf-8", "replace").decode()) from error
        if text is None:
            raise HttpProblem(404, "not-found", f"there are no {kind} of that name")
        return Response(text, mimetype="text/plain", headers={"Cache-Control": "private, max-age=3600"})

    return app


def make_server(settings: ServeSettings) -> WSGIServer:
    """Makes a server of a run, which serves until it is stopped.

    Raises:
        UsageError: The address cannot be listened at.
    """
    return WSGIServer(make_app(settings), open_socket(settings.host, settings.port), MAX_BODY, threads=THREADS)


def serve(settings: ServeSettings, tell: Callable[[str], None]) -> None:
    """Serves until Ctrl-C.

    Args:
        settings: Where, and to whom.
        tell: Is given one line: the address.

    Raises:
        UsageError: The address cannot be listened at.
    """
    server = make_server(settings)
    access = "the token is needed" if settings.token is not None else "this machine only"
    tell(f"{settings.folder}: {server.url} ({access}); Ctrl-C ends")
    run_until_signal(server)


def _gzip_response(content: bytes, kind: str) -> Response:
    response = Response(content, content_type=kind)
    response.headers["Vary"] = "Accept-Encoding, Cookie"
    if len(content) > 1000 and "gzip" in request.headers.get("Accept-Encoding", ""):
        response.set_data(gzip.compress(content, 5))
        response.headers["Content-Encoding"] = "gzip"
    return response
