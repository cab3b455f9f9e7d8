"""Measure a pool: bytes on the disk, and rates of insertion, queries and takes.

    python -m benchmarks.pool [--steps 20000] [--prompt 4000] [--turns 20] [--commit group]

An episode has ``--turns`` steps, whose prompts grow to twice ``--prompt`` tokens, so that they have as many on average:
each has the one before, its response and new tokens at its beginning, drawn with the frequencies of words (Zipf).
A commit, which waits for the disk, is for each step, as a gateway's are, for each episode, or for a group of 8.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from benchmarks.tables import Table
from trainers.pool import Pool, Query, Writer
from trainers.steps import Step

RESPONSE = 100
"""Tokens of a response."""


def steps_of(rng: np.random.Generator, prompt: int, turns: int) -> Iterator[Step]:
    """Yields the steps of an episode."""
    tokens = np.minimum(rng.zipf(1.2, 2 * prompt), 150_000).astype(np.int32)
    for t in range(turns):
        end = 2 * prompt * (t + 1) // turns - prompt // turns
        response = tokens[end : end + RESPONSE]
        yield Step(
            t=t, prompt_ids=tokens[:end], response_ids=response, finish_reason="stop", observation="You see a door.",
            response_logprobs=-rng.exponential(0.5, len(response)).astype(np.float32), policy_version=t // 7,
            state_key=f"k{t}", action=None, parse_error=None, valid=True, reward=0.0, info={"valid": True, "t": t},
        )  # fmt: skip


def insert(pool: Writer, sessions: int, commit: str, made: Callable[[int], list[Step]]) -> float:
    """Stores sessions; returns the seconds that the pool took."""
    seconds, size = 0.0, 8 if commit == "group" else 1
    for first in range(0, sessions, size):
        group = [(f"s{number}", made(number)) for number in range(first, min(first + size, sessions))]
        start = time.perf_counter()
        with contextlib.nullcontext() if commit == "step" else pool.together():
            for name, steps in group:
                pool.open_session(name, source="benchmark", task_id=f"t{first % 1000}", group_id=first)
                for step in steps:
                    pool.add(name, step.t, step)
                pool.end(name, success=len(name) % 2 == 0, score=first / sessions)
        pool.compact(64 * 2**20)
        seconds += time.perf_counter() - start
    return seconds


def timed(call: Callable[[], object], times: int) -> str:
    """Median milliseconds of a call."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return f"{1e3 * float(np.median(taken)):,.1f} ms"


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"steps": 20_000, "prompt": 4000, "turns": 20}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--commit", choices=("step", "episode", "group"), default="group")
    args = parser.parse_args()
    rng, sessions = np.random.default_rng(0), args.steps // args.turns
    with tempfile.TemporaryDirectory() as folder:
        with Writer(folder, "benchmarks.pool") as pool:
            seconds = insert(pool, sessions, args.commit, lambda _: [*steps_of(rng, args.prompt, args.turns)])
            pool.compact()
        with Pool(folder) as pool:
            names = iter(f"s{number}" for number in rng.integers(sessions, size=200).tolist())
            half, best = Query(max_score=0.5), Query(min_score=0.9, limit=100)
            _, state = pool.take(half, sessions // 8, 0)
            times = {
                "look up one session": timed(lambda: pool.session(next(names)), 100),
                "find the best, 100 sessions": timed(lambda: pool.sessions(best), 5),
                "read one episode": timed(lambda: pool.episode(next(names)), 100),
                "take 64 of the unread ones": timed(lambda: pool.take(half, 64, 0, state), 5),
            }
        files = {path: path.stat().st_size for path in Path(folder).rglob("*") if path.is_file()}
    segments = sum(size for path, size in files.items() if path.suffix == ".parquet")
    rows = {
        f"insert, a commit for each {args.commit}": f"{args.steps / seconds:,.0f} steps/s",
        "segments": f"{segments / 1e6:,.1f} MB, {segments / args.steps:,.0f} bytes a step",
        "database": f"{(sum(files.values()) - segments) / 1e6:,.1f} MB",
        "prompts as whole copies, int32": f"{4 * args.prompt * args.steps / 1e6:,.1f} MB",
        **times,
    }
    title = f"{args.steps:,} steps of {args.prompt:,} tokens in {sessions:,} sessions"
    sys.stdout.write(Table("pool", title, "", ("", "value"), tuple(rows.items())).markdown())


if __name__ == "__main__":
    main()
