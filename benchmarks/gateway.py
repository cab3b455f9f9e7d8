"""Measure what the gateway adds to a request: with 1, 16 and 256 sessions that ask at once.

    python -m benchmarks.gateway                 an engine that answers at once
    python -m benchmarks.gateway --engine hf     the shipped model, answers of 32 tokens, 64 at a time

Clients are connections that stay open, in a process of their own. The engine's time is that from its getting a request
to its giving the answer; what is left of the client's time is the gateway's, and the client's own.
"""

from __future__ import annotations

import argparse
import asyncio
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import orjson
from rich.console import Console
from rich.table import Table
from transformers import AutoTokenizer

from envsuite.playing.engine import Completion, Request, Sampling
from envsuite.playing.episode import EpisodePlan
from trainers.gateway.app import serve
from trainers.gateway.gateway import Gateway
from trainers.gateway.sequences import Writer
from trainers.gateway.session import Limits
from trainers.policy.config import ModelConfig
from trainers.policy.loading import load_model
from trainers.rollout.engine import Engine
from trainers.rollout.hf_engine import HFEngine
from trainers.rollout.scripted import ScriptedEngine
from trainers.settings.shipped import located

TEXT = "Crafting commands: craft 4 planks using 1 log. Goal: craft 2 sticks. " * 6


class Timed(Gateway):
    """A gateway that keeps how long the engine had each request."""

    def timed(self, engine: Engine) -> dict[int, float]:
        """Wraps the engine's calls; returns seconds by the number of the request, as they come."""
        submit, poll, took = engine.submit, engine.poll, dict[int, float]()

        def submitted(requests: Sequence[Request]) -> None:
            took.update({request.request_id: -time.perf_counter() for request in requests})
            submit(requests)

        def polled(timeout: float | None = None) -> list[Completion]:
            done = poll(timeout)
            for completion in done:
                took[completion.request_id] += time.perf_counter()
            return done

        engine.submit, engine.poll = submitted, polled  # type: ignore[method-assign]
        return took


def load(url: str, keys: Sequence[str], rounds: int) -> list[float]:
    """Seconds of each request, one connection a key."""
    host, _, port = url.removeprefix("http://").partition(":")

    async def ask(key: str) -> list[float]:
        reader, writer = await asyncio.open_connection(host, int(port))
        times = []
        for number in range(rounds):
            messages = [{"role": "user", "content": f"{TEXT}{number}"}]
            body = orjson.dumps({"model": "policy", "messages": messages})
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
            began = time.perf_counter()
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            answer = (await reader.readuntil(b"\r\n\r\n")).lower()
            assert b" 200 " in answer, answer
            await reader.readexactly(int(answer.split(b"content-length: ")[1].split(b"\r\n")[0]))
            times.append(time.perf_counter() - began)
        return times

    async def all_of_them() -> list[float]:
        return [one for times in await asyncio.gather(*map(ask, keys)) for one in times]

    return asyncio.run(all_of_them())


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--engine", choices=["scripted", "hf"], default="scripted")
    name = parser.parse_args().engine
    tokenizer = AutoTokenizer.from_pretrained(located("models/craft-1m"))
    config, engine = ModelConfig(path="models/craft-1m"), ScriptedEngine(lambda request: [5] * 32)
    made: Engine = engine if name == "scripted" else HFEngine(load_model(config), max_batch=64)
    gateway = Timed(Writer(tokenizer), Sampling(max_tokens=32, ignore_eos=True), 0)
    took, over = gateway.timed(made), threading.Event()
    table = Table("sessions", "requests", "p50 ms", "p99 ms", "engine p50 ms", "share of the rest", title=name)

    def pump() -> None:
        while not over.is_set():
            gateway.pump(made, 0.05)

    with serve(gateway) as url, ProcessPoolExecutor(1, get_context("spawn")) as clients:
        threading.Thread(target=pump, daemon=True).start()
        for count in (1, 1, 16, 256):  # the first to warm up
            rounds, number = max(4, 256 // count), iter(range(1000))
            sessions = [gateway.open(EpisodePlan(next(number), 0, 0, ""), Limits(10**6)) for _ in range(count)]
            took.clear()
            times = np.array(clients.submit(load, url, [one.key for one in sessions], rounds).result()) * 1e3
            inside = np.array(list(took.values())) * 1e3
            p50, p99 = np.percentile(times, [50, 99])
            row = (p50, p99, np.median(inside), 1 - inside.mean() / times.mean())
            table.add_row(str(count), str(len(times)), *(f"{one:.2f}" for one in row))
            for one in sessions:
                gateway.end(one)
        over.set()
    Console().print(table)


if __name__ == "__main__":
    main()
