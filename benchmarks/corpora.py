"""``python -m benchmarks.corpora``: what a corpus of papers costs to build, to open, to search and to play on.

    python -m benchmarks.corpora --papers 10000 100000
    python -m benchmarks.corpora --papers 10000 100000 1000000 3000000 --folder build/corpora    # half an hour, 5 GB

Each size is a generated literature. Building and playing are processes of their own. Private memory is what a process
with 128 sessions has written itself (``Private_Dirty``): pages of the file are shared with others. A step has five
searches of different words, none of which was made before. Times are wall times.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

SESSIONS = 128
QUERIES = 400
STEPS = 300


def _build(papers: int, path: Path) -> dict[str, float]:
    import resource

    from envsuite.papersearch.literature import Literature
    from envsuite.retrieval.corpus_build import build

    path.unlink(missing_ok=True)
    begin = time.perf_counter()
    build(Literature(papers), path)
    took = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"build_s": took, "build_mib": peak, "file_mib": path.stat().st_size / 2**20}


def _play(papers: int, path: Path) -> dict[str, float]:
    import gymnasium

    import envsuite  # noqa: F401  # registers the environments
    from envsuite.core import ToolCall
    from envsuite.retrieval.corpus import Corpus

    begin = time.perf_counter()
    corpus = Corpus(path)
    found = {"open_s": time.perf_counter() - begin}
    tasks = corpus.tasks()[:QUERIES]
    for task in tasks[:3]:
        corpus.search(task["text"], 10)  # compiles the inner loop
    searches, expansions = [], []
    for task in tasks:
        begin = time.perf_counter()
        corpus.search(task["text"], 10, corpus.stop(task["date"]))
        searches.append(time.perf_counter() - begin)
        number = corpus.number(task["gold"][0])
        assert number is not None
        begin = time.perf_counter()
        corpus.links(number), corpus.linked_by(number)
        expansions.append(time.perf_counter() - begin)
    found |= _percentiles("search", searches) | _percentiles("expand", expansions)
    made = {"source": str(path), "split": "train", "disable_env_checker": True, "max_episode_steps": None}
    envs = [gymnasium.make("PaperSearch-v0", **made) for _ in range(SESSIONS)]
    draw, steps = np.random.default_rng(0), []
    for number in range(max(STEPS, SESSIONS)):
        env = envs[number % SESSIONS]
        observation, _ = env.reset()
        words = observation["task"].rpartition("Query: ")[2].split()
        calls = [ToolCall("search", {"query": " ".join(draw.permutation(words)[: 3 + i])}) for i in range(5)]
        begin = time.perf_counter()
        env.step(calls)
        steps.append(time.perf_counter() - begin)
    found |= _percentiles("step", steps) | {"steps_per_s": len(steps) / sum(steps)}
    with open("/proc/self/smaps_rollup", encoding="ascii") as file:
        sizes = dict(line.split(":") for line in file if line.endswith("kB\n"))
    return {**found, "private_mib": int(sizes["Private_Dirty"].split()[0]) / 1024}


def _percentiles(name: str, seconds: list[float]) -> dict[str, float]:
    p50, p95 = np.percentile(seconds, [50, 95]).tolist()
    return {f"{name}_p50": 1e3 * p50, f"{name}_p95": 1e3 * p95}


def main() -> None:
    """Measures each size and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--papers", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--folder", type=Path, default=Path("build/corpora"), help="where the corpora are made")
    parser.add_argument("--keep", action="store_true", help="use corpora that are there, and keep them")
    parser.add_argument("--one", nargs=2, metavar=("WHAT", "PAPERS"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    if args.one:
        what, papers = args.one[0], int(args.one[1])
        path = args.folder / f"{papers}.corpus"
        print(json.dumps(_build(papers, path) if what == "build" else _play(papers, path)))
        return
    print("| papers | build, s | peak, MiB | file, MiB | open, s | search, ms (p50 / p95) | expansion, ms (p50 / p95) "
          "| step of five searches, ms (p50 / p95) | steps/s | private memory, MiB |")  # fmt: skip
    print("|" + "---:|" * 10)
    for papers in args.papers:
        there = args.keep and (args.folder / f"{papers}.corpus").exists()
        row: dict[str, Any] = {} if there else _measured("build", papers, args.folder)
        row |= _measured("play", papers, args.folder)
        built = [f"{row[name]:,.0f}" if name in row else "" for name in ("build_s", "build_mib", "file_mib")]
        times = [f"{row[f'{name}_p50']:.2f} / {row[f'{name}_p95']:.2f}" for name in ("search", "expand", "step")]
        rest = [f"{row['steps_per_s']:,.0f}", f"{row['private_mib']:.0f}"]
        print("| " + " | ".join([f"{papers:,}", *built, f"{row['open_s']:.2f}", *times, *rest]) + " |", flush=True)
        if not args.keep:
            (args.folder / f"{papers}.corpus").unlink()


def _measured(what: str, papers: int, folder: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.corpora", "--folder", str(folder), "--one", what, str(papers)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    main()
