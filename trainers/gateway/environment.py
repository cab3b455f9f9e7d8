"""The environments of sessions as an MCP server over HTTP, for agents in other processes; with mcp 1 and with mcp 2."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any
from weakref import WeakKeyDictionary

import anyio
import anyio.to_thread
from mcp import types
from mcp.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from envsuite.core.errors import EnvsuiteError
from trainers.gateway.messages import Refused
from trainers.gateway.session import Playable

CALL_ID = "tool_call_id"
"""The field of a call's ``_meta`` with the id that the call has in the model's answer."""
MAX_BODY = 2**20
"""Most bytes of a request."""


def environment_app(lookup: Callable[[str], Playable | None]) -> ASGIApp:
    """The application with ``/mcp``: the tools of the environment that belongs to the key of each request.

    The key is that of the model, as ``Authorization: Bearer …`` or ``x-api-key``. A request stands for itself: there
    are no sessions of MCP. The server's instructions are the task and the last observation. Calls of one environment
    are made one after the other, in a thread.

    Args:
        lookup: The environment of a key, ``None`` where its episode has none; raises
            :class:`~trainers.gateway.messages.Refused` for a key without an episode. As
            :meth:`trainers.gateway.gateway.Gateway.played`.
    """
    return Starlette(routes=[Route("/mcp", _Endpoint(lookup))])


class _Endpoint:
    def __init__(self, lookup: Callable[[str], Playable | None]) -> None:
        self._lookup = lookup
        self._turns: WeakKeyDictionary[Playable, anyio.CapacityLimiter] = WeakKeyDictionary()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        kind, _, given = headers.get("authorization", "").partition(" ")
        try:
            played = self._lookup(given.strip() if kind.lower() == "bearer" else headers.get("x-api-key", ""))
            if played is None:
                raise Refused(404, "no_environment", "this episode has no environment to play; only ask the model")
        except Refused as error:
            told = {"error": {"message": str(error), "type": "invalid_request_error", "code": error.code}}
            await JSONResponse(told, error.status)(scope, receive, send)
            return
        turn = self._turns.setdefault(played, anyio.CapacityLimiter(1))
        manager = StreamableHTTPSessionManager(
            _server(played, turn), json_response=True, stateless=True, max_request_body_size=MAX_BODY
        )
        async with manager.run():
            await manager.handle_request(scope, receive, send)


def _server(played: Playable, turn: anyio.CapacityLimiter) -> Any:
    functions = [each["function"] for each in played.tools]
    tools = [
        {"name": one["name"], "description": one["description"], "inputSchema": one["parameters"]} for one in functions
    ]

    async def list_tools(*_: Any) -> Any:
        return types.ListToolsResult.model_validate({"tools": tools})

    async def call_tool(_: Any, params: types.CallToolRequestParams) -> Any:
        wrong = False
        try:
            given = str(dict(params.meta or {}).get(CALL_ID, ""))
            call = partial(played.call, params.name, params.arguments or {}, given)
            text = await anyio.to_thread.run_sync(call, limiter=turn)
        except EnvsuiteError as error:
            text, wrong = str(error), True
        return types.CallToolResult.model_validate({"content": [{"type": "text", "text": text}], "isError": wrong})

    about = "\n\n".join(text for text in (played.goal, played.text) if text)
    if not version("mcp").startswith("1."):
        return Server("environment", instructions=about, on_list_tools=list_tools, on_call_tool=call_tool)

    first: Any = types

    async def called(request: types.CallToolRequest) -> Any:
        return first.ServerResult(await call_tool(None, request.params))

    async def listed(request: types.ListToolsRequest) -> Any:
        return first.ServerResult(await list_tools())

    server: Any = Server("environment", instructions=about)
    server.request_handlers |= {types.ListToolsRequest: listed, types.CallToolRequest: called}
    return server
