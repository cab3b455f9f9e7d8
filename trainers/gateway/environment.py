"""The environments of sessions as an MCP server over HTTP, for agents in other processes; with mcp 1 and with mcp 2."""

from __future__ import annotations

from functools import partial
from importlib.metadata import version
from typing import Any

import anyio
import anyio.to_thread
from mcp import types
from mcp.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.types import Receive, Scope, Send

from envsuite.core.errors import EnvsuiteError
from trainers.gateway.session import Playable

CALL_ID = "tool_call_id"
"""The field of a call's ``_meta`` with the id that the call has in the model's answer."""
MAX_BODY = 2**20
"""Most bytes of a request."""


class AgentEnvironment:
    """The application that answers one request of an agent: the tools of its environment.

    A request stands for itself: there are no sessions of MCP. The server's instructions are the task and the last
    observation.

    Args:
        game: The environment.
        turn: Calls are made in a thread, one after the other.
    """

    def __init__(self, game: Playable, turn: anyio.CapacityLimiter) -> None:
        self._server = _server(game, turn)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers it."""
        manager = StreamableHTTPSessionManager(
            self._server, json_response=True, stateless=True, max_request_body_size=MAX_BODY
        )
        async with manager.run():
            await manager.handle_request(scope, receive, send)


def _server(game: Playable, turn: anyio.CapacityLimiter) -> Any:
    fields = {"name": "name", "description": "description", "inputSchema": "parameters"}
    tools = [{name: tool["function"][key] for name, key in fields.items()} for tool in game.tools]

    async def list_tools(*_: Any) -> Any:
        return types.ListToolsResult.model_validate({"tools": tools})

    async def call_tool(_: Any, params: types.CallToolRequestParams) -> Any:
        call_id, is_error = str(dict(params.meta or {}).get(CALL_ID, "")), False
        try:
            call = partial(game.call, params.name, params.arguments or {}, call_id)
            text = await anyio.to_thread.run_sync(call, limiter=turn)
        except EnvsuiteError as error:
            text, is_error = str(error), True
        return types.CallToolResult.model_validate({"content": [{"type": "text", "text": text}], "isError": is_error})

    about = "\n\n".join(text for text in (game.goal, game.text) if text)
    if not version("mcp").startswith("1."):
        return Server("environment", instructions=about, on_list_tools=list_tools, on_call_tool=call_tool)

    mcp_1: Any = types

    async def answer_call(request: types.CallToolRequest) -> Any:
        return mcp_1.ServerResult(await call_tool(None, request.params))

    async def answer_list(request: types.ListToolsRequest) -> Any:
        return mcp_1.ServerResult(await list_tools())

    server: Any = Server("environment", instructions=about)
    server.request_handlers |= {types.ListToolsRequest: answer_list, types.CallToolRequest: answer_call}
    return server
