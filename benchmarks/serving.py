"""Steps per second over HTTP, beside servers of other kinds: ``python -m benchmarks.serving``.

All servers play on this machine, one after the other, each in a process of its own with its clients in another. Ours
and FastAPI's play TextCraft, and are asked through the same clients, with connections kept open; openenv-core's echoes,
and is asked through its own client, over WebSockets. Clients are threads, or tasks of one event loop. Needs, for the
others: ``pip install fastapi uvicorn websockets fastmcp`` and ``pip install --no-deps openenv-core``; what is not
installed is left out, and said.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import itertools
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from envsuite.core import ToolCall
from envsuite.remote import RemoteEnv
from envsuite.remote.transport import ServerUnreachable, server
from envsuite.vector import EnvFactory, Place, make_vector

COMMAND = "inventory"
CALLS = [{"name": "env_step", "arguments": {"command": COMMAND}}]
ACTION = (ToolCall("env_step", {"command": COMMAND}),)
WARM_UP = 500
"""Steps before the first that is measured, of all clients together."""
OURS, FASTAPI, OPENENV = "envsuite serve http", "FastAPI, AgentGym's kind", "openenv-core's echo"
COMMANDS = {
    OURS: ["envsuite.cli", "serve", "http", "TextCraft-v0", "--port"],
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
def running(who: str, *options: str) -> Iterator[str]:
    """A server in a process of its own; yields its address."""
    with served(COMMANDS[who], *options) as (url, _):
        yield url


@contextlib.contextmanager
def served(module: Sequence[str], *options: str) -> Iterator[tuple[str, int]]:
    """A server in a process of its own; yields its address and the id of the process.

    Args:
        module: Module, and its arguments up to the port.
        options: Its further arguments.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-m", *module, str(port), *options], stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 120
        while time.monotonic() < end:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}", process.pid
    finally:
        process.kill()
        process.wait()


def begun(who: str, url: str) -> tuple[str, Iterator[dict[str, Any]]]:
    """A new episode at an HTTP server: the address of its steps, and what is to be sent for each of them."""
    there = server(url)
    if who == FASTAPI:
        name = there.ask("POST", "/create", {})["id"]
        there.ask("POST", "/reset", {"id": name, "seed": 0})
        return "/step", itertools.repeat({"id": name, "action": COMMAND})
    name = there.ask("POST", "/v1/sessions", {"environment": "TextCraft-v0", "max_episode_steps": None})["session"]
    there.ask("POST", f"/v1/sessions/{name}/reset", {"number": 1, "seed": 0})
    return f"/v1/sessions/{name}/step", ({"number": number, "calls": CALLS} for number in itertools.count(2))


def stepper(stack: contextlib.ExitStack, who: str, url: str) -> Callable[[], object]:
    """A new episode of a blocking client, and what takes a step in it."""
    if who == OPENENV:
        from openenv.core import GenericEnvClient

        env = stack.enter_context(GenericEnvClient(base_url=url).sync())
        env.reset()
        return lambda: env.step({"message": COMMAND})
    path, bodies = begun(who, url)
    there = server(url)
    return lambda: there.ask("POST", path, next(bodies))


def blocking_steps(who: str, url: str, clients: int, steps: int) -> tuple[float, list[float]]:
    """Steps per second of ``clients`` threads, and the seconds of each step."""
    with contextlib.ExitStack() as stack:
        return threads_steps([stepper(stack, who, url) for _ in range(clients)], steps)


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


