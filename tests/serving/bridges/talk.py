"""What both protocols are tested with: episodes as they are here, and clients without manners."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import anyio
import gymnasium
import httpx2
import orjson
import pytest
from vector_worlds import Rough
from waiting import until

from envsuite.core import Outcome, ToolCall
from envsuite.remote.making import make_player
from envsuite.serving.bridges.server import Bridge

EACH = pytest.mark.parametrize(
    "env_id", ["TextCraft-v0", "WebShop-v0", pytest.param("ALFWorld-v0", marks=pytest.mark.slow)]
)


@dataclass(frozen=True)
class Episode:
    """One that was played here."""

    task: str
    text: str
    info: dict[str, Any]
    steps: tuple[tuple[ToolCall, dict[str, Any]], ...]
    """Each call, and what came of it."""


OPEN = threading.Event()
"""Until it is set, the command ``wait`` of the world below takes its time."""


class Patient(Rough):
    """A world that one can wait for."""

    def _call(self, call: ToolCall) -> Outcome:
        if call.arguments["command"] == "wait":
            OPEN.wait(300)
        return super()._call(call)


if "Patient-v0" not in gymnasium.registry:
    gymnasium.register("Patient-v0", entry_point=Patient, max_episode_steps=20)


def at(bridge: Bridge, env_id: str = "TextCraft-v0") -> str:
    """Where OpenEnv's clients find an environment."""
    return f"{bridge.url}/openenv/{env_id}"


def plain(value: Any) -> Any:
    return orjson.loads(orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY))


@cache
def played(env_id: str, seed: int) -> Episode:
    """An episode of the expert, who begins with nonsense, repeated until the horizon ends it where the seed is odd."""
    env = gymnasium.make(env_id, disable_env_checker=True)
    expert = make_player(env_id, "expert")
    observation, info = env.reset(seed=seed)
    tool = env.unwrapped.tools[0].name
    begun, steps, done = (observation["task"], observation["text"], plain(info)), [], False
    nonsense = [ToolCall("dance", {}), ToolCall(tool, {}), ToolCall(tool, {"x": [1, None, "\u2603"]})]
    while not done:
        call = nonsense[len(steps) % 3] if len(steps) < 3 or seed % 2 else expert.act(env)[0]
        observation, reward, terminated, truncated, info = env.step((call,))
        done = terminated or truncated
        came = {"text": observation["text"], "commands": observation["commands"], "reward": reward, "info": info}
        steps.append((call, plain({**came, "terminated": terminated, "truncated": truncated})))
    env.close()
    return Episode(*begun, tuple(steps))


def example(beginning: str, root: Path) -> str:
    """The block of docs/bridges.md that begins so, its language included."""
    page = (root / "docs/bridges.md").read_text(encoding="utf-8")
    (block,) = [
        block for block in re.findall(r"^```(.*?)^```", page, re.MULTILINE | re.DOTALL) if block.startswith(beginning)
    ]
    return block.partition("\n")[2]


def run(conversation: Callable[[], Awaitable[Any]], seconds: float = 300) -> Any:
    """What an asynchronous conversation returns, which must not hang."""

    async def timed() -> Any:
        with anyio.fail_after(seconds):
            return await conversation()

    return anyio.run(timed)


@contextlib.contextmanager
def opened(bridge: Bridge) -> Iterator[tuple[httpx2.Client, str]]:
    """A session by hand: what asks, and its name; it holds a seat."""
    url = f"{bridge.url}/mcp/TextCraft-v0"
    with httpx2.Client(headers={"accept": "application/json, text/event-stream"}) as http:
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "hand", "version": "1"}}
        name = http.post(url, json=rpc("initialize", hello)).headers["mcp-session-id"]
        http.headers["mcp-session-id"] = name
        assert http.post(url, json={"jsonrpc": "2.0", "method": "notifications/initialized"}).status_code == 202
        assert called(http, url, "reset")["isError"] is False and bridge.seats.taken == 1
        yield http, url


def rpc(method: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


def called(http: httpx2.Client, url: str, tool: str, **arguments: Any) -> Any:
    reply = http.post(url, json=rpc("tools/call", {"name": tool, "arguments": arguments}))
    return reply.json()["result"] if reply.status_code == 200 else reply.status_code


def empty(bridge: Bridge) -> bool:
    """Whether all seats become free."""
    until(lambda: bridge.seats.taken == 0)
    return True
