"""Tools of an MCP server, rewarded by a function of yours: ``mcp/NAME``, with its options in ``NAME.json``."""

from __future__ import annotations

import hashlib
import logging
import os
import shlex
import shutil
import sys
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any
from urllib.parse import urlsplit

import orjson

from envsuite.adapters import relay
from envsuite.adapters.base import AdaptedEnv, classes, import_extra
from envsuite.core import Outcome, Tool, ToolCall
from envsuite.core.addresses import is_private
from envsuite.core.boundary import CodeError, number, reason
from envsuite.core.errors import DataError, UsageError, WorkerLost
from envsuite.core.functions import function_in
from envsuite.core.http import MOST_BYTES, answer_limits
from envsuite.core.options import EnvOptions, option
from envsuite.core.settings import read_json

HORIZON = 30
ANSWER = Tool.of_string("answer", "Gives the answer, which ends the episode.", "text", "The answer.")
_EXTRA = "'envsuite[bridges]'"
_KEPT = 1 << 20
"""Most bytes of a server's stderr that are kept."""
_LOST = (-32000, -32001)
"""Codes of a connection that was closed, and of an answer that did not come in time."""


@dataclass(frozen=True, kw_only=True)
class McpOptions(EnvOptions):
    """Options of the tools of a server."""

    command: str = option("", "command that starts the server, in each episode anew", offered=False)
    server: str = option("", "address of the server, instead of a command", offered=False)
    reward: str = option("", "FILE.py:FUNCTION of the task and the calls; a number ends the episode", offered=False)
    goals: str | Sequence[Any] = option((), "tasks, or a file of JSON lines: texts, or mappings", offered=False)
    begin: str = option("", "tool that begins an episode, with the task's arguments, not the agent's", offered=False)
    deadline: float = option(60.0, "seconds that a call may take", exclusiveMinimum=0)


