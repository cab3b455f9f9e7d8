"""OpenEnv's contract for the clients of ``openenv-core``, without that package.

A client plays over one WebSocket, which is its session. The HTTP paths have no session, as in the original: ``/reset``
shows the beginning of an episode, and steps are impossible. This module has the messages, ``openenv_app`` the paths.
"""

from __future__ import annotations

import uuid
from typing import Any

from envsuite.core import Tool, ToolCall
from envsuite.core.errors import EnvsuiteError
from envsuite.core.schemas import object_schema
from envsuite.data.places import without_paths
from envsuite.serving.bridges.openenv_tasks import describe_task_at
from envsuite.serving.bridges.players import BridgeFull, BridgePlayer, BridgeTurn

_TEXT = {"type": "string"}
_NAME = {"type": ["string", "null"], "maxLength": 255}
RESET = Tool(
    "reset",
    "Data of a reset; what else there is in it is ignored.",
    {
        "type": "object",
        "properties": {
            "seed": {"type": ["integer", "null"], "minimum": 0, "maximum": 2**53},
            "episode_id": _NAME,
            "task_id": {"type": ["string", "null"]},
            "split": {"type": ["string", "null"]},
            "index": {"type": ["integer", "null"], "minimum": 0, "maximum": 2**53},
        },
    },
)
SPLIT = Tool(
    "split",
    "Body of a request for the tasks of a split.",
    {
        "type": "object",
        "properties": {"split": _TEXT, "start": {"type": ["integer", "null"]}, "stop": {"type": ["integer", "null"]}},
        "required": ["split"],
    },
)
TASK = Tool(
    "task",
    "Body of a request for one task.",
    {"type": "object", "properties": {"split": _TEXT, "index": {"type": "integer"}}, "required": ["split", "index"]},
)
STEP = Tool(
    "step",
    "An action as JSON: openenv-core's CallToolAction.",
    object_schema(
        {
            "type": {"const": "call_tool"},
            "tool_name": _TEXT,
            "arguments": {"type": "object"},
            "metadata": {"type": "object"},
        },
        optional=("type", "arguments", "metadata"),
    ),
)
REQUEST = Tool(
    "request",
    "Body of POST /step.",
    {
        "type": "object",
        "properties": {
            "action": {"type": "object"},
            "timeout_s": {"type": ["number", "null"], "exclusiveMinimum": 0},
            "request_id": _NAME,
        },
        "required": ["action"],
    },
)
OBSERVATION = {
    "type": "object",
    "properties": {
        "tool_name": {**_TEXT, "description": "What was called, or reset."},
        "result": {**_TEXT, "description": "What it led to; after a reset the task, too."},
        "task": {**_TEXT, "description": "The instruction; after a reset only."},
        "text": {**_TEXT, "description": "What the world says now."},
        "commands": {"type": "array", "items": _TEXT, "description": "What may be typed or named now."},
        "tools": {"type": "array", "items": _TEXT, "description": "What can be called now; where that changes."},
        "metadata": {
            "type": "object",
            "description": "The info: valid, error, success, score, task_id, …, and whether terminated or truncated.",
        },
    },
    "required": ["tool_name", "result", "text", "commands", "metadata"],
}
STATE = {
    "type": "object",
    "properties": {
        "episode_id": {"type": ["string", "null"]},
        "step_count": {"type": "integer", "minimum": 0},
        "task_id": {"type": ["string", "null"]},
        "task_type": {"type": ["string", "null"]},
        "split": {"type": ["string", "null"]},
    },
    "required": ["episode_id", "step_count"],
}
NO_SESSION = "a single request has no session, and so no episode to step in; play over the WebSocket, {}/ws"


class Refusal(Exception):
    """Raised to answer a message with an error.

    Args:
        code: One of the contract's codes.
        message: The error.
        more: Further members of the answer.
    """

    def __init__(self, code: str, message: str, **more: Any) -> None:
        super().__init__(message)
        self.body: dict[str, Any] = {"type": "error", "data": {"message": message, "code": code, **more}}


