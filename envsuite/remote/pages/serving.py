"""The server of a page, which accepts requests of this page alone. Needs Flask and uvicorn."""

from __future__ import annotations

import socket
from collections.abc import Collection
from typing import cast

from flask import Flask, Response, abort, request

from envsuite.remote.guard import RequestGuard
from envsuite.remote.listening import run_until_signal
from envsuite.remote.wsgi import WSGIServer

_CUT_OFF = 1 << 22
"""Size in bytes from which on a request is not even received."""
_THREADS = 8
"""Number of threads: more than the connections that a browser opens at once."""
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not "no-referrer": browsers then send the origin "null" with a form, which would be refused.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Headers of every response."""


def serve(app: Flask, listener: socket.socket) -> None:
    """Serves the requests of a listening socket, until Ctrl-C."""
    run_until_signal(WSGIServer(app, listener, _CUT_OFF, threads=_THREADS))


def check_request(hosts: Collection[str] | None) -> None:
    """Refuses a request for a host name that is not in ``hosts`` (421; ``None`` accepts any), or of another site (403).

    Names of this machine are always accepted.
    """
    guard = RequestGuard(hosts is not None, names=hosts or ())
    if (refusal := guard.refusal(request.method, request.path, request.headers.get)) is not None:
        abort(refusal.status)


def constant(content: str | bytes, kind: str) -> Response:
    """Returns a response for a constant file, which the browser revalidates."""
    response = Response(content, mimetype=kind)
    response.headers["Cache-Control"] = "no-cache"
    response.add_etag()
    return cast(Response, response.make_conditional(request))
