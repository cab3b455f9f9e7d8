"""Measure one training step on recorded multi-turn episodes: ours, padded batches, TRL's GRPOTrainer, PrefixGrouper.

    python -m benchmarks.training --trl-python /path/to/venv/bin/python      a few cells, minutes
    python -m benchmarks.training --all --trl-python …                       the whole grid, hours; goes on if stopped
    python -m benchmarks.training --report                                   table and figure of what is there
    python -m benchmarks.training --count --turns 16 --memories "window(2)" "window(2,4)"     tokens alone, seconds

A cell is one task of an environment, played by its expert with random actions in between: `group` episodes of `turns`
steps, in the prompts of a memory, written by the real conversation code with SmolLM2's tokenizer. For the model `small`
the tokens are renumbered into a vocabulary of 2,048, so that its output layer takes no larger a share than in a large
model. Each way computes the gradient of one loss on the same tokens with the same weights, in a process of its own:

    ours            the trainer's update
    padded          a padded batch of steps with transformers, loss on the responses
    trl-steps       TRL's GRPOTrainer, a row for each step
    trl-episodes    TRL's GRPOTrainer, a row for each episode (each part of one under compact), with a tool_mask
    prefix-grouper  PrefixGrouper: the prefix of a group once
    dense           one causal batch without padding, whose tokens see as many on average as those of the tree of all
                    rows; half of them are trained on
    dense-layers    the same with hardly any; the two tell what a token costs in the layers and in the output layer

Ways with micro-batches stop after --limit CPU seconds; their figures are then those of all micro-batches, by their
positions. Memory is the peak of the process above what it holds with the weights and their gradients. With several
rounds the ways are measured in turns, and medians are shown.

TRL and PrefixGrouper want an environment of their own: pip install torch transformers accelerate trl prefix-grouper.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from benchmarks.tables import markdown_table
from benchmarks.training.episodes import ENVIRONMENTS, Cell, record
from benchmarks.training.models import SHAPES, model_folder
from benchmarks.training.ours import step_table
from benchmarks.training.results import Record, Results, draw, prompts, summary, table
from envsuite.core.errors import EnvsuiteError, UsageError
from trainers.policy.packing import micro_batches
from trainers.steps.sharing import SharedTokens

ROOT = Path(__file__).resolve().parents[2]
HERE = ("ours", "padded", "dense", "dense-layers")
THERE = ("trl-steps", "trl-episodes", "prefix-grouper")
MEMORIES = ("full", "compact(1024)", "window(2)")
TURNS, GROUPS = (4, 8, 16, 32), (4, 8, 16)


def cells(given: argparse.Namespace) -> list[Cell]:
    """The cells to measure; small ones first."""
    turns = given.turns or (TURNS if given.all else (8,))
    groups = given.groups or (GROUPS if given.all else (8,))
    found = itertools.product(given.envs, given.memories, turns, groups)
    made = (Cell(*one, template=given.template) for one in found)
    return sorted(made, key=lambda cell: cell.turns * cell.group)


def main(argv: Sequence[str] | None = None) -> int:
    """Measures what is missing, then writes table and figure."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.training", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--all", action="store_true", help=f"turns {TURNS} and groups of {GROUPS} (default: 8 turns and groups of 8)")
    add("--envs", nargs="+", choices=ENVIRONMENTS, default=list(ENVIRONMENTS), help="default: all")
    add("--memories", nargs="+", default=list(MEMORIES), metavar="MEMORY", help=f"default: {' '.join(MEMORIES)}")
    add("--template", help="prompt file, such as steps or shared, with memories window(K) (default: none)")
    add("--turns", type=int, nargs="+", help="of an episode")
    add("--groups", type=int, nargs="+", metavar="EPISODES", help="sizes of the group")
    add("--ways", nargs="+", choices=(*HERE, *THERE), default=[*HERE, *THERE], help="default: all")
    add("--model", choices=SHAPES, default="small", help="shape of the random weights (default: small)")
    add("--budget", type=int, default=4096, help="most tokens of a forward pass, padding included (default: 4096)")
    add("--limit", type=float, default=20.0, help="CPU seconds of a way with micro-batches (default: 20)")
    add("--threads", type=int, default=1, help="of torch (default: 1)")
    add("--rounds", type=int, default=1, help="measurements of each way (default: 1)")
    add("--trl-python", type=Path, default=Path(sys.executable), help="a Python that has trl and prefix-grouper")
    add("--out", type=Path, default=Path("results/training"), help="folder (default: results/training)")
    add("--count", action="store_true", help="measure nothing: print how many tokens rows have, share and could share")
    add("--report", action="store_true", help="measure nothing")
    given = parser.parse_args(argv)
    try:
        return _run(given)
    except EnvsuiteError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2


