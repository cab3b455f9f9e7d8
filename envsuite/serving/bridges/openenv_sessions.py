"""Sessions that OpenEnv's clients name, and JSON-RPC requests for tools.

The client of tools of openenv 0.10 creates a session by a single request, attaches a WebSocket to it for resets and
states, and calls tools in it by further single requests. Here as there, a call of a tool is a step.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator
from typing import Any

import anyio

from envsuite.core import Tool
from envsuite.serving.bridges.openenv import OpenEnvEpisodes, Refusal, fitting
from envsuite.serving.bridges.players import BridgeOffer, BridgePlayer, Seats

SWEEPS = 4
"""Number of checks for idle sessions in the time after which a session is closed."""
CLOSE = Tool(
    "openenv/session/close",
    "Parameters of a request that closes a session.",
    {"type": "object", "properties": {"session_id": {"type": "string"}}, "required": ["session_id"]},
)
CALL = Tool(
    "tools/call",
    "Parameters of a request that calls a tool.",
    {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "arguments": {"type": "object"},
            "session_id": {"type": ["string", "null"]},
        },
        "required": ["name"],
    },
)
METHODS = ("openenv/session/create", CLOSE.name, "tools/list", CALL.name)
_INVALID_REQUEST, _PARSE_ERROR = -32600, -32700
_CODES = {
    "INVALID_JSON": _PARSE_ERROR,
    "UNKNOWN_TYPE": -32601,
    "VALIDATION_ERROR": -32602,
    "SESSION_ERROR": -32602,
    "EXECUTION_ERROR": -32603,
    "CAPACITY_REACHED": -32000,
}
"""JSON-RPC's error codes, by those of the WebSocket."""


class OpenEnvSession:
    """The episodes of one client, by WebSocket and by single requests.

    Args:
        player: The client's player.
    """

    def __init__(self, player: BridgePlayer) -> None:
        self.player, self.episodes = player, OpenEnvEpisodes(player)
        self.attached = False
        """Whether a WebSocket is attached."""
        self.closing = False
        """Whether it is to be closed when its WebSocket is detached."""
        self._calls = 0
        self._used = anyio.current_time()

    def use(self) -> None:
        """Records that the client was heard of."""
        self._used = anyio.current_time()

    @property
    def idle(self) -> float:
        """Seconds since the client was last heard of or answered."""
        return 0.0 if self._calls else anyio.current_time() - self._used

    async def answer(self, message: object) -> dict[str, Any]:
        """Answers a message, as :meth:`~envsuite.serving.bridges.openenv.OpenEnvEpisodes.answer` does.

        Raises:
            Refusal: The answer is an error.
        """
        self._calls += 1
        try:
            return await self.episodes.answer(message)
        finally:
            self._calls -= 1
            self.use()


