"""The server of a page, which accepts requests of this page alone. Needs Flask and uvicorn."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Collection
from typing import cast

from flask import Flask, Response, abort, request

from envsuite.core.addresses import is_private, open_socket
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
"""Headers of every response, besides the page's policy."""


def serve_page(
    arguments: argparse.Namespace, name: str, contents: str, create_app: Callable[[Collection[str] | None, int], Flask]
) -> int:
    """Serves a page until Ctrl-C; returns the exit code.

    Args:
        arguments: Those of :mod:`envsuite.remote.pages.address`.
        name: Name of the page, for people.
        contents: What it shows, for people.
        create_app: Makes the page of host names that are answered besides those of this machine (``None`` for any) and
            of a port.

    Raises:
        UsageError: The address is not available.
    """
    host = f"[{arguments.host}]" if ":" in arguments.host else arguments.host
    with open_socket(arguments.host, arguments.port) as listener:
        address, port = listener.getsockname()[:2]
        private = is_private(address)
        app = create_app((host,) if private else None, port)
        whom = "this machine alone" if private else "WHOEVER REACHES THIS ADDRESS, without a password"
        sys.stdout.write(f"{name} ({contents}) is open at http://{host}:{port}/ for {whom}; Ctrl-C closes it.\n")
        sys.stdout.flush()
        run_until_signal(WSGIServer(app, listener, _CUT_OFF, threads=_THREADS))
    sys.stdout.write(f"{name} is closed.\n")
    return 0


def guard_page(app: Flask, hosts: Collection[str] | None, policy: str) -> None:
    """Has a page refuse requests for other host names (421) and of other sites (403), and send :data:`HEADERS`.

    Args:
        app: The page.
        hosts: Host names that it answers besides those of this machine; ``None`` for any.
        policy: Its ``Content-Security-Policy``.
    """
    guard = RequestGuard(hosts is not None, names=hosts or ())

    @app.before_request
    def check_request() -> None:
        if (refusal := guard.refusal(request.method, request.path, request.headers.get)) is not None:
            abort(refusal.status)

    @app.after_request
    def add_headers(response: Response) -> Response:
        response.headers.setdefault("Cache-Control", "no-store")
        response.headers.update({**HEADERS, "Content-Security-Policy": policy})
        return response


def constant(content: str | bytes, kind: str) -> Response:
    """Returns a response for a constant file, which the browser revalidates."""
    response = Response(content, mimetype=kind)
    response.headers["Cache-Control"] = "no-cache"
    response.add_etag()
    return cast(Response, response.make_conditional(request))
