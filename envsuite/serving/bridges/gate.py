"""Access control of a bridge: the token, its host names, and the size limit of a body."""

from __future__ import annotations

import base64
import binascii
import hmac
import urllib.parse

from mcp.server.streamable_http_manager import RequestBodyLimitMiddleware
from mcp.server.transport_security import TransportSecurityMiddleware, TransportSecuritySettings
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from envsuite.remote.protocol import PROBLEM_TYPE, Problem
from envsuite.remote.tokens import token_needed
from envsuite.serving.bridges.settings import LOOPBACK, Settings


class Gate:
    """An ASGI application in front of another one.

    It accepts a token as ``Authorization: Bearer …``, or as the password of a user in the address, for clients that
    cannot send headers.

    Args:
        app: The application for authorised requests.
        settings: Settings of the bridge.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = RequestBodyLimitMiddleware(app, settings.max_body)
        self._token = None if settings.token is None else settings.token.encode()
        # A page in a browser on this machine must not get in, even if its own host name resolves to 127.0.0.1.
        names = [f"[{host}]" if ":" in host else host for host in LOOPBACK] if settings.private else []
        self._private = settings.private
        self._security = TransportSecurityMiddleware(
            TransportSecuritySettings(
                enable_dns_rebinding_protection=settings.private,
                allowed_hosts=[form for name in names for form in (name, f"{name}:*")],
                allowed_origins=[f"http://{form}" for name in names for form in (name, f"{name}:*")],
            )
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request, or passes it on."""
        if scope["type"] in ("http", "websocket") and (refusal := await self._refusal(scope)) is not None:
            await refusal(scope, receive, send)
            return
        await self._app(scope, receive, send)

    async def _refusal(self, scope: Scope) -> Response | None:
        connection = HTTPConnection(scope)
        if self._token is not None and not hmac.compare_digest(_shown(connection.headers), self._token):
            detail = token_needed("bridge", "authorization" in connection.headers)
            return problem(Problem(401, "unauthorized", detail), {"WWW-Authenticate": "Bearer"})
        origin = connection.headers.get("origin")
        if not self._private and origin and urllib.parse.urlsplit(origin).netloc != connection.headers.get("host"):
            return problem(Problem(403, "unauthorized", f"pages of {origin[:200]} may not call this bridge"))
        return await self._security.validate_request(connection)  # type: ignore[arg-type]


def problem(told: Problem, headers: dict[str, str] | None = None) -> Response:
    """Returns a problem document as a response."""
    return Response(told.document(), told.status, headers, PROBLEM_TYPE)


def _shown(headers: Headers) -> bytes:
    """Returns the token in the headers."""
    kind, _, value = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return value.encode("latin-1", "replace")
    if kind.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).partition(b":")[2]
        except (binascii.Error, ValueError):
            return b""
    return b""
