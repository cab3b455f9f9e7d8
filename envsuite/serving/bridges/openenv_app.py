"""The paths of OpenEnv's contract, for one environment."""

from __future__ import annotations

from typing import Any

import anyio
import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from envsuite import __version__
from envsuite.core.errors import UnknownTask
from envsuite.remote.protocol import JSON_TYPE
from envsuite.serving.bridges import openenv_tasks
from envsuite.serving.bridges.openenv import (
    NO_SESSION,
    OBSERVATION,
    REQUEST,
    RESET,
    SPLIT,
    STATE,
    STEP,
    TASK,
    OpenEnvEpisodes,
    Refusal,
    action_schema,
    fitting,
)
from envsuite.serving.bridges.openenv_sessions import OpenEnvSession, OpenEnvSessions, rpc_error
from envsuite.serving.bridges.players import BridgeOffer, BridgePlayer, Seats
from envsuite.serving.bridges.settings import BridgeSettings

CONTRACT = "1.0.0"
"""Version of the contract's HTTP side: that of openenv 0.10, and of openenv-core 0.3."""
STATUS = {"CAPACITY_REACHED": 429, "EXECUTION_ERROR": 409, "INVALID_JSON": 422, "VALIDATION_ERROR": 422}
"""HTTP status, by the error code of the WebSocket."""


