"""Train configs/textcraft.yaml with every recipe, over several seeds; say what each reaches and what it costs.

    python -m benchmarks.recipes                                # hours on two cores; goes on where it was stopped
    python -m benchmarks.recipes --only grpo gigpo --seeds 0    # two runs
    python -m benchmarks.recipes --report                       # table and figure of what is there

A run is configs/textcraft.yaml with the method section of a recipe in place of its own, and with half as many tasks
an iteration (8 groups of 8 episodes): tasks, sampling and optimiser are the same for all; estimator, objective,
filters, critic and replay are what the recipe says. One row more has configs/textcraft.yaml's own method section. What
differs from the recipes:
  - no penalty for invalid actions, which in this world would be learnt alone where no episode succeeds;
  - what SPEAR gives for some 200 iterations of 128 episodes (fading of its reward, warm-up and size of its replay) is
    scaled to the size of these runs, so that it replays at all;
  - DAPO replaces groups without a signal in at most two further rounds of rollout, not ten;
  - SCPO scores by exact matches, as its recipe does here, and not with the paper's cross-encoder.
The final weights of each run, and the base model, are measured on configs/textcraft.yaml's held-out goals, with the
seed of the run. Costs are CPU seconds of the run's process (cpu/... in its metrics), means over iterations and seeds.

A run that has its evaluation is done; one that was stopped goes on from its last checkpoint.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from rich.console import Console

from benchmarks.recipes_report import BASE, EVALUATION, write_report
from benchmarks.recipes_rows import LAST, ROOT, Row, evaluation_settings, rows, settings
from envsuite.core.errors import EnvsuiteError, UsageError, unknown

FAILED = "failed.txt"
"""The end of the log of a job that failed."""
LOG_LINES = 15
PATIENCE = 120.0
"""Seconds that a run has to write its checkpoint when it is asked to stop."""


@dataclass(frozen=True)
class Job:
    """A run and its evaluation; without a row, the evaluation of the base model alone."""

    row: Row | None
    seed: int
    out: Path
    iterations: int

    @property
    def name(self) -> str:
        """As messages have it."""
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
    def done(self) -> bool:
        """Nothing is left to do."""
        return (self.folder / EVALUATION).exists()

    def command(self) -> tuple[str, list[str]]:
        """Returns the stage that is next, and the command line that does it."""
        last = self.checkpoints / f"iteration-{self.iterations:05d}"
        if self.row is None or last.is_dir():
            config = str(self.out / "settings" / "evaluation.yaml")
            words = ["envsuite.cli", "eval", "model", "--config", config]
            words += [] if self.row is None else ["--model.path", str(last)]
        else:
            config = str(self.out / "settings" / f"{self.row.folder}.yaml")
            words = ["trainers.train", "--config", config, "--output", str(self.folder.parent)]
            words += ["--name", self.folder.name, *(["--resume"] if any(self.checkpoints.glob("iteration-*")) else [])]
        stage = "training" if words[0] == "trainers.train" else "evaluation"
        return stage, [sys.executable, "-m", *words, "--seed", str(self.seed)]

    def start(self, stage: str, command: Sequence[str], threads: int) -> subprocess.Popen[bytes]:
        """Starts a stage in a session of its own: Ctrl-C reaches this process alone, which asks each run to stop."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / FAILED).unlink(missing_ok=True)
        variables = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(ROOT)}
        with (self.folder / f"{stage}.log").open("wb") as log, (self.folder / f".{EVALUATION}").open("wb") as result:
            output = result if stage == "evaluation" else log
            return subprocess.Popen(command, cwd=ROOT, env=variables, stdout=output, stderr=log, start_new_session=True)

    def end(self, stage: str, status: int) -> str:
        """Keeps an evaluation's result and drops its weights; returns the end of the log of a failure."""
        if status:
            lines = (self.folder / f"{stage}.log").read_text("utf-8", errors="replace").splitlines()[-LOG_LINES:]
            failure = "\n".join([f"{stage}, exit status {status}", *lines])
            (self.folder / FAILED).write_text(failure, encoding="utf-8")
            return failure
        if stage == "evaluation":
            os.replace(self.folder / f".{EVALUATION}", self.folder / EVALUATION)
            shutil.rmtree(self.checkpoints, ignore_errors=True)
        return ""


def run_jobs(planned: Sequence[Job], width: int, threads: int, console: Console) -> dict[str, str]:
    """Does all jobs, ``width`` at a time; returns the end of the log of each that failed, by its name.

    Raises:
        KeyboardInterrupt: SIGINT or SIGTERM came; the processes were asked to stop and have ended.
    """
    pending = [job for job in planned if not job.done]
    running: dict[subprocess.Popen[bytes], tuple[Job, str]] = {}
    failed: dict[str, str] = {}
    old = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        while pending or running:
            while pending and len(running) < width:
                job = pending.pop(0)
                stage, command = job.command()
                running[job.start(stage, command, threads)] = (job, stage)
            time.sleep(0.5)
            for process in [process for process in running if process.poll() is not None]:
                job, stage = running.pop(process)
                failure = job.end(stage, process.returncode)
                if failure:
                    failed[job.name] = failure
                elif not job.done:
                    pending.insert(0, job)
                state = f"failed, see {job.folder / FAILED}" if failure else "done"
                console.print(f"{job.name}: {stage} {state}; {len(pending) + len(running)} left", highlight=False)
    finally:
        signal.signal(signal.SIGTERM, old)
        for process in running:
            process.terminate()
        until = time.monotonic() + PATIENCE
        for process in running:
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
    return failed


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
    files = {row.folder: settings(row, iterations) for row in chosen}
    for name, body in {**files, "evaluation": evaluation_settings()}.items():
        path, text = out / "settings" / f"{name}.yaml", yaml.safe_dump(body, sort_keys=False)
        if path.exists() and path.read_text(encoding="utf-8") != text:
            raise UsageError(f"{path} is of runs with other settings; choose another --out, or remove {out}")
        path.write_text(text, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.recipes", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "recipes", help="folder (default runs/recipes)")
    parser.add_argument("--only", nargs="+", metavar="RECIPE", help="recipes, by default all")
    parser.add_argument("--seeds", type=int, nargs="+", default=(0, 1, 2), help="(default 0 1 2)")
    parser.add_argument("--iterations", type=int, default=8, help="of a run (default 8; configs/textcraft.yaml has 18)")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time (default 2)")
    parser.add_argument("--threads", type=int, default=1, help="of each run (default 1)")
    parser.add_argument("--report", action="store_true", help="train nothing: write the report of what is there")
    parser.add_argument("--figure", type=Path, help="file of the figure (default recipes.png in --out)")
    args, console = parser.parse_args(arguments), Console()
    try:
        return _main(args, console, args.out.resolve())
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
        failed = run_jobs(jobs(chosen, args.seeds, out, args.iterations), args.jobs, args.threads, console)
    for path in write_report(out, list(known.values()), args.figure or out / "recipes.png"):
        console.print(f"written: {path}", highlight=False)
    for name, lines in failed.items():
        console.rule(f"failed: {name}")
        console.print(lines, markup=False, highlight=False)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
