"""Access control of a bridge: the guard, and the size limit of a body."""

from __future__ import annotations

from mcp.server.streamable_http_manager import RequestBodyLimitMiddleware
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from envsuite.remote.guard import Guard
from envsuite.remote.protocol import PROBLEM_TYPE, Problem
from envsuite.serving.bridges.settings import Settings


class Gate:
    """An ASGI application in front of another one.

    Args:
        app: The application for requests that the guard lets in.
        settings: Settings of the bridge.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = RequestBodyLimitMiddleware(app, settings.max_body)
        self._guard = Guard(settings.private, settings.token, who="bridge")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request, or passes it on."""
        if scope["type"] in ("http", "websocket"):
            refusal = self._guard.refusal(scope.get("method", "GET"), scope["path"], Headers(scope=scope).get)
            if refusal is not None:
                headers = {"WWW-Authenticate": "Bearer"} if refusal.status == 401 else None
                await problem(refusal, headers)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def problem(told: Problem, headers: dict[str, str] | None = None) -> Response:
    """Returns a problem document as a response."""
    return Response(told.document(), told.status, headers, PROBLEM_TYPE)