class OpenEnvContract:
    """Serves one environment to OpenEnv's clients.

    Args:
        offer: The environment.
        seats: Source of environments.
        settings: Settings of the bridge.
    """

    def __init__(self, offer: BridgeOffer, seats: Seats, settings: BridgeSettings) -> None:
        self._offer, self._seats, self._settings = offer, seats, settings
        self.sessions = OpenEnvSessions(offer, seats, settings.idle_seconds)
        self._path = f"/openenv/{offer.env_id}"

    def routes(self) -> Mount:
        """Returns its paths."""
        routes: list[BaseRoute] = [
            Route("/health", self._health),
            Route("/metadata", self._metadata),
            Route("/schema", self._schema),
            Route("/state", self._state),
            Route("/openapi.json", self._document),
            Route("/reset", self._reset, methods=["POST"]),
            Route("/step", self._step, methods=["POST"]),
            Route("/mcp", self._mcp, methods=["POST"]),
            Route("/list_environments", self._environments),
            Route("/{env_name}/splits", self._splits),
            Route("/{env_name}/{operation}", self._tasks, methods=["POST"]),
            WebSocketRoute("/ws", self._play),
        ]
        return Mount(self._path, routes=routes)

    async def _health(self, request: Request) -> Response:
        return _json({"status": "healthy"})

    async def _metadata(self, request: Request) -> Response:
        metadata = {"name": self._offer.env_id, "description": self._offer.about, "version": __version__}
        return _json({**metadata, "readme_content": None, "author": None, "documentation_url": None})

    async def _schema(self, request: Request) -> Response:
        return _json({"action": action_schema(self._offer.tools), "observation": OBSERVATION, "state": STATE})

    async def _state(self, request: Request) -> Response:
        return _json(OpenEnvEpisodes(BridgePlayer(self._offer, self._seats)).state())

    async def _reset(self, request: Request) -> Response:
        player = BridgePlayer(self._offer, self._seats)
        try:
            return _json(await OpenEnvEpisodes(player).reset(_read(await request.body() or b"{}")))
        except Refusal as error:
            return _refusal(error)
        finally:
            await player.close()

    async def _step(self, request: Request) -> Response:
        try:
            fitting(STEP, fitting(REQUEST, _read(await request.body()))["action"])
            raise Refusal("EXECUTION_ERROR", NO_SESSION.format(self._path))
        except Refusal as error:
            return _refusal(error)

    async def _mcp(self, request: Request) -> Response:
        try:
            return _json(await self.sessions.answer(_read(await request.body())))
        except Refusal as error:
            return _json({"jsonrpc": "2.0", "id": None, "error": rpc_error(error)})

    async def _environments(self, request: Request) -> Response:
        return _json([self._offer.env_id])

    async def _splits(self, request: Request) -> Response:
        if not self._names_environment(request):
            return _unknown(f"environment {request.path_params['env_name']!r}", [self._offer.env_id])
        return _json(openenv_tasks.splits(self._offer.tasks))

    async def _tasks(self, request: Request) -> Response:
        """Answers a request of the task API; as in the original, the last part of the path says which."""
        tasks, operation = self._offer.tasks, request.path_params["operation"]
        if not self._names_environment(request):
            return _unknown(f"environment {request.path_params['env_name']!r}", [self._offer.env_id])
        try:
            if operation == "task":
                arguments = fitting(TASK, _read(await request.body()))
                return _json({"task": openenv_tasks.describe_task_at(tasks, arguments["split"], arguments["index"])})
            arguments = fitting(SPLIT, _read(await request.body()))
            match operation:
                case "tasks":
                    rows = openenv_tasks.list_tasks(tasks, arguments["split"])
                    return _json({"tasks": rows, "env_name": self._offer.env_id})
                case "num_tasks":
                    return _json({"num_tasks": len(tasks.ids(arguments["split"]))})
                case "task_range":
                    bounds = arguments.get("start"), arguments.get("stop")
                    return _json({"tasks": openenv_tasks.list_tasks(tasks, arguments["split"], *bounds)})
        except UnknownTask as error:
            return _json({"detail": str(error)}, 400)
        except Refusal as error:
            return _refusal(error)
        return _unknown(f"request {operation!r}", ["tasks", "num_tasks", "task", "task_range"])

    def _names_environment(self, request: Request) -> bool:
        return bool(request.path_params["env_name"].lower() == self._offer.env_id.lower())

    async def _document(self, request: Request) -> Response:
        answer = {"description": "As /schema describes it.", "content": {JSON_TYPE: {"schema": {"type": "object"}}}}
        paths: dict[str, Any] = {
            f"/{name}": {"get": {"responses": {"200": answer}}} for name in ("health", "metadata", "schema", "state")
        }
        for name, body in (("reset", RESET.parameters), ("step", REQUEST.parameters), ("mcp", {"type": "object"})):
            request_body = {"content": {JSON_TYPE: {"schema": body}}}
            paths[f"/{name}"] = {"post": {"requestBody": request_body, "responses": {"200": answer}}}
        paths["/step"]["post"]["responses"] = {
            str(status): {"description": why} for status, why in ((409, "No session."), (422, "No action."))
        }
        info = {"title": f"{self._offer.env_id}, by OpenEnv's contract", "version": CONTRACT}
        return _json({"openapi": "3.1.0", "info": info, "servers": [{"url": self._path}], "paths": paths})

    async def _play(self, socket: WebSocket) -> None:
        """Plays with one client until it leaves."""
        await socket.accept()
        try:
            async with self.sessions.attach(socket.query_params.get("session_id")) as session:
                await self._converse(socket, session)
            await socket.close()
        except Refusal as error:
            await _say(socket, error.body)
            await socket.close()
        except WebSocketDisconnect:
            pass

    async def _converse(self, socket: WebSocket, session: OpenEnvSession) -> None:
        while True:
            event: Any = None
            # Calls of tools come by single requests, too: then the client is not idle, though the WebSocket is.
            while event is None and (seconds := self._settings.idle_seconds - session.idle) > 0:
                with anyio.move_on_after(seconds):
                    event = await socket.receive()
            if event is None:
                session.closing = True
                why = f"nobody called for {self._settings.idle_seconds:g} s, and the episode was ended"
                return await _say(socket, Refusal("SESSION_ERROR", why).body)
            if event["type"] == "websocket.disconnect":
                raise WebSocketDisconnect
            session.use()
            try:
                message = _read(event.get("text") or event.get("bytes") or b"")
                if message == {"type": "close"}:
                    return None
                if isinstance(message, dict) and message.get("type") == "mcp":
                    answer = await self.sessions.answer(message.get("data"), session)
                    await _say(socket, {"type": "mcp", "data": answer})
                else:
                    await _say(socket, await session.answer(message))
            except Refusal as error:
                await _say(socket, error.body)


async def _say(socket: WebSocket, message: dict[str, Any]) -> None:
    await socket.send_text(orjson.dumps(message).decode())


def _read(raw: str | bytes) -> Any:
    """Parses the JSON in ``raw``.

    Raises:
        Refusal: It is not JSON.
    """
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise Refusal("INVALID_JSON", f"not JSON: {error}") from error


def _json(body: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(body), status, media_type=JSON_TYPE)


def _refusal(error: Refusal) -> Response:
    """Returns an error in the format of the contract's HTTP side."""
    code, message = error.body["data"]["code"], error.body["data"]["message"]
    status = STATUS[code]
    return _json({"detail": [{"type": code.lower(), "loc": ["body"], "msg": message}]}, status)


def _unknown(what: str, names: list[str]) -> Response:
    return _json({"detail": f"unknown {what}; known: {', '.join(names)}"}, 404)