def action_schema(tools: tuple[Tool, ...]) -> dict[str, Any]:
    """Returns the JSON Schema of the actions that are valid calls of one of ``tools``."""
    calls = [
        {
            "type": "object",
            "title": tool.name,
            "description": tool.description,
            "properties": {
                "type": {"const": "call_tool"},
                "tool_name": {"const": tool.name},
                "arguments": dict(tool.parameters),
                "metadata": {"type": "object"},
            },
            "required": ["tool_name", "arguments"],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    return {"type": "object", "title": "Action", "oneOf": calls}


def tool_schemas(tools: tuple[Tool, ...]) -> list[dict[str, Any]]:
    """Returns the tools in the contract's format."""
    return [
        {"name": tool.name, "description": tool.description, "input_schema": dict(tool.parameters)} for tool in tools
    ]


def observation_of(turn: BridgeTurn, tool: str) -> dict[str, Any]:
    """Returns a turn in the contract's format."""
    is_reset = tool == RESET.name
    result = f"{turn.task}\n\n{turn.text}" if is_reset else turn.text
    observation: dict[str, Any] = {"tool_name": tool, "result": result, "text": turn.text, "commands": turn.commands}
    if is_reset:
        observation["task"] = turn.task
    if turn.tools is not None:
        observation["tools"] = turn.tools
    observation["metadata"] = turn.facts
    return {"observation": observation, "reward": None if is_reset else turn.reward, "done": turn.done}


class OpenEnvEpisodes:
    """The episodes of one client, in the contract's format.

    Args:
        player: The client's player.
    """

    def __init__(self, player: BridgePlayer) -> None:
        self._player = player
        self._name: str | None = None

    async def answer(self, message: object) -> dict[str, Any]:
        """Answers one message.

        Raises:
            Refusal: The answer is an error.
        """
        kind = message.get("type") if isinstance(message, dict) else None
        if not isinstance(message, dict) or not isinstance(kind, str):
            raise Refusal("VALIDATION_ERROR", "a message is an object with a type, e.g. {'type': 'reset', 'data': {}}")
        data = message.get("data", {})
        match kind:
            case "reset":
                return {"type": "observation", "data": await self.reset(data)}
            case "step":
                return {"type": "observation", "data": await self._step(data)}
            case "state":
                return {"type": "state", "data": self.state()}
        raise Refusal("UNKNOWN_TYPE", f"unknown message type {kind[:100]!r}; known: reset, step, state, mcp, close")

    async def reset(self, data: object) -> dict[str, Any]:
        """Starts an episode.

        Raises:
            Refusal: It cannot be started.
        """
        request = fitting(RESET, data)
        try:
            turn = await self._player.reset(request.get("seed"), self._task(request))
        except BridgeFull as error:
            seats = self._player.seats
            counts = {"active_sessions": seats.taken, "max_sessions": seats.most}
            raise Refusal("CAPACITY_REACHED", str(error), **counts) from error
        except EnvsuiteError as error:
            raise Refusal("EXECUTION_ERROR", without_paths(str(error))) from error
        self._name = request.get("episode_id") or str(uuid.uuid4())
        return observation_of(turn, RESET.name)

    def _task(self, request: dict[str, Any]) -> str | None:
        """Returns the id of the task that a reset names, by its id or as the task API counts; ``None`` if by neither.

        Raises:
            Refusal: It names a task in two ways, or a split alone.
            UnknownTask: There is no such split or index.
        """
        task_id, split, index = request.get("task_id"), request.get("split"), request.get("index")
        if split is None and index is None:
            return task_id
        if task_id is not None or split is None or index is None:
            raise Refusal("VALIDATION_ERROR", "a task is named by task_id, or by split and index together")
        return str(describe_task_at(self._player.offer.tasks, split, index)["id"])

    async def _step(self, data: object) -> dict[str, Any]:
        if data == {"type": "list_tools"}:
            tools = tool_schemas(self._player.tools)
            return {"observation": {"tools": tools, "metadata": {}}, "reward": None, "done": False}
        action = fitting(STEP, data)
        call = ToolCall(action["tool_name"], action.get("arguments", {}))
        try:
            return observation_of(await self._player.step(call), call.name)
        except EnvsuiteError as error:
            raise Refusal("EXECUTION_ERROR", without_paths(str(error))) from error

    def state(self) -> dict[str, Any]:
        """Returns the current episode and its number of steps."""
        info = self._player.info
        fields = {name: None if info is None else info[name] for name in ("task_id", "task_type", "split")}
        return {"episode_id": self._name, "step_count": self._player.steps, **fields}


def fitting(tool: Tool, data: object) -> dict[str, Any]:
    """Returns ``data`` after checking it against the tool's schema.

    Raises:
        Refusal: It does not fit.
    """
    if not isinstance(data, dict) or (problem := tool.problem(data)) is not None:
        what = "is no object" if not isinstance(data, dict) else problem
        raise Refusal("VALIDATION_ERROR", f"{tool.name}: {what}", errors=[{"loc": [tool.name], "msg": what}])
    return data
