"""Steps per second over HTTP, beside servers of other kinds: ``python -m benchmarks.serving``.

All servers play on this machine, one after the other, each in a process of its own with its clients in another. Ours
and FastAPI's play TextCraft, and are asked through the same client, with connections kept open; openenv-core's echoes,
and is asked through its own client, over WebSockets. Needs, for the others: ``pip install fastapi uvicorn websockets
fastmcp`` and ``pip install --no-deps openenv-core``; what is not installed is left out, and said.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import json
import multiprocessing
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from envsuite.core import ToolCall
from envsuite.remote import RemoteEnv
from envsuite.remote.transport import Unreachable, server
from envsuite.vector import EnvFactory, make_vector

COMMAND = "inventory"
CALLS = [{"name": "env_step", "arguments": {"command": COMMAND}}]
ACTION = (ToolCall("env_step", {"command": COMMAND}),)
WARM_UP = 500
"""Steps before the first that is measured, of all clients together."""
OURS, FASTAPI, OPENENV = "envsuite serve", "FastAPI, AgentGym's kind", "openenv-core's echo"
COMMANDS = {
    OURS: ["envsuite.cli", "serve", "TextCraft-v0", "--port"],
    FASTAPI: ["benchmarks.serving_peers", "fastapi"],
    OPENENV: ["benchmarks.serving_peers", "openenv"],
}
NEEDS = {OURS: "flask", FASTAPI: "fastapi", OPENENV: "openenv"}


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    what: str
    who: str
    rate: float
    """Steps per second."""
    latency: Sequence[float] = ()
    """Seconds of each step."""

    def __str__(self) -> str:
        told = f"{self.what:32} {self.who:26} {self.rate:9,.0f} steps/s"
        if not len(self.latency):
            return told
        p50, p99 = np.quantile(self.latency, [0.5, 0.99]) * 1e3
        return f"{told}   p50 {p50:6.2f} ms   p99 {p99:6.2f} ms"


@contextlib.contextmanager
def running(who: str) -> Iterator[str]:
    """A server in a process of its own; yields its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-m", *COMMANDS[who], str(port)], stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 120
        while time.monotonic() < end:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def http_stepper(who: str, url: str) -> Callable[[], object]:
    """A new episode at an HTTP server, and what takes a step in it."""
    there = server(url)
    if who == FASTAPI:
        name = there.ask("POST", "/create", {})["id"]
        there.ask("POST", "/reset", {"id": name, "seed": 0})
        return lambda: there.ask("POST", "/step", {"id": name, "action": COMMAND})
    name = there.ask("POST", "/v1/sessions", {"environment": "TextCraft-v0", "max_episode_steps": None})["session"]
    there.ask("POST", f"/v1/sessions/{name}/reset", {"number": 1, "seed": 0})
    numbers = iter(range(2, 1 << 53))
    path = f"/v1/sessions/{name}/step"
    return lambda: there.ask("POST", path, {"number": next(numbers), "calls": CALLS})


def http_steps(who: str, url: str, clients: int, steps: int) -> tuple[float, list[float]]:
    """Steps per second of ``clients`` threads, and the seconds of each step."""
    steppers = [http_stepper(who, url) for _ in range(clients)]
    return threads_steps(steppers, steps)


