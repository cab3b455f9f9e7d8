"""Environments on a server of OpenEnv's contract: ``openenv/NAME``, with the option ``server`` or in ``NAME.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from envsuite.adapters.base import AdaptedEnv, SeedOptions, classes, import_extra
from envsuite.core import Outcome, Tool, ToolCall
from envsuite.core.boundary import CodeError, number, reason
from envsuite.core.errors import UsageError, WorkerLost
from envsuite.core.http import MOST_BYTES, ask
from envsuite.core.options import option

HORIZON = 200
_EXTRA = "'envsuite[bridges]'"


@dataclass(frozen=True, kw_only=True)
class OpenEnvOptions(SeedOptions):
    """Options of an environment on a server; ``train`` and ``test`` count where the server lists no tasks."""

    server: str = option("", "address of the server, e.g. http://127.0.0.1:8000", offered=False)
    goal: str | None = option(None, "the instruction; else the observation's task, else what the server is about")
    settings: Mapping[str, Any] | None = option(None, "further fields of each reset")
    deadline: float = option(60.0, "seconds in which the server has to answer", exclusiveMinimum=0)


class OpenEnv(AdaptedEnv):
    """An environment that a server plays, an episode after the other over one WebSocket.

    Tools are the server's; one of typed actions has the tool ``act``, whose arguments are the action's fields. Tasks
    are those of the task API, else seeds. Reward and end are the server's, and so are ``success``, ``score``,
    ``error``, ``metrics`` and ``state_key`` where its metadata has them; else an end with a positive reward is a
    success.
    """

    package = "openenv"
    takes = OpenEnvOptions
    in_file = True
    _socket: Any = None

    def _prepare(self) -> tuple[Tool, ...]:
        self._server, self._sockets = self.options.server.rstrip("/"), import_extra("websockets", _EXTRA)
        self._http = import_extra("httpx2", _EXTRA)
        self._connect = import_extra("websockets.sync.client", _EXTRA).connect
        if not self._server.startswith(("http://", "https://")):
            raise UsageError(f"{self.takes.env_id} needs the address of a server: server=http://127.0.0.1:8000")
        self._client = self._session.enter_context(self._http.Client(timeout=self.options.deadline, trust_env=False))
        self._about = self._request("/metadata") or {}
        self._version = f"{self._about.get('name', self.name)}-{self._about.get('version', 'unknown')}"
        self._rows = {
            str(task.get("id", f"{split['name']}-{index}")): {**task, "split": split["name"], "index": index}
            for name in self._request("/list_environments") or ()
            for split in self._request(f"/{name}/splits") or ()
            for index, entry in enumerate(self._request(f"/{name}/tasks", {"split": split["name"]})["tasks"])
            for task in [entry if isinstance(entry, dict) else {}]
        }
        answer = self._request("/mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}) or {}
        tools = (answer.get("result") or {}).get("tools")
        self._typed = not tools
        if tools:
            return tuple(Tool(tool["name"], tool.get("description") or "", tool["inputSchema"]) for tool in tools)
        form = (self._request("/schema") or {}).get("action")
        if form is None:
            raise UsageError(f"{self._server} is not a server of OpenEnv: it has neither tools nor /schema")
        fields = {name: schema for name, schema in form.get("properties", {}).items() if name != "metadata"}
        return (Tool("act", form.get("description") or "Takes an action.", {**form, "properties": fields}),)

    def _request(self, path: str, body: object = None) -> Any:
        """Returns the answer to a single request; ``None`` where the server does not have the path."""
        method = "GET" if body is None else "POST"
        try:
            answer = ask(self._client, method, self._server + path, json=body)
            return answer.json() if answer.status_code == 200 else None
        except (self._http.HTTPError, self._http.InvalidURL, ValueError) as error:
            raise UsageError(f"{self._server} does not answer as a server of OpenEnv ({reason(error)})") from error

    def _begin(self, task_id: str) -> tuple[str, Outcome]:
        row, self._total, old = (self._rows or {}).get(task_id), 0.0, self._socket is not None
        task = {"split": row["split"], "index": row["index"]} if row else {"seed": int(task_id.removeprefix("seed-"))}
        data = {**(self.options.settings or {}), **task}
        try:
            answer = self._send("reset", data)
        except WorkerLost:
            if not old:  # a connection may have ended while nothing was played
                raise
            answer = self._send("reset", data)
        goal = self.options.goal or answer["observation"].get("task") or self._about.get("description") or self.name
        return str(goal), self._outcome(answer)

    def _send(self, kind: str, data: object) -> Any:
        """Returns the answer to a message.

        Raises:
            WorkerLost: There is none, or the server failed.
        """
        address, limit = f"ws{self._server.removeprefix('http')}/ws", self.options.deadline
        try:
            if self._socket is None:
                socket = self._connect(address, proxy=None, max_size=MOST_BYTES, open_timeout=limit)
                self._socket = self._session.enter_context(socket)
            self._socket.send(orjson.dumps({"type": kind, "data": data}).decode())
            answer = orjson.loads(self._socket.recv(timeout=limit))
        except (OSError, ValueError, self._sockets.exceptions.WebSocketException) as error:
            self.close()
            raise WorkerLost(f"{self._server} does not answer ({reason(error)}); see whether it runs") from error
        if answer["type"] == "error" and (kind == "reset" or answer["data"]["code"] != "VALIDATION_ERROR"):
            self.close()
            raise WorkerLost(f"{self._server}: {kind}: {answer['data']['message']}")
        return answer["data"]

    def _call(self, call: ToolCall) -> Outcome:
        action = dict(call.arguments)
        answer = self._send(
            "step", action if self._typed else {"type": "call_tool", "tool_name": call.name, "arguments": action}
        )
        if "observation" in answer:
            return self._outcome(answer)
        problem = " ".join([answer["message"], *(str(error.get("msg", "")) for error in answer.get("errors", ()))])
        return Outcome(problem, error=problem)

    def _outcome(self, answer: dict[str, Any]) -> Outcome:
        observation, ends = answer["observation"], bool(answer.get("done"))
        info = {"error": observation.get("error"), **(observation.get("metadata") or {})}
        if ends and answer.get("reward") is None and info["error"] is not None:
            raise CodeError(f"the server ended the episode without a reward: {info['error']}")
        reward = number(answer.get("reward") or 0.0, "the server's reward")
        self._total += reward
        self._cut = ends and bool(info.get("truncated")) and not info.get("terminated")
        content = observation.get("text", observation.get("result"))
        body = {name: part for name, part in observation.items() if name not in ("metadata", "done", "reward", "error")}
        text = content if isinstance(content, str) else orjson.dumps(body).decode()
        error = None if info["error"] is None else str(info["error"])
        text = text if error is None or error in text else f"{text}\n{error}"
        self._key = str(info.get("state_key", text))
        score, commands = float(info.get("score", self._total)), tuple(map(str, observation.get("commands") or ()))
        success, metrics = bool(info.get("success", ends and reward > 0)), info.get("metrics") or {}
        return Outcome(text, reward, ends, error, commands, success, min(max(score, 0.0), 1.0), metrics)

    def _state_key(self) -> str:
        return self._key

    def close(self) -> None:
        """Ends the connection."""
        self._socket = None
        super().close()


__getattr__ = classes(OpenEnv, list, lambda name: True)
