"""Steps per second of ``envsuite serve http`` on this machine: ``python -m benchmarks.serving``.

The server plays TextCraft in a process of its own, each kind of client in another. Clients are threads that wait for
their answers, or tasks of one event loop; connections are kept open.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import multiprocessing
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import orjson

from envsuite.core import ToolCall
from envsuite.remote import RemoteEnv
from envsuite.remote.transport import server
from envsuite.vector import EnvFactory, make_vector

COMMAND = "inventory"
CALLS = [{"name": "env_step", "arguments": {"command": COMMAND}}]
ACTION = (ToolCall("env_step", {"command": COMMAND}),)
WARM_UP = 500
"""Steps before the first that is measured, of all clients together."""

Figures = tuple[float, Sequence[float]]
"""Steps per second, and the seconds of each step, where single ones were measured."""


@contextlib.contextmanager
def served() -> Iterator[tuple[str, int]]:
    """A server in a process of its own; yields its address and the id of the process."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    words = [sys.executable, "-m", "envsuite.cli", "serve", "http", "TextCraft-v0", "--port", str(port)]
    process = subprocess.Popen(words, stderr=subprocess.DEVNULL)
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


def begin_episode(url: str) -> tuple[str, Iterator[dict[str, Any]]]:
    """A new episode: the path of its steps, and what is to be sent for each of them."""
    there = server(url)
    name = there.ask("POST", "/v1/sessions", {"environment": "TextCraft-v0", "max_episode_steps": None})["session"]
    there.ask("POST", f"/v1/sessions/{name}/reset", {"number": 1, "seed": 0})
    return f"/v1/sessions/{name}/step", ({"number": number, "calls": CALLS} for number in itertools.count(2))


def thread_steps(url: str, clients: int, steps: int) -> Figures:
    """As many threads as there are clients."""

    def stepper() -> Callable[[], object]:
        path, bodies = begin_episode(url)
        there = server(url)
        return lambda: there.ask("POST", path, next(bodies))

    return run_threads([stepper() for _ in range(clients)], steps)


def env_steps(url: str, clients: int, steps: int) -> Figures:
    """As many environments of ``gymnasium.make(…, url=…)``, all of the client included."""
    envs = [RemoteEnv(url, "TextCraft-v0") for _ in range(clients)]
    for env in envs:
        env.reset(seed=0)
    return run_threads([lambda env=env: env.step(ACTION) for env in envs], steps)  # type: ignore[misc]


def run_threads(steppers: Sequence[Callable[[], object]], steps: int) -> Figures:
    """A thread for each stepper; some steps are taken before the first that is measured."""
    latency: list[float] = []
    ready = threading.Barrier(len(steppers) + 1)

    def play(step: Callable[[], object]) -> None:
        for _ in range(WARM_UP // len(steppers)):
            step()
        ready.wait()
        for _ in range(steps):
            began = time.perf_counter()
            step()
            latency.append(time.perf_counter() - began)

    threads = [threading.Thread(target=play, args=(step,)) for step in steppers]
    for thread in threads:
        thread.start()
    ready.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    return len(steppers) * steps / (time.perf_counter() - began), latency


def task_steps(url: str, clients: int, steps: int) -> Figures:
    """As many tasks of one event loop, each with a socket that is kept open."""
    host = urllib.parse.urlsplit(url).netloc
    latency: list[float] = []

    async def step(path: str, body: object, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sent = orjson.dumps(body)
        head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(sent)}\r\n\r\n".encode() + sent)
        answer = (await reader.readuntil(b"\r\n\r\n")).lower()
        assert answer.startswith(b"http/1.1 200"), answer
        orjson.loads(await reader.readexactly(int(answer.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])))

    async def client(ready: asyncio.Barrier) -> None:
        path, bodies = begin_episode(url)
        reader, writer = await asyncio.open_connection(*host.split(":"))
        for _ in range(WARM_UP // clients):
            await step(path, next(bodies), reader, writer)
        await ready.wait()
        for _ in range(steps):
            began = time.perf_counter()
            await step(path, next(bodies), reader, writer)
            latency.append(time.perf_counter() - began)
        writer.close()

    async def play() -> float:
        ready = asyncio.Barrier(clients + 1)
        tasks = [asyncio.create_task(client(ready)) for _ in range(clients)]
        await ready.wait()
        began = time.perf_counter()
        await asyncio.gather(*tasks)
        return time.perf_counter() - began

    return clients * steps / asyncio.run(play()), latency


def batch_steps(url: str, sessions: int, steps: int) -> Figures:
    """Batches over all sessions."""
    there = server(url)
    made = there.ask("POST", "/v1/batch", {"calls": [{"op": "create", "environment": "TextCraft-v0"}] * sessions})
    names = [result["body"]["session"] for result in made["results"]]
    there.ask("POST", "/v1/batch", {"calls": [{"op": "reset", "session": n, "number": 1, "seed": 0} for n in names]})
    began = time.perf_counter()
    for number in range(2, steps + 2):
        calls = [{"op": "step", "session": name, "number": number, "calls": CALLS} for name in names]
        results = there.ask("POST", "/v1/batch", {"calls": calls})["results"]
        assert all(result["status"] == 200 for result in results)
    return sessions * steps / (time.perf_counter() - began), ()


def vector_steps(url: str, slots: int, steps: int) -> Figures:
    """The slots of :mod:`envsuite.vector`."""
    with make_vector([EnvFactory("TextCraft-v0", {"url": url, "max_episode_steps": -1})], slots) as vector:
        for slot in range(slots):
            vector.reset(slot, 0, seed=slot)
        taken, began = -slots, time.perf_counter()
        while vector.pending:
            for event in vector.poll():
                assert event.error is None, event.error
                taken += 1
                if taken <= 0:
                    began = time.perf_counter()
                if taken <= (steps - 1) * slots:
                    vector.step(event.slot, ACTION)
        return taken / (time.perf_counter() - began), ()


ROWS: dict[str, tuple[Callable[[str, int, int], Figures], int, float]] = {
    "single steps, 1 client": (thread_steps, 1, 1.0),
    "single steps, 32 threads": (thread_steps, 32, 1.0),
    "single steps, 32 tasks": (task_steps, 32, 1.0),
    "gymnasium.make(…, url=…), 1": (env_steps, 1, 1.0),
    "batch steps, 32 sessions": (batch_steps, 32, 10.0),
    "batch steps, 256 sessions": (batch_steps, 256, 10.0),
    "envsuite.vector, 256 slots": (vector_steps, 256, 5.0),
}
"""What is measured, by how many clients, and how many times ``--steps`` they take together."""


def main() -> None:
    """Measures, and prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving", description=main.__doc__)
    parser.add_argument("--steps", type=int, default=20_000, help="of each row (default: %(default)s)")
    arguments = parser.parse_args()
    with served() as (url, _):
        for name, (measure, clients, share) in ROWS.items():
            steps = max(5, int(share * arguments.steps) // clients)
            with multiprocessing.get_context("spawn").Pool(1) as pool:  # no client's threads slow another's
                rate, latency = pool.apply(measure, (url, clients, steps))
            p50, p99 = np.quantile(latency or [np.nan], [0.5, 0.99]) * 1e3
            each = f"   p50 {p50:6.2f} ms   p99 {p99:6.2f} ms" if latency else ""
            print(f"{name:28} {rate:9,.0f} steps/s{each}", flush=True)


if __name__ == "__main__":
    main()