class OpenEnvSessions:
    """The sessions of one environment, and the answers to JSON-RPC requests.

    Args:
        offer: The environment.
        seats: Source of environments. There are at most as many named sessions as seats.
        idle_seconds: Seconds after which an idle session is closed.
    """

    def __init__(self, offer: BridgeOffer, seats: Seats, idle_seconds: float) -> None:
        self._offer, self._seats, self._idle_seconds = offer, seats, idle_seconds
        self._named: dict[str, OpenEnvSession] = {}

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Closes idle sessions for the duration of the block, and all others at its end."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._sweep)
            try:
                yield
            finally:
                tasks.cancel_scope.cancel()
                for name in list(self._named):
                    await self._forget(name)

    @contextlib.asynccontextmanager
    async def attach(self, name: str | None) -> AsyncIterator[OpenEnvSession]:
        """Provides the session of a WebSocket: the one that it names, or one of its own.

        Raises:
            Refusal: There is no session of this name, or another WebSocket is attached to it.
        """
        session = self._find(name) if name else OpenEnvSession(BridgePlayer(self._offer, self._seats))
        if session.attached:
            raise Refusal("SESSION_ERROR", f"another WebSocket is attached to session {name!r}")
        session.attached = True
        try:
            yield session
        finally:
            session.attached = False
            if not name:
                await session.player.close()
            elif session.closing:
                await self._forget(name)

    async def answer(self, call: object, own: OpenEnvSession | None = None) -> dict[str, Any]:
        """Answers a JSON-RPC request.

        Args:
            call: The request.
            own: Session of the WebSocket that it came by; ``None`` for a single request.
        """
        name = call.get("id") if isinstance(call, dict) else None
        head: dict[str, Any] = {"jsonrpc": "2.0", "id": name if isinstance(name, str | int | None) else None}
        if not isinstance(call, dict) or call.get("jsonrpc") != "2.0" or not isinstance(call.get("method"), str):
            message = "a request has jsonrpc: '2.0', a method and an id"
            return {**head, "error": {"code": _INVALID_REQUEST, "message": message}}
        try:
            return {**head, "result": await self._result(call["method"], call.get("params", {}), own)}
        except Refusal as error:
            return {**head, "error": rpc_error(error)}

    async def _result(self, method: str, params: object, own: OpenEnvSession | None) -> dict[str, Any]:
        match method:
            case "openenv/session/create" if own is not None:
                raise Refusal("SESSION_ERROR", "a WebSocket is a session already; create another by a single request")
            case "openenv/session/create":
                return {"session_id": self._create()}
            case CLOSE.name:
                return await self._close(fitting(CLOSE, params)["session_id"])
            case "tools/list":
                return {"tools": [_as_mcp(tool) for tool in (self._offer if own is None else own.player).tools]}
            case CALL.name:
                return await self._call(fitting(CALL, params), own)
        raise Refusal("UNKNOWN_TYPE", f"unknown method {method[:100]!r}; known: {', '.join(METHODS)}")

    def _create(self) -> str:
        if len(self._named) >= self._seats.most:
            message = f"all {self._seats.most} sessions are open; try again when one has been closed"
            counts = {"active_sessions": len(self._named), "max_sessions": self._seats.most}
            raise Refusal("CAPACITY_REACHED", message, **counts)
        name = str(uuid.uuid4())
        self._named[name] = OpenEnvSession(BridgePlayer(self._offer, self._seats))
        return name

    async def _close(self, name: str) -> dict[str, Any]:
        session = self._find(name)
        if session.attached:
            session.closing = True
            return {"session_id": name, "closed": False, "closing": True}
        await self._forget(name)
        return {"session_id": name, "closed": True}

    async def _call(self, params: dict[str, Any], own: OpenEnvSession | None) -> dict[str, Any]:
        name = params.get("session_id")
        if own is None and not name:
            how = f"create one with {METHODS[0]} and send its session_id, or play over the WebSocket"
            raise Refusal("SESSION_ERROR", f"tools are called in a session: {how}")
        session = own or self._find(name)
        step = {"tool_name": params["name"], "arguments": params.get("arguments", {})}
        answer = (await session.answer({"type": "step", "data": step}))["data"]
        return {**answer["observation"], "reward": answer["reward"], "done": answer["done"]}

    def _find(self, name: str | None) -> OpenEnvSession:
        session = self._named.get(name or "")
        if session is None:
            raise Refusal(
                "SESSION_ERROR", f"unknown session_id {(name or '')[:100]!r}: it was closed, or never created"
            )
        session.use()
        return session

    async def _forget(self, name: str) -> None:
        if (session := self._named.pop(name, None)) is not None:
            await session.player.close()

    async def _sweep(self) -> None:
        while True:
            await anyio.sleep(self._idle_seconds / SWEEPS)
            for name, session in list(self._named.items()):
                if not session.attached and session.idle > self._idle_seconds:
                    await self._forget(name)


def _as_mcp(tool: Tool) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "inputSchema": dict(tool.parameters)}


def rpc_error(error: Refusal) -> dict[str, Any]:
    """Returns an error of the WebSocket as one of JSON-RPC."""
    data = dict(error.body["data"])
    code, message = _CODES[data.pop("code")], data.pop("message")
    return {"code": code, "message": message, **({"data": data} if data else {})}
