"""The Model Context Protocol: serves the tools of an environment to any MCP client.

Each session has an environment of its own. Revision 2026-07-28 has no sessions over HTTP: there the server offers only
earlier revisions, to which clients fall back automatically. Over stdin and stdout the process is the session, in every
revision.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import anyio
import mcp_types as types
from anyio.abc import TaskGroup
from mcp import MCPError
from mcp.server import Server, ServerRequestContext
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http import MCP_SESSION_ID_HEADER
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from envsuite import __version__
from envsuite.core import ToolCall, UsageError
from envsuite.core.errors import EnvsuiteError
from envsuite.data.places import without_paths
from envsuite.serving.bridges.players import RESET, BridgeOffer, BridgePlayer, BridgeTurn, Seats
from envsuite.serving.bridges.settings import BridgeSettings

RECONNECT_SECONDS = 5.0
"""Seconds in which a client whose stream of server messages has ended may reconnect before its session is ended."""
TICK_SECONDS = 0.05
SWEEPS = 4
"""Number of checks for idle sessions in the time after which a session is ended."""
TOLD = ("valid", "error", "success", "score", "task_id", "task_type", "split", "terminated", "truncated")
OUTPUT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "task": {"type": "string", "description": "The instruction; where an episode begins."},
        "observation": {"type": "string", "description": "What the world says now."},
        "commands": {"type": "array", "items": {"type": "string"}, "description": "What may be typed or named now."},
        "tools": {"type": "array", "items": {"type": "string"}, "description": "What can be called; where it changes."},
        "reward": {"type": "number"},
        "terminated": {"type": "boolean", "description": "The task has ended, solved or lost."},
        "truncated": {"type": "boolean", "description": "The last step that there may be was taken."},
        "valid": {"type": "boolean", "description": "The step was well-formed and possible."},
        "error": {"type": ["string", "null"], "description": "Why not."},
        "success": {"type": "boolean", "description": "The task is solved."},
        "score": {"type": "number"},
        "task_id": {"type": "string"},
        "task_type": {"type": "string"},
        "split": {"type": "string"},
    },
    "required": ["observation", "commands", "reward", "terminated", "truncated", "valid", "error", "success", "score"],
}
"""JSON Schema of the structured result of a reset or step, besides its text."""


@dataclass
class _MCPSession:
    """The session of one client, from its handshake on."""

    player: BridgePlayer
    requests: int = 0
    """Number of its requests."""
    open: int = 0
    """Number of unanswered requests, the stream of server messages included."""
    calls: int = 0
    """Number of unanswered requests without that stream."""
    listens: bool = False
    """Whether it has opened that stream, by which its end is noticed."""
    used: float = field(default_factory=anyio.current_time)
    """Time of the last answer."""


class MCPEndpoint:
    """One environment over streamable HTTP, as an ASGI application.

    Args:
        offer: The environment.
        seats: Source of environments.
        settings: Settings of the bridge.
    """

    def __init__(self, offer: BridgeOffer, seats: Seats, settings: BridgeSettings) -> None:
        self._offer, self._seats, self._settings = offer, seats, settings
        self._sessions: dict[str, _MCPSession] = {}
        self._tasks: TaskGroup
        server = make_server(offer, self._player)
        server.add_request_handler("server/discover", types.RequestParams, self._discover)
        # Who may ask at all (token, Host, Origin) is decided before requests come here.
        self._manager = StreamableHTTPSessionManager(
            server,
            json_response=True,
            session_idle_timeout=settings.idle_seconds,
            max_request_body_size=settings.max_body,
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Provides sessions for the duration of the block."""
        async with anyio.create_task_group() as self._tasks, self._manager.run():
            self._tasks.start_soon(self._sweep)
            try:
                yield
            finally:
                self._tasks.cancel_scope.cancel()
                for name in list(self._sessions):
                    await self._forget(name)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        name = Headers(scope=scope).get(MCP_SESSION_ID_HEADER)
        session = self._sessions.get(name) if name else None
        if name is None or session is None:
            await self._manager.handle_request(scope, receive, self._opening(send))
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 200:
                session.listens = session.listens or scope["method"] == "GET"
                if scope["method"] == "DELETE":
                    await self._forget(name)
            await send(message)

        calls = int(scope["method"] != "GET")
        session.requests += 1
        session.open += 1
        session.calls += calls
        try:
            await self._manager.handle_request(scope, receive, sending)
        finally:
            session.open -= 1
            session.calls -= calls
            session.used = anyio.current_time()
            if session.listens and not session.open and name in self._sessions:
                self._tasks.start_soon(self._miss, name, session.requests)

    def _opening(self, send: Send) -> Send:
        """Wraps ``send`` to record the session that an answer opens."""

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] < 400:
                name = Headers(raw=message["headers"]).get(MCP_SESSION_ID_HEADER)
                if name is not None:
                    self._sessions[name] = _MCPSession(BridgePlayer(self._offer, self._seats))
            await send(message)

        return sending

    async def _miss(self, name: str, requests: int) -> None:
        """Ends a session whose client has left, unless it reconnects."""
        await anyio.sleep(RECONNECT_SECONDS)
        session = self._sessions.get(name)
        if session is not None and not session.open and session.requests == requests:
            await self._end(name)

    async def leave(self) -> None:
        """Ends all sessions after their answers: streams of server messages would never end."""

        async def when_answered(name: str, session: _MCPSession) -> None:
            while session.calls:
                await anyio.sleep(TICK_SECONDS)
            await self._end(name)

        async with anyio.create_task_group() as group:
            for name, session in list(self._sessions.items()):
                group.start_soon(when_answered, name, session)

    async def _end(self, name: str) -> None:
        """Ends a session as its client would."""
        await self._forget(name)
        headers = [(MCP_SESSION_ID_HEADER.encode(), name.encode())]
        scope = {"type": "http", "method": "DELETE", "path": "/", "query_string": b"", "headers": headers}

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Message) -> None:
            pass

        await self._manager.handle_request(scope, receive, send)

    async def _forget(self, name: str) -> None:
        if (session := self._sessions.pop(name, None)) is not None:
            await session.player.close()

    async def _sweep(self) -> None:
        while True:
            await anyio.sleep(self._settings.idle_seconds / SWEEPS)
            for name, session in list(self._sessions.items()):
                await session.player.rest(self._settings.idle_seconds)
                if not session.open and anyio.current_time() - session.used > self._settings.idle_seconds:
                    await self._forget(name)

    def _player(self, context: ServerRequestContext[Any]) -> BridgePlayer:
        if context.protocol_version not in MODERN_PROTOCOL_VERSIONS and context.request is not None:
            name = context.request.headers.get(MCP_SESSION_ID_HEADER)
            if name in self._sessions:
                return self._sessions[name].player
        versions = list(HANDSHAKE_PROTOCOL_VERSIONS)
        raise MCPError(
            types.UNSUPPORTED_PROTOCOL_VERSION,
            f"an environment is played in a session, which starts with initialize, in one of: {', '.join(versions)}",
            {"supported": versions, "requested": context.protocol_version},
        )

    async def _discover(self, context: ServerRequestContext[Any], _: types.RequestParams) -> types.DiscoverResult:
        capabilities = types.ServerCapabilities(tools=types.ToolsCapability())
        return types.DiscoverResult(
            supported_versions=list(HANDSHAKE_PROTOCOL_VERSIONS),
            capabilities=capabilities,
            instructions=self._offer.about,
        )


