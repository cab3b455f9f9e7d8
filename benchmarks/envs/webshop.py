"""What WebShop-v0 costs, by the size of the shop: building, starting, steps, searches, memory.

Each shop is measured in processes of its own. The actions are drawn by what stands on the page, with weights that give
about the mix of the original's recorded episodes: of their actions 16 % search (with three words of the instruction,
mostly), 17 % open a product, 21 % choose an option, 16 % go back to what was before, 11 % buy.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import orjson
import psutil

from benchmarks.envs.measure import seconds
from benchmarks.tables import markdown_table
from envsuite.core.errors import MissingExtra
from envsuite.core.tools import Action, ToolCall
from envsuite.data.progress import format_size
from envsuite.retrieval.index import Engine, Index
from envsuite.webshop.build import place
from envsuite.webshop.catalogue import Catalogue, open_catalogue
from envsuite.webshop.env import WebShop
from envsuite.webshop.generate import Shop

EPISODES = 60
SESSIONS = 128
PROCESSES = 8
QUERIES = 200
FREQUENT = 100
HITS = 50
ORIGINAL = {100_000: 12.0}
"""Steps/s of the original, by the number of products, as it was measured on one core: 10 to 12."""

Figures = dict[str, str]
"""The figure of each row of the table."""

_WEIGHTS = {
    "next >": 18.0, "< prev": 16.0, "back to search": 2.5, "buy now": 20.0, "description": 6.0, "features": 6.0,
    "reviews": 8.0,
}  # fmt: skip
"""How often an element is clicked where it stands on the page; products and values of options share what is left."""


def table(sizes: list[int], folder: Path | None = None) -> str:
    """Figures of built-in shops of these sizes as a Markdown table; catalogues that are missing are built.

    Args:
        sizes: Numbers of products.
        folder: Where catalogues are, as ``NUMBER.catalogue``; by default where ``source="builtin"`` looks.

    Raises:
        EnvsuiteError: A catalogue cannot be built or read.
    """
    columns = []
    for size in sizes:
        path = place(Shop(products=size)) if folder is None else folder / f"{size}.catalogue"
        built = {} if path.is_file() else _built(size, path)
        columns.append(built | measured(path))
    rows = list(dict.fromkeys(row for column in columns for row in column))
    lines = [[row, *(column.get(row, "") for column in columns)] for row in rows]
    return markdown_table(["", *(f"{size:,} products" for size in sizes)], lines)


def measured(path: Path) -> Figures:
    """The figures of a catalogue, each part in a fresh process."""
    figures: Figures = {}
    for part in ("start", "steps", "searches"):
        figures |= _of_process(part, path)
    return figures | _shared(path)


def _built(size: int, path: Path) -> Figures:
    """Build the shop as a user would; the time and the memory that it took."""
    path.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "envsuite.cli", "data", "build", "webshop", "--builtin", str(size)]
    start = time.monotonic()
    process = subprocess.Popen([*command, "--out", str(path)], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"the shop of {size:,} products could not be built: see above")
    taken = usage.ru_utime + usage.ru_stime
    return {
        "build, CPU time (by the clock)": f"{taken:.1f} s ({time.monotonic() - start:.0f} s)",
        "build, most memory": format_size(usage.ru_maxrss * 1024),
    }


def _of_process(part: str, path: Path) -> Figures:
    command = [sys.executable, "-m", "benchmarks.envs.webshop", part, str(path)]
    found: Figures = orjson.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return found


def start(path: Path) -> Figures:
    """From ``make`` to the first observation, in a process that has imported the package only."""
    import gymnasium

    begun, by_clock = time.process_time(), time.perf_counter()
    env = gymnasium.make("WebShop-v0", source=str(path))
    env.reset(seed=0)
    taken, by_clock = time.process_time() - begun, time.perf_counter() - by_clock
    catalogue = open_catalogue(path)
    return {
        "file": format_size(path.stat().st_size),
        "goals of people / composed": f"{catalogue.goals('human'):,} / {catalogue.goals('synthetic'):,}",
        "start: make and first reset, CPU time (by the clock)": f"{taken:.2f} s ({by_clock:.2f} s)",
    }


def steps(path: Path) -> Figures:
    """Steps/s of one thread, and the searches of the same episodes alone."""
    env = WebShop(source=path, split="train")
    played: list[tuple[str, list[Action]]] = []
    kinds: Counter[str] = Counter()
    for number, task_id in enumerate(env.tasks.ids("train")[:EPISODES]):
        played.append((task_id, _play(env, task_id, Random(number), kinds)))
    count = sum(len(actions) for _, actions in played)

    def replay(mode: WebShop) -> None:
        for task_id, actions in played:
            mode.reset(options={"task_id": task_id})
            for action in actions:
                mode.step(action)

    queries = [call.arguments["query"] for _, actions in played for (call,) in actions if call.name == "search"]
    structured = WebShop(source=path, split="train", mode="structured")
    text = count / seconds(lambda: replay(env))
    rows = {
        "steps/s, as the original shows them": f"{text:,.0f}",
        "steps/s, structured": f"{count / seconds(lambda: replay(structured)):,.0f}",
        "searches/s alone": f"{len(queries) / seconds(lambda: [env.catalogue.search(q, HITS) for q in queries]):,.0f}",
        "mix of actions": ", ".join(f"{kind} {number / count:.0%}" for kind, number in kinds.most_common()),
    }
    if (original := ORIGINAL.get(len(env.catalogue))) is not None:
        rows["times the original's steps/s"] = f"{text / original:,.0f}"
    return rows


def _play(env: WebShop, task_id: str, rng: Random, kinds: Counter[str]) -> list[Action]:
    """The actions of one episode of at most 15 steps, drawn from ``rng``."""
    observation, _ = env.reset(options={"task_id": task_id})
    words = re.findall(r"\w+", observation["task"])
    actions: list[Action] = []
    for _ in range(15):
        commands = observation["commands"]
        if not commands:
            query = " ".join(rng.sample(words, rng.choice((2, 3, 3, 4))))
            kind, action = "search", ToolCall("search", {"query": query})
        else:
            page = env.session.state.page
            others = [name for name in commands if name not in _WEIGHTS]
            share = (80.0 if page == "results" else 42.0) / max(1, len(others))
            weights = [_WEIGHTS.get(name, share) for name in commands]
            element = rng.choices(commands, weights)[0]
            kind = element if element in _WEIGHTS else "product" if page == "results" else "option"
            action = ToolCall("click", {"element": element})
        kinds[kind] += 1
        actions.append((action,))
        observation, _, done, _, _ = env.step((action,))
        if done:
            break
    return actions


def searches(path: Path) -> Figures:
    """Queries of 3 to 6 of the 100 most frequent words, the costliest there are; CPU time of the asking thread."""
    catalogue = Catalogue(path)
    words = catalogue.index.frequent(FREQUENT)
    draw = Random(0)
    queries = [draw.sample(words, draw.randint(3, 6)) for _ in range(QUERIES)]
    rows: Figures = {}
    found = []
    names: list[Engine] = ["numpy", "numba"]
    for name in names:
        try:
            index = Index(path, catalogue.index_at, engine=name)
        except MissingExtra:
            continue
        times, hits = _timed(index, queries)
        p50, p95 = np.percentile(times, [50, 95]) * 1e3
        rows[f"search of frequent words, {name}: p50 / p95"] = f"{p50:.1f} / {p95:.1f} ms"
        found.append(hits)
    if any(hits != found[0] for hits in found):
        raise SystemExit(f"{path}: the engines do not find the same")
    return rows


def _timed(index: Index, queries: list[list[str]]) -> tuple[list[float], list[list[int]]]:
    """Seconds of each query, once what it reads is in memory; and what it finds."""
    times, hits = [], []
    for words in queries:
        terms = dict.fromkeys(words, 1)
        numbers, _ = index.best(terms, HITS)
        hits.append(numbers.tolist())
        begun = time.thread_time()
        index.best(terms, HITS)
        times.append(time.thread_time() - begun)
    return times, hits


def sessions(path: Path) -> Figures:
    """Play in many sessions, wait until all processes have, and say which memory is whose, in bytes."""
    envs = [WebShop(source=path, split="train") for _ in range(SESSIONS)]
    for number, env in enumerate(envs):
        _play(env, env.tasks.ids("train")[number], Random(number), Counter())
    sys.stdout.write("played\n")
    sys.stdout.flush()
    sys.stdin.readline()
    maps = psutil.Process().memory_maps(grouped=False)
    private = sum(each.private_clean + each.private_dirty for each in maps)
    pages = [each for each in maps if each.path == str(path.resolve())]
    shared = sum(each.shared_clean + each.shared_dirty for each in pages)
    own = sum(each.private_clean + each.private_dirty for each in pages)
    sys.stdin.readline()
    return {"private": str(private), "shared": str(shared), "own": str(own)}


def _shared(path: Path) -> Figures:
    """Memory of processes that all play in many sessions on one file."""
    command = [sys.executable, "-m", "benchmarks.envs.webshop", "sessions", str(path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    running = [subprocess.Popen(command, text=True, **pipes) for _ in range(PROCESSES)]  # type: ignore[call-overload]
    for process in running:
        if process.stdout.readline() != "played\n":
            raise SystemExit(f"{path}: a process that plays ended: see above")
    for process in running:
        process.stdin.write("\n")
        process.stdin.flush()
    time.sleep(2)  # until all have looked, nobody may leave
    found = [orjson.loads(process.communicate("\n")[0]) for process in running]
    private, shared, own = ([int(part[name]) for part in found] for name in ("private", "shared", "own"))
    many = f"{PROCESSES} processes of {SESSIONS} sessions"
    return {
        f"{many}: private memory of a process": format_size(max(private)),
        f"{many}: pages of the file that a process shares / has alone": (
            f"{format_size(min(shared))} / {format_size(max(own))}"
        ),
    }


if __name__ == "__main__":
    parts = {"start": start, "steps": steps, "searches": searches, "sessions": sessions}
    sys.stdout.write(orjson.dumps(parts[sys.argv[1]](Path(sys.argv[2]))).decode())
