"""The bridge: serves both protocols for several environments, in one process, behind one guard."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Iterator

import anyio
from mcp.server.streamable_http_manager import RequestBodyLimitMiddleware
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from envsuite.core.addresses import open_socket
from envsuite.remote.guard import RequestGuard
from envsuite.remote.listening import HttpServer, in_thread, run_until_signal, send_problem
from envsuite.remote.protocol import PROBLEM_TYPE, HttpProblem
from envsuite.serving.bridges.mcp import MCPEndpoint
from envsuite.serving.bridges.openenv_app import OpenEnvContract
from envsuite.serving.bridges.openenv_sessions import OpenEnvSessions
from envsuite.serving.bridges.players import Seats, offer
from envsuite.serving.bridges.settings import BridgeSettings


class BridgeGate:
    """An ASGI application in front of another one.

    Args:
        app: The application for requests that the guard lets in.
        settings: Settings of the bridge.
    """

    def __init__(self, app: ASGIApp, settings: BridgeSettings) -> None:
        self._app = RequestBodyLimitMiddleware(app, settings.max_body)
        self._guard = RequestGuard(settings.private, settings.token, who="bridge")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request, or passes it on."""
        if scope["type"] in ("http", "websocket"):
            refusal = self._guard.refusal(scope.get("method", "GET"), scope["path"], Headers(scope=scope).get)
            if refusal is not None:
                if scope["type"] == "http":
                    await send_problem(refusal, receive, send)  # type: ignore[arg-type]
                else:
                    await problem(refusal)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def problem(error: HttpProblem, headers: dict[str, str] | None = None) -> Response:
    """Returns a problem document as a response."""
    return Response(error.document(), error.status, headers, PROBLEM_TYPE)


log = logging.getLogger("envsuite.serving.bridges")
DRAIN_SECONDS = 5
"""Seconds that running requests have to finish when the bridge ends."""
TICK_SECONDS = 0.2
CONNECTIONS = 8
"""Maximum number of connections per seat: some clients use several, and reading a description takes no seat."""


class Bridge:
    """Serves environments by MCP and by OpenEnv's contract until it is stopped.

    Args:
        settings: Settings of the bridge.

    Raises:
        EnvsuiteError: An environment cannot be offered, or the address is in use.
    """

    def __init__(self, settings: BridgeSettings) -> None:
        self.settings = settings
        self.seats = Seats(settings.max_sessions)
        offers = [offer(env_id, settings.urls) for env_id in dict.fromkeys(settings.environments)]
        self.endpoints = {entry.env_id: MCPEndpoint(entry, self.seats, settings) for entry in offers}
        contracts = [OpenEnvContract(entry, self.seats, settings) for entry in offers]
        parts: list[MCPEndpoint | OpenEnvSessions] = [*self.endpoints.values(), *(c.sessions for c in contracts)]

        @contextlib.asynccontextmanager
        async def lifespan(app: Starlette) -> AsyncIterator[None]:
            async with contextlib.AsyncExitStack() as stack:
                for part in parts:
                    await stack.enter_async_context(part.running())
                tasks = await stack.enter_async_context(anyio.create_task_group())
                tasks.start_soon(self._leave)
                yield
                tasks.cancel_scope.cancel()

        routes: list[BaseRoute] = [Route(f"/mcp/{env_id}", endpoint) for env_id, endpoint in self.endpoints.items()]
        routes += [contract.routes() for contract in contracts]
        paths = ", ".join(f"/{protocol}/{entry.env_id}" for entry in offers for protocol in ("mcp", "openenv"))

        async def refuse(request: Request, error: Exception) -> Response:
            assert isinstance(error, HTTPException)
            if error.status_code == 404:
                detail = f"nothing at {request.url.path[:200]!r}; there is: {paths}"
                return problem(HttpProblem(404, "not-found", detail))
            kind = "method" if error.status_code == 405 else "malformed"
            headers = dict(error.headers or {})
            return problem(HttpProblem(error.status_code, kind, f"{request.method}: {error.detail}"), headers)

        app = Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: refuse})
        self._server = HttpServer(
            BridgeGate(app, settings),  # type: ignore[arg-type]
            open_socket(settings.host, settings.port),
            drain_seconds=DRAIN_SECONDS,
            limit=max(64, CONNECTIONS * settings.max_sessions),
            lifespan="on",
            ws="auto",
            ws_max_size=settings.max_body,
            ws_per_message_deflate=False,
        )
        self.url, self.run, self.stop = self._server.url, self._server.run, self._server.stop

    async def _leave(self) -> None:
        """Ends the sessions when the server is to end."""
        while not self._server.should_exit:
            await anyio.sleep(TICK_SECONDS)
        for endpoint in self.endpoints.values():
            await endpoint.leave()


def bridge(settings: BridgeSettings) -> None:
    """Serves until SIGTERM or SIGINT.

    Raises:
        EnvsuiteError: The bridge cannot start.
    """
    running = Bridge(settings)
    open_to = "this machine only" if settings.private else "other machines, too"
    access = "a token is needed" if settings.token is not None else "no token is needed"
    for env_id in settings.environments:
        log.warning("%s/mcp/%s and %s/openenv/%s (%s; %s)", running.url, env_id, running.url, env_id, open_to, access)
    run_until_signal(running)


@contextlib.contextmanager
def bridging(settings: BridgeSettings) -> Iterator[Bridge]:
    """Runs a bridge in a thread of this process for the duration of the block."""
    running = Bridge(settings)
    with in_thread(running):
        yield running