def _run(given: argparse.Namespace) -> int:
    if given.count:
        sys.stdout.write(_counts(given))
        return 0
    results = Results.read(given.out / "results.jsonl")
    if not given.report:
        if not given.trl_python.exists():
            raise UsageError(f"--trl-python {given.trl_python}: no such file; name a Python that has TRL installed")
        for made in _measured(given, results):
            results.add(made)
            figures = made.get("reason") or f"{made['computed']:,} tokens in {made['cpu']:.1f} CPU s"
            where = f"{made['env']}, {made['memory']}, {made['turns']} turns, group of {made['group']}"
            sys.stdout.write(f"{where}: {made['way']}: {figures}\n")
            sys.stdout.flush()
    if not results.records:
        raise UsageError(f"{results.path}: no measurements; run without --report first")
    (given.out / "table.md").write_text(table(results.records), encoding="utf-8")
    (given.out / "summary.md").write_text(summary(results.records), encoding="utf-8")
    for model in {made["model"] for made in results.records}:
        draw(results.records, given.out / f"training-{model}.png", model)
    sys.stdout.write(f"written: {given.out}/table.md, summary.md, training-MODEL.png\n")
    return 0


def _counts(given: argparse.Namespace) -> str:
    """A table of tokens."""
    heads = ["environment", "prompts", "turns x group", "responses", "rows", "distinct", "computed", "shared"]
    rows = []
    for cell in cells(given):
        recorded = record(cell, model_folder(given.model))
        found = SharedTokens.of(steps := step_table(recorded))
        computed = sum(map(len, micro_batches(steps, given.budget))) / found.distinct
        shared = [f"{1 - tokens / found.rows:.1%}" for tokens in (found.distinct, found.least)]
        counts = [f"{number:,}" for number in (recorded.completion, found.rows, found.distinct)]
        where = [cell.env, f"`{prompts(vars(cell))}`", f"{cell.turns} x {cell.group}"]
        rows.append([*where, *counts, f"{computed:.3f} of distinct", *shared])
    return markdown_table([*heads, "shareable"], rows, 2)


def _measured(given: argparse.Namespace, results: Results) -> Iterator[Record]:
    """Yields the measurements that are missing; the ways of a cell in turns, round by round."""
    folder = model_folder(given.model)
    with tempfile.TemporaryDirectory(prefix="benchmarks-training-") as place:
        for cell in cells(given):
            wanted = [(_key(given, cell, way, number), way) for number in range(given.rounds) for way in given.ways]
            missing = [(key, way) for key, way in wanted if not results.has(key)]
            if not missing:
                continue
            rows = record(cell, folder)
            if (size := SHAPES[given.model].get("vocab_size")) is not None:
                rows = rows.renumbered(size)
            rows.save(file := Path(place) / "rows.npz")
            tokens = SharedTokens.of(step_table(rows))
            counts = {"rows": tokens.rows, "distinct": tokens.distinct, "completion": rows.completion}
            for key, way in missing:
                yield key | counts | _measure(given, way, folder, file)


def _key(given: argparse.Namespace, cell: Cell, way: str, number: int) -> Record:
    """The fields :data:`~benchmarks.training.results.KEY` of a measurement."""
    return {"model": given.model, "budget": given.budget, **vars(cell), "way": way, "round": number}


def _measure(given: argparse.Namespace, way: str, folder: Path, rows: Path) -> dict[str, Any]:
    python = sys.executable if way in HERE else str(given.trl_python)
    command = [python, "-m", "benchmarks.training.measure", way, "--rows", str(rows), "--model", str(folder)]
    options = {"budget": given.budget, "limit": given.limit, "threads": given.threads}
    command += [word for name, value in options.items() for word in (f"--{name}", str(value))]
    threads = str(given.threads)
    told = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, "OMP_NUM_THREADS": threads, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
    )  # fmt: skip
    if told.returncode == -9:
        return {"reason": "out of memory"}
    if told.returncode:
        raise UsageError(f"{' '.join(command)} failed:\n{told.stderr[-2000:]}")
    found: dict[str, Any] = orjson.loads(told.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    sys.exit(main())
