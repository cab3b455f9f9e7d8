"""The server of a page, which accepts requests of this page alone. Needs Flask and waitress."""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Collection
from typing import cast

from flask import Flask, Response, abort, request
from waitress import create_server

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
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)  # a page with ten pictures is not worth a warning
    server = create_server(
        app, sockets=[listener], threads=_THREADS, max_request_body_size=_CUT_OFF, clear_untrusted_proxy_headers=True
    )
    try:
        server.run()
    finally:
        server.close()


def check_host(hosts: Collection[str] | None) -> None:
    """Refuses a request for a host name that is not in ``hosts`` with the status 421; ``None`` accepts any."""
    if hosts is not None and re.sub(r":\d+$", "", request.host) not in hosts:
        abort(421)


def check_origin() -> None:
    """Refuses a request that the page of another site made, with the status 403."""
    origin = request.headers.get("Origin")
    if origin is not None and origin not in (f"http://{request.host}", f"https://{request.host}"):
        abort(403)
    if origin is None and request.headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none"):
        abort(403)


def constant(content: str | bytes, kind: str) -> Response:
    """Returns a response for a constant file, which the browser revalidates."""
    response = Response(content, mimetype=kind)
    response.headers["Cache-Control"] = "no-cache"
    response.add_etag()
    return cast(Response, response.make_conditional(request))