def threads_steps(steppers: Sequence[Callable[[], object]], steps: int) -> tuple[float, list[float]]:
    """Steps per second of one thread for each stepper, and the seconds of each step; some are taken before."""
    latency: list[list[float]] = [[] for _ in steppers]
    ready = threading.Barrier(len(steppers) + 1)

    def play(index: int) -> None:
        for _ in range(WARM_UP // len(steppers)):
            steppers[index]()
        ready.wait()
        for _ in range(steps):
            began = time.perf_counter()
            steppers[index]()
            latency[index].append(time.perf_counter() - began)

    threads = [threading.Thread(target=play, args=(index,)) for index in range(len(steppers))]
    for thread in threads:
        thread.start()
    ready.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    return len(steppers) * steps / (time.perf_counter() - began), [s for one in latency for s in one]


def openenv_steps(url: str, clients: int, steps: int) -> tuple[float, list[float]]:
    """The same through openenv-core's client, each in a task of one event loop."""
    from openenv.core import GenericEnvClient

    async def play() -> tuple[float, list[float]]:
        latency: list[float] = []
        async with contextlib.AsyncExitStack() as stack:
            envs = [await stack.enter_async_context(GenericEnvClient(base_url=url)) for _ in range(clients)]
            for env in envs:
                await env.reset()
                for _ in range(WARM_UP // clients):
                    await env.step({"message": COMMAND})

            async def one(env: Any) -> None:
                for _ in range(steps):
                    began = time.perf_counter()
                    await env.step({"message": COMMAND})
                    latency.append(time.perf_counter() - began)

            began = time.perf_counter()
            await asyncio.gather(*map(one, envs))
            return clients * steps / (time.perf_counter() - began), latency

    return asyncio.run(play())


def env_steps(url: str, steps: int) -> tuple[float, list[float]]:
    """Steps per second through ``gymnasium.make(…, url=…)``'s environment, all of the client included."""
    env = RemoteEnv(url, "TextCraft-v0")
    env.reset(seed=0)
    return threads_steps([lambda: env.step(ACTION)], steps)


def batch_steps(url: str, sessions: int, rounds: int) -> float:
    """Steps per second of batches over ``sessions`` sessions."""
    there = server(url)
    made = there.ask("POST", "/v1/batch", {"calls": [{"op": "create", "environment": "TextCraft-v0"}] * sessions})
    names = [result["body"]["session"] for result in made["results"]]
    there.ask("POST", "/v1/batch", {"calls": [{"op": "reset", "session": n, "number": 1, "seed": 0} for n in names]})
    began = time.perf_counter()
    for number in range(2, rounds + 2):
        calls = [{"op": "step", "session": name, "number": number, "calls": CALLS} for name in names]
        results = there.ask("POST", "/v1/batch", {"calls": calls})["results"]
        assert all(result["status"] == 200 for result in results)
    return sessions * rounds / (time.perf_counter() - began)


def vector_steps(url: str, slots: int, rounds: int) -> float:
    """Steps per second of a :class:`~envsuite.vector.RemoteVector`."""
    factory = EnvFactory("TextCraft-v0", {"url": url, "max_episode_steps": -1})
    with make_vector([factory], slots) as vector:
        for slot in range(slots):
            vector.reset(slot, 0, seed=slot)
        taken, began = -slots, time.perf_counter()
        while vector.pending:
            for event in vector.poll():
                assert event.error is None, event.error
                taken += 1
                if taken <= 0:
                    began = time.perf_counter()
                if taken <= (rounds - 1) * slots:
                    vector.step(event.slot, ACTION)
        return taken / (time.perf_counter() - began)


def _in_process(target: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a function in a fresh process, so that no client's threads slow another's."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(target, arguments)


def measure(steps: int) -> Iterator[Row]:
    """All rows; ``steps`` for each single client, and as many for 32 together."""
    for who in COMMANDS:
        if importlib.util.find_spec(NEEDS[who]) is None:
            sys.stderr.write(f"{who}: left out, {NEEDS[who]} is not installed\n")
            continue
        with running(who) as url:
            try:
                for clients in (1, 32):
                    what = f"single steps, {clients} client{'s' if clients > 1 else ''}"
                    if who == OPENENV:
                        found = _in_process(openenv_steps, url, clients, max(10, steps // clients))
                    else:
                        found = _in_process(http_steps, who, url, clients, max(10, steps // clients))
                    yield Row(what, who, *found)
                if who == OURS:
                    yield Row("gymnasium.make(…, url=…), 1", who, *_in_process(env_steps, url, steps))
                    for sessions in (32, 256):
                        rate = _in_process(batch_steps, url, sessions, max(5, 10 * steps // sessions))
                        yield Row(f"batch steps, {sessions} sessions", who, rate)
                    rate = _in_process(vector_steps, url, 256, max(5, 5 * steps // 256))
                    yield Row("envsuite.vector, 256 slots", who, rate)
            except Unreachable as error:
                sys.stderr.write(f"{who}: left out, {error}\n")


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving", description=main.__doc__)
    parser.add_argument("--steps", type=int, default=3000, help="of each row (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON object per row")
    arguments = parser.parse_args()
    for row in measure(arguments.steps):
        line = {"what": row.what, "who": row.who, "steps_per_second": row.rate}
        sys.stdout.write(f"{json.dumps(line) if arguments.json else row}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
