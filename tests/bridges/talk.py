"""What both protocols are tested with: episodes as they are here, and clients without manners."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import anyio
import gymnasium
import orjson
from vector_worlds import Rough

from envsuite.bridges.server import Bridge
from envsuite.core import Outcome, ToolCall
from envsuite.textcraft.expert import Expert as Crafter
from envsuite.webshop.expert import Expert as Shopper

EXPERTS: dict[str, Callable[[], Any]] = {"TextCraft-v0": Crafter, "WebShop-v0": Shopper}


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


def plain(value: Any) -> Any:
    return orjson.loads(orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY))


@cache
def played(env_id: str, seed: int) -> Episode:
    """An episode of the expert, who begins with nonsense, repeated until the horizon ends it where the seed is odd."""
    env = gymnasium.make(env_id, disable_env_checker=True)
    expert = EXPERTS[env_id]()
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


def soon(true: Callable[[], bool], seconds: float = 60) -> bool:
    """Whether something becomes true."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def empty(bridge: Bridge) -> bool:
    """Whether all seats become free."""
    return soon(lambda: bridge.seats.taken == 0)
