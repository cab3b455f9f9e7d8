"""The bridge: serves both protocols for several environments, in one process, behind one guard."""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from types import FrameType

import anyio
import uvicorn
from mcp.server.streamable_http_manager import RequestBodyLimitMiddleware
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from envsuite.core.errors import UsageError
from envsuite.remote.deadlines import TimedConnection
from envsuite.remote.guard import RequestGuard
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
                headers = {"WWW-Authenticate": "Bearer"} if refusal.status == 401 else None
                await problem(refusal, headers)(scope, receive, send)
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
        self._socket = _listening(settings.host, settings.port)
        config = uvicorn.Config(
            BridgeGate(app, settings),
            http=type("_Connection", (TimedConnection, AutoHTTPProtocol), {}),
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=max(64, CONNECTIONS * settings.max_sessions),
            timeout_graceful_shutdown=DRAIN_SECONDS,
            ws_max_size=settings.max_body,
            ws_per_message_deflate=False,
        )
        self._server = uvicorn.Server(config)

    @property
    def url(self) -> str:
        """Address at which it listens."""
        host, port = self._socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def run(self) -> None:
        """Serves until :meth:`stop`, SIGTERM or SIGINT, then finishes running requests."""
        self._server.run(sockets=[self._socket])

    async def _leave(self) -> None:
        """Ends the sessions when the server is to end."""
        while not self._server.should_exit:
            await anyio.sleep(TICK_SECONDS)
        for endpoint in self.endpoints.values():
            await endpoint.leave()

    def stop(self) -> None:
        """Ends :meth:`run`, from another thread."""
        self._server.should_exit = True


def _listening(host: str, port: int) -> socket.socket:
    """Opens a listening socket.

    Raises:
        UsageError: The address is in use, or is not of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # TCP by name: only then asyncio sends short messages immediately, and not 40 ms later.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(1024)
    except OSError as error:
        listening.close()
        raise UsageError(f"cannot listen at {host}:{port}: {error.strerror or error}") from error
    return listening


def bridge(settings: BridgeSettings) -> None:
    """Serves until SIGTERM or SIGINT.

    Raises:
        EnvsuiteError: The bridge cannot start.
    """
    running = Bridge(settings)

    def again(number: int, frame: FrameType | None) -> None:
        """Ignores the signal that uvicorn raises again after the server has ended."""

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, again)
    open_to = "this machine only" if settings.private else "other machines, too"
    access = "a token is needed" if settings.token is not None else "no token is needed"
    for env_id in settings.environments:
        log.warning("%s/mcp/%s and %s/openenv/%s (%s; %s)", running.url, env_id, running.url, env_id, open_to, access)
    running.run()


@contextlib.contextmanager
def bridging(settings: BridgeSettings) -> Iterator[Bridge]:
    """Runs a bridge in a thread of this process for the duration of the block."""
    running = Bridge(settings)
    thread = threading.Thread(target=running.run, name="envsuite-bridge", daemon=True)
    thread.start()
    try:
        yield running
    finally:
        running.stop()
        thread.join()
