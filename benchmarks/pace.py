"""The rollout manager beside a loop in which all episodes take each step together: ``python -m benchmarks.pace``.

Both play the same episodes (``benchmarks.pace_world``), in the same environments, with the same engine, in turns in one
run. In the lock-step loop every step has two barriers: the engine is asked once all environments have answered, and
these once the engine has answered all, as in frameworks whose vector of environments takes actions as one batch. Slots
whose episode has ended get the next one at the barrier, which those frameworks often leave out.

Environments run in worker processes, one for each slot (``--place workers``), or on two servers that are asked over
HTTP (``--place servers``). The engine is scripted (a step of n requests takes a + b·n seconds, and each answer
``--tokens`` steps), or the ``hf`` engine with a model of two million random parameters.

The engine is idle while it has no request, and in slots that no episode is left to start in. While episodes are sampled
the training device is idle in all of the time, by the same causes: the engine generates, environments or prompts are
waited for, or the longest episodes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.engine import tiny_model
from benchmarks.pace_world import MEDIANS, SIGMAS, task_of
from benchmarks.serving import served
from envsuite.prompting import PromptSpec, make_codec, make_memory
from envsuite.vector import EnvFactory, Vector, make_vector
from trainers.imitation.vocabulary import word_tokenizer
from trainers.report.plots import BLUE, GREEN, GREY, ORANGE, figure
from trainers.rollout.engine import Completion, Engine, Request, Sampling
from trainers.rollout.episode import Ending, EpisodePlan, Playing
from trainers.rollout.hf_engine import HFEngine
from trainers.rollout.manager import RolloutManager
from trainers.rollout.rollout import step_seed
from trainers.rollout.timing import Stopwatch, Timing
from trainers.steps import Episode

WORLD = "benchmarks.pace_world:Pace-v0"
STEP_SECONDS, ROW_SECONDS = 4e-3, 1e-4
"""Seconds of a step of the scripted engine: in all, and for each request."""
TOKENIZER = word_tokenizer(["Go go Invalid action Tools , . : system"], 2048)
PARTS = {"engine": "generation", "env": "environments", "codec": "prompts", "longest_episode": "longest episodes"}
COLOURS = (BLUE, ORANGE, GREEN, GREY)


class PacedEngine(Engine):
    """Answers every request with the same action, after a stated number of steps of a stated duration.

    Requests join and leave the batch at any step (continuous batching). It works while it is polled.

    Args:
        tokens: Steps that an answer takes.
    """

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.answer = [*TOKENIZER.encode("<action>go</action>", add_special_tokens=False), 1]
        self.left: dict[int, int] = {}

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests."""
        self.left |= {request.request_id: self.tokens for request in requests}

    def poll(self, timeout: float | None = None) -> list[Completion]:
        """Take steps until a request is finished, or the time is up."""
        until = None if timeout is None else time.monotonic() + timeout
        while self.left:
            time.sleep(STEP_SECONDS + ROW_SECONDS * len(self.left))
            self.left = {number: left - 1 for number, left in self.left.items()}
            if done := [number for number, left in self.left.items() if not left]:
                for number in done:
                    del self.left[number]
                zeros = np.zeros(len(self.answer), np.float32)
                return [Completion(number, self.answer, zeros, "stop", 0) for number in done]  # type: ignore[arg-type]
            if until is not None and time.monotonic() >= until:
                break
        return []

    @property
    def pending(self) -> int:
        """Requests not yet answered."""
        return len(self.left)

    def sync(self, weights: Iterable[tuple[str, Any]], version: int) -> None:
        """There are no weights."""


Played = tuple[Timing, list[Episode]]


def lock_step(manager: RolloutManager, plans: Sequence[EpisodePlan], sampling: Sampling, seed: int) -> Played:
    """Plays ``plans`` with a barrier after every step of the environments, and one after every answer of the engine."""
    vector, engine = manager.vector, manager.engine
    waiting, free, running = deque(plans), list(range(vector.slots)), dict[int, Playing]()
    timing, played = Timing(), list[Episode]()
    watch = Stopwatch(timing, lambda: 1.0 if waiting else len(running) / vector.slots)
    watch.start()
    while waiting or running:
        while waiting and free:
            plan = waiting.popleft()
            slot = free.pop()
            running[slot] = Playing(plan, WORLD, manager.exchanges(0))
            vector.reset(slot, 0, task_id=plan.task_id)
        events = []
        with watch.on("env"):
            while vector.pending:
                events += vector.poll()
        requests = []
        for event in sorted(events, key=lambda event: event.slot):
            episode = running[event.slot]
            assert event.error is None and event.observation is not None, event.error
            episode.observe(event)
            if event.terminated or event.truncated:
                watch.book()
                del running[event.slot]
                free.append(event.slot)
                engine.release(episode.plan.episode_id)
                played.append(episode.ended(Ending(terminated=True)))
                continue
            assert episode.ask(event.observation) is None
            number = step_seed(seed, episode.plan.episode_id, len(episode.steps))
            requests.append(episode.exchange.request(event.slot, sampling, episode.plan.episode_id, number))
        engine.submit(requests)
        completions = []
        with watch.on("engine"):
            while engine.pending:
                completions += engine.poll()
        for completion in completions:
            parsed = running[completion.request_id].read(completion)
            if parsed.action is None:
                vector.refuse(completion.request_id, parsed.error or "no action")
            else:
                vector.step(completion.request_id, parsed.action)
    watch.book()
    return timing, played


