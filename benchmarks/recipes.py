"""Train the quick start with every recipe, over several seeds; say what each reaches and what it costs.

    python -m benchmarks.recipes                                # hours on two cores; goes on where it was stopped
    python -m benchmarks.recipes --only grpo gigpo --seeds 0    # two runs
    python -m benchmarks.recipes --report                       # table and figure of what is there

A run is configs/quickstart.yaml with the method section of a recipe in place of its own, and with half as many tasks
an iteration (8 groups of 8 episodes): tasks, sampling and optimiser are the same for all; estimator, objective,
filters, critic and replay are what the recipe says. One row more has the quick start's own method section. What
differs from the recipes:
  - no penalty for invalid actions, which in this world would be learnt alone where no episode succeeds;
  - what SPEAR gives for some 200 iterations of 128 episodes (fading of its reward, warm-up and size of its replay) is
    scaled to the size of these runs, so that it replays at all;
  - DAPO replaces groups without a signal in at most two further rounds of rollout, not ten;
  - SCPO scores by exact matches, as its recipe does here, and not with the paper's cross-encoder.
The final weights of each run, and the base model, are measured on the quick start's held-out goals, with the seed of
the run. Costs are CPU seconds of the run's process (cpu/... in its metrics), means over iterations and seeds.

A run that has its evaluation is done; one that was stopped goes on from its last checkpoint.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from benchmarks.queue import Queue
from benchmarks.recipes_report import BASE, EVALUATION, trained, write_report
from benchmarks.recipes_rows import LAST, ROOT, Row, evaluation_settings, rows, settings
from envsuite.core.errors import EnvsuiteError, UsageError, unknown


@dataclass(frozen=True)
class Job:
    """A run and its evaluation; without a row, the evaluation of the base model alone."""

    row: Row | None
    seed: int
    out: Path
    iterations: int

    @property
    def name(self) -> str:
        """As the display has it."""
        return f"{BASE if self.row is None else self.row.name}, seed {self.seed}"

    @property
    def folder(self) -> Path:
        """Of the run."""
        return self.out / (BASE if self.row is None else self.row.folder) / f"seed-{self.seed}"

    @property
    def checkpoints(self) -> Path:
        """Of the run; gone when it has been evaluated."""
        return self.folder / "checkpoints"

    @property
    def last(self) -> Path:
        """The checkpoint that ends the run."""
        return self.checkpoints / f"iteration-{self.iterations:05d}"

    @property
    def done(self) -> bool:
        """Nothing is left to do."""
        return (self.folder / EVALUATION).exists()

    @property
    def units(self) -> int:
        """How much there is to do: iterations, and one for the evaluation."""
        return 1 if self.row is None else self.iterations + 1

    @property
    def finished(self) -> int:
        """How many of :attr:`units` are done."""
        return self.units if self.done else trained(self.folder)

    def command(self) -> tuple[str, list[str]]:
        """What is to be done next, and the command line that does it."""
        python = [sys.executable, "-m"]
        if self.row is None or self.last.is_dir():
            model = [] if self.row is None else ["--model.path", str(self.last)]
            config = str(self.out / "settings" / "evaluation.yaml")
            return "evaluation", [
                *python,
                "envsuite.cli",
                "eval",
                "model",
                "--config",
                config,
                "--seed",
                str(self.seed),
                *model,
            ]
        where = ["--output", str(self.folder.parent), "--name", self.folder.name, "--seed", str(self.seed)]
        resume = ["--resume"] if any(self.checkpoints.glob("iteration-*")) else []
        config = str(self.out / "settings" / f"{self.row.folder}.yaml")
        return "training", [*python, "trainers.train", "--config", config, *where, *resume]

    def output(self, stage: str) -> Path | None:
        """The file of an evaluation's result while it is written."""
        return self.folder / f".{EVALUATION}" if stage == "evaluation" else None

    def ended(self, stage: str) -> None:
        """Keep an evaluation's result, and drop the weights that it was of."""
        if stage == "evaluation":
            os.replace(self.folder / f".{EVALUATION}", self.folder / EVALUATION)
            shutil.rmtree(self.checkpoints, ignore_errors=True)


def jobs(chosen: Sequence[Row], seeds: Sequence[int], out: Path, iterations: int) -> list[Job]:
    """Seed by seed, so that what is done at any time is comparable; compositions last, the base model first."""
    first, last = ([row for row in chosen if (row.name in LAST) == late] for late in (False, True))
    order: list[tuple[int, Row | None]] = []
    for seed in seeds:
        order += [(seed, row) for row in (None, *first)]
    order += itertools.product(seeds, last)
    return [Job(row, seed, out, iterations) for seed, row in order]


def write_settings(chosen: Sequence[Row], out: Path, iterations: int) -> None:
    """Write the configuration files of all runs to ``settings/``.

    Raises:
        UsageError: There are others already, of other runs.
    """
    (out / "settings").mkdir(parents=True, exist_ok=True)
    files: dict[str, dict[str, Any]] = {row.folder: settings(row, iterations) for row in chosen}
    for name, body in {**files, "evaluation": evaluation_settings()}.items():
        path, text = out / "settings" / f"{name}.yaml", yaml.safe_dump(body, sort_keys=False)
        if path.exists() and path.read_text(encoding="utf-8") != text:
            raise UsageError(f"{path} is of runs with other settings; choose another --out, or remove {out}")
        path.write_text(text, encoding="utf-8")


def parser() -> argparse.ArgumentParser:
    """Of the command line."""
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.recipes",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--out", type=Path, default=ROOT / "runs" / "recipes", help="folder (default runs/recipes)")
    made.add_argument("--only", nargs="+", metavar="RECIPE", help="recipes, by default all")
    made.add_argument("--seeds", type=int, nargs="+", default=(0, 1, 2), help="(default 0 1 2)")
    made.add_argument("--iterations", type=int, default=8, help="of a run (default 8; the quick start has 18)")
    made.add_argument("--jobs", type=int, default=2, help="runs at a time (default 2)")
    made.add_argument("--threads", type=int, default=1, help="of each run (default 1)")
    made.add_argument("--report", action="store_true", help="train nothing: write the report of what is there")
    made.add_argument("--figure", type=Path, help="file of the figure (default recipes.png in --out)")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    args = parser().parse_args(arguments)
    console, out = Console(), args.out.resolve()
    try:
        return _main(args, console, out)
    except EnvsuiteError as error:
        console.print(f"error: {error}", style="red", markup=False, highlight=False)
        return 2
    except KeyboardInterrupt:
        console.print("stopped; the same command goes on")
        return 130


def _main(args: argparse.Namespace, console: Console, out: Path) -> int:
    for name in ("iterations", "jobs", "threads"):
        if getattr(args, name) < 1:
            raise UsageError(f"--{name} is {getattr(args, name)}; it must be at least 1")
    known = {row.folder: row for row in rows(args.iterations)}
    for name in args.only or ():
        if name not in known:
            raise unknown("row", name, known)
    chosen = [row for name, row in known.items() if not args.only or name in args.only]
    failed: dict[str, str] = {}
    if not args.report:
        write_settings(chosen, out, args.iterations)
        queue = Queue(jobs(chosen, args.seeds, out, args.iterations), args.jobs, args.threads, console)
        queue.run()
        failed = queue.failed
    for path in write_report(out, list(known.values()), args.figure or out / "recipes.png"):
        console.print(f"written: {path}", highlight=False)
    for name, lines in failed.items():
        console.rule(f"failed: {name}")
        console.print(lines, markup=False, highlight=False)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