def make_server(offer: BridgeOffer, player: Callable[[ServerRequestContext[Any]], BridgePlayer]) -> Server[Any]:
    """Makes the MCP server of one environment.

    Args:
        offer: The environment.
        player: Returns the player of a request.
    """
    tools = {
        tool.name: types.Tool(
            name=tool.name, description=tool.description, input_schema=dict(tool.parameters), output_schema=OUTPUT
        )
        for tool in (RESET, *offer.tools)
    }

    async def list_tools(
        context: ServerRequestContext[Any], params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        offers = player(context).tools if offer.tools_change else offer.tools
        return types.ListToolsResult(tools=[tools[tool.name] for tool in (RESET, *offers)])

    async def call_tool(
        context: ServerRequestContext[Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        return await _call_tool(player(context), ToolCall(params.name, params.arguments or {}))

    return Server(
        offer.env_id, version=__version__, instructions=offer.about, on_list_tools=list_tools, on_call_tool=call_tool
    )


async def _call_tool(player: BridgePlayer, call: ToolCall) -> types.CallToolResult:
    """Executes a call; errors become errors of the tool, which the model behind the client reads."""
    before = [tool.name for tool in player.tools]
    try:
        if call.name != RESET.name:
            return _turn_result(await player.step(call), before, is_first=False)
        if (problem := RESET.problem(call.arguments)) is not None:
            raise UsageError(f"{RESET.name}: {problem}")
        return _turn_result(await player.reset(**call.arguments), before, is_first=True)
    except EnvsuiteError as error:
        return types.CallToolResult(content=[types.TextContent(text=without_paths(str(error)))], is_error=True)


def _turn_result(turn: BridgeTurn, before: list[str], is_first: bool) -> types.CallToolResult:
    texts = [turn.task, turn.text] if is_first else [turn.text]
    if turn.tools is not None and turn.tools != before:
        texts.append("The tools are others now: list them again.")
    if turn.commands and not turn.done:
        texts.append("Possible now: " + ", ".join(turn.commands))
    if turn.done:
        how = "solved" if turn.info["success"] else "not solved"
        texts.append(f"The episode has ended: {how}, reward {turn.reward:g}. Call reset to start another one.")
    answer: dict[str, Any] = {"task": turn.task} if is_first else {}
    answer |= {"observation": turn.text, "commands": turn.commands, "reward": turn.reward}
    answer |= {} if turn.tools is None else {"tools": turn.tools}
    answer |= {name: turn.facts[name] for name in TOLD}
    return types.CallToolResult(content=[types.TextContent(text=text) for text in texts], structured_content=answer)


def stdio(offer: BridgeOffer) -> None:
    """Serves one client over stdin and stdout, until it closes stdin."""
    anyio.run(_stdio, offer)


async def _stdio(offer: BridgeOffer) -> None:
    player = BridgePlayer(offer, Seats(1))
    server = make_server(offer, lambda _: player)
    try:
        async with stdio_server() as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())
    finally:
        await player.close()