class Mcp(AdaptedEnv):
    """The tools of a server, in a session of its own for each episode, and ``answer``, which ends it.

    A task is a text, or a mapping with ``goal``, and with ``id``, ``split``, ``type`` and ``arguments`` where they are
    wanted. After each call the reward function is given the task and all calls: mappings of ``name``, ``arguments``,
    ``text``, ``result`` (structured, or ``None``) and ``error`` (whether the tool failed). ``None`` goes on; a number
    ends the episode, 1 or more as a success.
    """

    package = "mcp"
    takes = McpOptions
    in_file = True
    _fresh = False
    """Whether nothing was called in the session."""

    def _prepare(self) -> tuple[Tool, ...]:
        options, file = self.options, self.options.reward.rpartition(":")[0]
        if bool(options.command) == bool(options.server) or not file or not options.goals:
            raise UsageError(f"{self.takes.env_id} needs goals, reward=FILE.py:FUNCTION, and either command or server")
        self._sdk = import_extra("mcp", _EXTRA)
        try:
            self._reward = function_in(options.reward)
        except UsageError as error:
            raise UsageError(f"reward: {error}") from error
        self._tasks = _read(options.goals, self.takes.env_id)
        self._rows = self._tasks
        content = Path(file).read_bytes() + orjson.dumps(self._rows, option=orjson.OPT_SORT_KEYS)
        self._version = hashlib.sha256(content).hexdigest()[:12]
        tools = {tool.name: tool for tool in self._start_session() if tool.name != options.begin}
        return tuple({ANSWER.name: ANSWER, **tools}.values())

    def _start_session(self) -> list[Tool]:
        """Starts a session; returns the server's tools."""
        self.close()
        portal = import_extra("anyio.from_thread", _EXTRA).start_blocking_portal
        logging.getLogger("mcp.client").setLevel(logging.CRITICAL)  # else each line that is no message is shown
        self._errors = TemporaryFile("w+", encoding="utf-8", errors="replace")
        try:
            with ExitStack() as stack:
                client = self._sdk.Client(self._transport(), read_timeout_seconds=self.options.deadline)
                self._portal = stack.enter_context(portal())
                self._client = stack.enter_context(self._portal.wrap_async_context_manager(client))
                tools = self._portal.call(self._client.list_tools).tools
                stack.callback(self._errors.close)
                self._session, self._fresh = stack.pop_all(), True
        except Exception as error:
            what = f"no MCP server answers at {self.options.server or self.options.command}"
            why = f"{reason(error)}{self._last_errors()}"
            self._errors.close()
            raise UsageError(f"{self.takes.env_id}: {what} ({why})") from error
        return [Tool(tool.name, tool.description or "", tool.input_schema) for tool in tools]

    @asynccontextmanager
    async def _transport(self) -> AsyncIterator[Any]:
        """Yields the streams of messages from and to the server, whose answers are bounded."""
        if self.options.server:
            http, connect = import_extra("httpx2", _EXTRA), import_extra("mcp.client.streamable_http", _EXTRA)
            direct = is_private(str(urlsplit(self.options.server).hostname))
            async with (
                http.AsyncClient(timeout=self.options.deadline, trust_env=not direct, **answer_limits()) as client,
                connect.streamable_http_client(self.options.server, http_client=client) as streams,
            ):
                yield streams
            return
        words = shlex.split(self.options.command)
        if shutil.which(words[0]) is None:
            raise FileNotFoundError(f"there is no command {words[0]}")
        arguments = [relay.__file__, str(MOST_BYTES), str(_KEPT), *words]
        server = self._sdk.StdioServerParameters(command=sys.executable, args=arguments, env={**os.environ})
        async with import_extra("mcp.client.stdio", _EXTRA).stdio_client(server, self._errors) as streams:
            yield streams

    def _last_errors(self) -> str:
        """Returns the last line that the server wrote to its stderr, for messages."""
        if self._errors.closed:
            return ""
        self._errors.seek(0)
        lines = [line for line in self._errors.read().splitlines() if line.strip()]
        return f"; its stderr ends with {lines[-1][-300:]!r}" if lines else ""

    def _goal(self, task_id: str) -> str:
        return str(self._tasks[task_id]["goal"])

    def _begin(self, task_id: str) -> tuple[str, Outcome]:
        tools = self.tools if self._fresh else (ANSWER, *self._start_session())
        if absent := {tool.name for tool in self.tools} - {tool.name for tool in tools}:
            raise WorkerLost(f"{self.takes.env_id}: the server has no tool {min(absent)} any more; start the run anew")
        self._task, self._calls, text = self._tasks[task_id], list[dict[str, Any]](), ""
        if self.options.begin:
            record = self._call_server(self.options.begin, self._task.get("arguments", {}))
            text = record["text"]
            if record["error"]:
                raise WorkerLost(f"{self.takes.env_id}: {self.options.begin} of {task_id}: {text}")
        return str(self._task["goal"]), Outcome(text)

    def _call_server(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a call of the server with what it led to."""
        record, self._fresh = {"name": name, "arguments": {**arguments}}, False
        try:
            answer = self._portal.call(partial(self._client.call_tool, name, {**arguments}))
        except Exception as error:
            if isinstance(error, self._sdk.MCPError) and error.code not in _LOST:  # e.g. the tool has vanished
                return {**record, "text": str(error), "result": None, "error": True}
            why = f"{reason(error)}{self._last_errors()}"
            self.close()
            raise WorkerLost(f"{self.takes.env_id}: {name}: {why}") from error
        text = "\n".join(part.text if part.type == "text" else f"[{part.type}]" for part in answer.content)
        return {**record, "text": text, "result": answer.structured_content, "error": bool(answer.is_error)}

    def _call(self, call: ToolCall) -> Outcome:
        own = call.name == ANSWER.name and ANSWER in self.tools
        text, arguments = str(call.arguments.get("text")), {**call.arguments}
        own_record = dict[str, Any](name=call.name, arguments=arguments, text=text, result=None, error=False)
        record = own_record if own else self._call_server(call.name, arguments)
        self._calls.append(record)
        try:
            reward = self._reward(self._task, self._calls)
        except Exception as error:
            raise CodeError(f"reward={self.options.reward} fails after {call.name} ({reason(error)})") from error
        value = number(reward or 0.0, f"what {self.options.reward} returned")
        if reward is None and not own:
            return Outcome(record["text"], error=record["text"] if record["error"] else None)
        return Outcome(record["text"], value, done=True, success=value >= 1, score=min(max(value, 0.0), 1.0))


def _read(goals: str | Sequence[Any], env_id: str) -> dict[str, dict[str, Any]]:
    """Returns the tasks by their ids."""
    try:
        lines: Iterable[Any] = goals
        if isinstance(goals, str):
            lines = map(read_json, Path(goals).read_bytes().splitlines(), repeat(goals))
        rows = [{"goal": str(line)} if isinstance(line, str) else {**line, "goal": line["goal"]} for line in lines]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise DataError(f"goals of {env_id}: not texts, or mappings with goal ({reason(error)})") from error
    return {str(row.get("id", f"{row.get('split', 'train')}-{place}")): row for place, row in enumerate(rows)}


__getattr__ = classes(Mcp, list, lambda name: True)