async def task_stepper(stack: contextlib.AsyncExitStack, who: str, url: str) -> Callable[[], Awaitable[object]]:
    """The same of a client in an event loop: openenv-core's own, or requests written to a socket that is kept open."""
    if who == OPENENV:
        from openenv.core import GenericEnvClient

        env = await stack.enter_async_context(GenericEnvClient(base_url=url))
        await env.reset()
        return lambda: env.step({"message": COMMAND})
    path, bodies = begun(who, url)
    host = urllib.parse.urlsplit(url).netloc
    reader, writer = await asyncio.open_connection(*host.split(":"))
    stack.callback(writer.close)
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: "

    async def step() -> object:
        body = orjson.dumps(next(bodies))
        writer.write(f"{head}{len(body)}\r\n\r\n".encode() + body)
        answer = (await reader.readuntil(b"\r\n\r\n")).lower()
        assert answer.startswith(b"http/1.1 200"), answer
        length = int(answer.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
        return orjson.loads(await reader.readexactly(length))

    return step


def task_steps(who: str, url: str, clients: int, steps: int) -> tuple[float, list[float]]:
    """Steps per second of ``clients`` tasks of one event loop, and the seconds of each step."""

    async def play() -> tuple[float, list[float]]:
        latency: list[float] = []
        async with contextlib.AsyncExitStack() as stack:
            steppers = [await task_stepper(stack, who, url) for _ in range(clients)]
            for step in steppers:
                for _ in range(WARM_UP // clients):
                    await step()

            async def one(step: Callable[[], Awaitable[object]]) -> None:
                for _ in range(steps):
                    began = time.perf_counter()
                    await step()
                    latency.append(time.perf_counter() - began)

            began = time.perf_counter()
            await asyncio.gather(*map(one, steppers))
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


def vector_steps(where: dict[str, Any], slots: int, rounds: int, workers: int = 0, place: Place = "process") -> float:
    """Steps per second of :mod:`envsuite.vector`."""
    factory = EnvFactory("TextCraft-v0", {**where, "max_episode_steps": -1})
    with make_vector([factory], slots, workers, place=place) as vector:
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


SINGLE = (("1 client", blocking_steps, 1), ("32 threads", blocking_steps, 32), ("32 tasks", task_steps, 32))
"""How single steps are asked for."""


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
                for what, how, clients in SINGLE:
                    found = _in_process(how, who, url, clients, max(10, steps // clients))
                    yield Row(f"single steps, {what}", who, *found)
                if who == OURS:
                    yield Row("gymnasium.make(…, url=…), 1", who, *_in_process(env_steps, url, steps))
                    for sessions in (32, 256):
                        rate = _in_process(batch_steps, url, sessions, max(5, 10 * steps // sessions))
                        yield Row(f"batch steps, {sessions} sessions", who, rate)
                    rate = _in_process(vector_steps, {"url": url}, 256, max(5, 5 * steps // 256))
                    yield Row("envsuite.vector, 256 slots", who, rate)
            except ServerUnreachable as error:
                sys.stderr.write(f"{who}: left out, {error}\n")


def measure_places(steps: int) -> Iterator[Row]:
    """Rows of :mod:`envsuite.vector` with 256 slots, wherever the environments are."""
    rounds = max(5, steps // 256)
    yield Row("in this process", OURS, vector_steps({}, 256, rounds))
    yield Row("2 workers", OURS, vector_steps({}, 256, rounds, 2))
    with running(OURS) as one, running(OURS) as two:
        yield Row("2 servers", OURS, vector_steps({"url": [one, two]}, 256, rounds))
    if importlib.util.find_spec("ray") is None:
        sys.stderr.write("actors: left out, Ray is not installed\n")
        return
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=1)
        os.environ["RAY_ADDRESS"] = cluster.address
        yield Row("2 actors of Ray, on two nodes", OURS, vector_steps({}, 256, rounds, 2, "ray"))
    finally:
        ray.shutdown()
        cluster.shutdown()


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving", description=main.__doc__)
    parser.add_argument("--steps", type=int, default=20_000, help="of each row (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON object per row")
    parser.add_argument("--places", action="store_true", help="envsuite.vector here, in workers, servers and actors")
    arguments = parser.parse_args()
    for row in (measure_places if arguments.places else measure)(arguments.steps):
        line = {"what": row.what, "who": row.who, "steps_per_second": row.rate}
        sys.stdout.write(f"{json.dumps(line) if arguments.json else row}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