def asynchronous(manager: RolloutManager, plans: Sequence[EpisodePlan], sampling: Sampling, seed: int) -> Played:
    """Plays ``plans`` as training does."""
    played = manager.run(plans, sampling, seed)
    return manager.timing, played


LOOPS: dict[str, Callable[..., Played]] = {"lock-step": lock_step, "manager": asynchronous}


@dataclass(frozen=True)
class Row:
    """One loop under one distribution of latencies."""

    place: str
    engine: str
    median_ms: int
    sigma: float
    loop: str
    wall_s: float
    """Measured around the loop, by another clock than the parts."""
    cpu_s: float
    """CPU seconds of this process, all its threads together; environments and their servers are other processes."""
    seconds: dict[str, float]
    """Wall time by part."""
    live_tokens: float
    """Share of the sampled tokens that belong to episodes that are used."""

    @property
    def idle(self) -> float:
        """Share of the time in which the engine generated nothing, empty slots included."""
        return self.idle_s / sum(self.seconds.values())

    @property
    def idle_s(self) -> float:
        """Seconds of the same."""
        return sum(self.seconds.values()) - self.seconds["engine"]


@contextlib.contextmanager
def environments(place: str, slots: int) -> Iterator[Vector]:
    """The environments: one process for each slot, or two servers with half of the slots each."""
    if place == "workers":
        with make_vector([EnvFactory(WORLD)], slots, workers=slots) as vector:
            yield vector
        return
    with contextlib.ExitStack() as stack:
        words = ("envsuite.cli", "serve", "http", WORLD, "--workers", str(max(1, slots // 16)), "--port")
        urls = [stack.enter_context(served(words))[0] for _ in range(2)]
        yield stack.enter_context(make_vector([EnvFactory(WORLD, {"url": urls})], slots))


def measure(
    place: str, engine: str, cells: Sequence[tuple[int, float]], episodes: int, slots: int, tokens: int, rounds: int
) -> Iterator[Row]:
    """Plays each cell (median in ms, sigma) ``rounds`` times with both loops in turn."""
    sampling = Sampling(max_tokens=tokens, stop_ids=(1,), ignore_eos=engine == "hf")
    model = tiny_model() if engine == "hf" else None
    with environments(place, slots) as vector:
        for cell in cells:
            for seed in range(rounds):
                plans = [
                    EpisodePlan(i, i // 8, 0, task_of(*cell, i)) for i in range(seed * episodes, (seed + 1) * episodes)
                ]
                for loop, play in LOOPS.items():
                    made = PacedEngine(tokens) if model is None else HFEngine(model, max_batch=slots, max_length=2048)
                    manager = RolloutManager(
                        made, vector, [WORLD], TOKENIZER,
                        PromptSpec(make_codec("tags", think=False), make_memory("window(2)"), instructions=False),
                    )  # fmt: skip
                    began, cpu = time.perf_counter(), time.process_time()
                    timing, played = play(manager, plans, sampling, seed)
                    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
                    seconds = {part: value for part, value in asdict(timing).items() if part in PARTS}
                    used = sum(len(step.response_ids) for e in played for step in e.steps if e.error is None)
                    yield Row(place, engine, *cell, loop, wall, cpu, seconds, used / (used + timing.dropped_tokens))


def pooled(rows: Sequence[Row]) -> list[Row]:
    """One row for each cell and loop: seconds summed over the rounds."""
    found: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        found.setdefault((row.place, row.engine, row.median_ms, row.sigma, row.loop), []).append(row)
    return [
        Row(
            *key, sum(r.wall_s for r in part), sum(r.cpu_s for r in part),
            {p: sum(r.seconds[p] for r in part) for p in PARTS},  # type: ignore[arg-type]
            min(r.live_tokens for r in part),
        )
        for key, part in found.items()
    ]  # fmt: skip


def table(rows: Sequence[Row], title: str) -> Table:
    """Wall time, idle share of the engine and their ratios, and the seconds by part."""
    out = Table(title=title, title_justify="left")
    heads = ("latency", "loop", "wall, s", "shorter by", "CPU, s", "engine idle", "smaller by", "idle, s", "shorter by")
    for column in (*heads, "live tokens", *PARTS.values()):
        out.add_column(column, justify="left" if column in heads[:2] else "right")
    before: Row | None = None
    for row in rows:
        ours = before is not None and row.loop == "manager"
        out.add_row(
            f"{row.place}, {row.engine}, {row.median_ms} ms, sigma {row.sigma:g}", row.loop, f"{row.wall_s:.1f}",
            f"{before.wall_s / row.wall_s:.1f}" if ours and before else "", f"{row.cpu_s:.1f}", f"{row.idle:.0%}",
            f"{before.idle / max(row.idle, 1e-9):.1f}" if ours and before else "", f"{row.idle_s:.1f}",
            f"{before.idle_s / max(row.idle_s, 1e-9):.1f}" if ours and before else "", f"{row.live_tokens:.0%}",
            *(f"{row.seconds[part]:.1f}" for part in PARTS),
        )  # fmt: skip
        before = row
    return out


def draw(rows: Sequence[Row], path: Path) -> None:
    """Stacked bars of the time by part, the two loops of a cell beside each other."""
    cells = list(dict.fromkeys((row.place, row.engine, row.median_ms, row.sigma) for row in rows))
    with figure(path, 3.6 + 0.95 * len(cells), 4.2, size=9) as drawn:
        axis = drawn.subplots()
        for number, cell in enumerate(cells):
            pair = [row for row in rows if (row.place, row.engine, row.median_ms, row.sigma) == cell]
            whole = sum(pair[0].seconds.values())
            for offset, row in zip((-0.2, 0.2), pair, strict=True):
                bottom = 0.0
                for (part, label), colour in zip(PARTS.items(), COLOURS, strict=True):
                    height = row.seconds[part] / whole
                    first = number == 0 and offset < 0
                    axis.bar(number + offset, height, 0.36, bottom, color=colour, label=label if first else None)
                    bottom += height
                axis.annotate(
                    f"{row.idle:.0%}",
                    (number + offset, bottom),
                    (0, 2),
                    textcoords="offset points",
                    ha="center",
                    size=8,
                )
        axis.set_xticks(range(len(cells)), [f"{place}\n{engine}\n{m} ms\nsigma {s:g}" for place, engine, m, s in cells])
        axis.grid(axis="x", visible=False)
        axis.set(
            ylabel="time, lock-step = 1", ylim=(0, 1.12),
            title="Rollout in lock step (left) and by the manager (right); above: share of time the engine was idle",
        )  # fmt: skip
        axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.pace", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--place", choices=("workers", "servers"), action="append", help="default: both, in turn")
    parser.add_argument("--engine", choices=("scripted", "hf"), action="append", help="default: both, in turn")
    parser.add_argument("--medians", type=int, nargs="+", choices=MEDIANS, default=[20, 100], help="of latencies, ms")
    parser.add_argument("--sigmas", type=float, nargs="+", choices=SIGMAS, default=[0.5, 1.0, 1.5], help="of latencies")
    parser.add_argument("--episodes", type=int, default=64, help="in each round (default %(default)s)")
    parser.add_argument("--slots", type=int, default=16, help="episodes at a time (default %(default)s)")
    parser.add_argument("--tokens", type=int, default=10, help="of each answer (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=1, help="of other episodes, summed (default %(default)s)")
    parser.add_argument("--figure", type=Path, help="PNG file of the figure")
    parser.add_argument("--json", type=Path, help="file of the rows, one JSON object per line")
    args = parser.parse_args(argv)
    cells = [(median, sigma) for median in args.medians for sigma in args.sigmas]
    rows: list[Row] = []
    for place in args.place or ("workers", "servers"):
        for engine in args.engine or ("scripted", "hf"):
            for row in measure(place, engine, cells, args.episodes, args.slots, args.tokens, args.rounds):
                rows.append(row)
                sys.stderr.write(
                    f"{row.place} {row.engine} {row.median_ms} {row.sigma} {row.loop}: {row.wall_s:.1f} s\n"
                )
    if args.json is not None:
        args.json.write_text("".join(json.dumps(asdict(row)) + "\n" for row in rows), encoding="utf-8")
    shown = pooled(rows)
    Console(width=160).print(
        table(shown, f"{args.rounds} x {args.episodes} episodes in {args.slots} slots, answers of {args.tokens} tokens")
    )
    if args.figure is not None:
        draw(shown, args.figure)


if __name__ == "__main__":
    main()
