"""``python -m benchmarks.asynchrony``: the quick start trained synchronously, and with bounded staleness.

    python -m benchmarks.asynchrony                                        # staleness 0, 1, 2, each with seeds 0, 1, 2
    python -m benchmarks.asynchrony --staleness 0 1 --seeds 0 -- --iterations 2 --evaluation.episodes 16

Each run may use ``--cores`` cores and no others: the synchronous one with a thread on each, one with staleness with a
thread for the update and one for the rollout beside it. What follows ``--`` are settings for every run. A run that has
ended is kept in ``results.json`` and not repeated; one that was interrupted starts anew. Do nothing else on the machine
meanwhile: times are of the wall clock.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from envsuite.core.errors import DataError, EnvsuiteError
from envsuite.data import write_atomically
from trainers.report.run import RunData

ROOT = Path(__file__).resolve().parents[1]
FILE = "results.json"
TRAINED = ("async/staleness", "async/staleness_max", "async/update_idle", "async/rollout_idle", "async/dropped_groups")


def train(folder: Path, staleness: int, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    """Trains one run, and returns what is kept of it.

    Raises:
        DataError: It failed, or left no evaluation.
    """
    name = f"staleness-{staleness}-seed-{seed}"
    shutil.rmtree(folder / name, ignore_errors=True)
    threads = given.cores if staleness == 0 else 1
    cores = sorted(os.sched_getaffinity(0))[: given.cores]
    words = ["--config", given.config, "--output", str(folder), "--name", name, "--seed", str(seed)]
    words += ["--rollout.staleness", str(staleness), "--rollout.overlap", given.overlap, *given.settings]
    ended = subprocess.run(
        [sys.executable, "-m", "trainers.train", *words],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
        check=False,
    )
    if ended.returncode:
        raise DataError(f"{folder / name}: the run ended with status {ended.returncode}; see its run.log")
    return measured(RunData.load(folder / name))


def measured(run: RunData) -> dict[str, Any]:
    """Returns the figures of a run: success before and after with bounds, seconds, and means over its iterations.

    Raises:
        DataError: The run has no evaluation.
    """
    points = run.evaluation_points()
    if not points:
        raise DataError(f"{run.folder}: no evaluation")
    means = {name: float(np.mean(values)) for name in TRAINED if (values := run.series(name)[1])}
    seconds = run.series("time/total")[1]
    return {
        "before": points[0][1:],
        "after": points[-1][1:],
        "iterations": len(seconds),
        "training_s": float(sum(seconds)),
        "wall_s": float(run.summary["wall_s"]),
        **means,
        "async/staleness_max": max(run.series("async/staleness_max")[1], default=0.0),
    }


def table(cells: Mapping[str, Mapping[str, Any]]) -> str:
    """The results as Markdown: a row for each run, and one for the mean of each staleness."""
    lines = [
        "| staleness | seed | success after, % | training, s | time saved, % | age of groups: mean, most | "
        "update waits, % | rollout waits, % |",
        "|---:|---:|---|---:|---:|---:|---:|---:|",
    ]
    keys = sorted(tuple(map(int, key.split("/"))) for key in cells)
    base = [cells[f"0/{seed}"]["training_s"] for staleness, seed in keys if staleness == 0]
    for staleness in sorted({staleness for staleness, _ in keys}):
        rows = [(seed, cells[f"{staleness}/{seed}"]) for found, seed in keys if found == staleness]
        for seed, cell in rows:
            own = cells.get(f"0/{seed}")
            low, high = (100 * bound for bound in cell["after"][1:])
            success = f"{100 * cell['after'][0]:.1f} [{low:.1f}, {high:.1f}]"
            lines.append(_row(staleness, str(seed), success, [cell], [] if own is None else [own["training_s"]]))
        success = f"{100 * np.mean([cell['after'][0] for _, cell in rows]):.1f}"
        lines.append(_row(staleness, "mean", success, [cell for _, cell in rows], base))
    return "\n".join(lines)


def _row(staleness: int, seed: str, success: str, cells: Sequence[Mapping[str, Any]], base: Sequence[float]) -> str:
    def mean(name: str) -> float:
        return float(np.mean([cell.get(name, 0.0) for cell in cells]))

    seconds = mean("training_s")
    saved = f"{100 * (1 - seconds / np.mean(base)):.1f}" if base and staleness else ""
    told = [""] * 3
    if staleness:
        age = f"{mean('async/staleness'):.2f}, {max(cell['async/staleness_max'] for cell in cells):.0f}"
        told = [age, f"{100 * mean('async/update_idle'):.0f}", f"{100 * mean('async/rollout_idle'):.0f}"]
    return "| " + " | ".join([str(staleness), seed, success, f"{seconds:.0f}", saved, *told]) + " |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Trains what is not in the results yet, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--staleness", nargs="+", type=int, default=[0, 1, 2], help="(default: %(default)s)")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="(default: %(default)s)")
    parser.add_argument("--overlap", choices=("process", "turns"), default="process", help="(default: %(default)s)")
    parser.add_argument("--cores", type=int, default=2, help="of each run (default: %(default)s)")
    parser.add_argument("--config", default="configs/quickstart.yaml", help="(default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("runs/asynchrony"), help="folder (default: %(default)s)")
    words = list(sys.argv[1:] if arguments is None else arguments)
    at = words.index("--") if "--" in words else len(words)
    given = parser.parse_args(words[:at], argparse.Namespace(settings=words[at + 1 :]))
    folder = given.out.resolve()
    what = {"overlap": given.overlap, "cores": given.cores, "config": given.config, "settings": given.settings}
    try:
        results = _results(folder / FILE, what)
        for seed in given.seeds:  # pairs are adjacent in time
            for staleness in given.staleness:
                if f"{staleness}/{seed}" not in results["cells"]:
                    results["cells"][f"{staleness}/{seed}"] = train(folder, staleness, seed, given)
                    write_atomically(folder / FILE, orjson.dumps(results, option=orjson.OPT_INDENT_2))
    except EnvsuiteError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stdout.write(f"{table(results['cells'])}\n")
    return 0


def _results(file: Path, what: Mapping[str, Any]) -> dict[str, Any]:
    """The results in ``file``, or none yet.

    Raises:
        DataError: They are damaged, or of other settings.
    """
    if not file.is_file():
        return {**what, "cells": {}}
    try:
        found = orjson.loads(file.read_bytes())
        other = {key for key, value in what.items() if found[key] != value}
        cells = dict(found["cells"])
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise DataError(f"{file}: damaged ({error}); remove it to start anew") from error
    if other:
        raise DataError(f"{file}: has results with other {', '.join(sorted(other))}; give another --out")
    return {**what, "cells": cells}


if __name__ == "__main__":
    sys.exit(main())
