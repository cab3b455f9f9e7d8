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
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import yaml
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import TimeRemainingColumn as TimeLeftColumn

from benchmarks.recipes_report import BASE, EVALUATION, trained, write_report
from benchmarks.recipes_rows import LAST, ROOT, Row, evaluation_settings, rows, settings
from envsuite.core.errors import EnvsuiteError, UsageError, unknown

FAILED = "failed.txt"
"""The end of the log of a run that failed."""
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
            return "evaluation", [*python, "trainers.evaluate", "--config", config, "--seed", str(self.seed), *model]
        where = ["--output", str(self.folder.parent), "--name", self.folder.name, "--seed", str(self.seed)]
        resume = ["--resume"] if any(self.checkpoints.glob("iteration-*")) else []
        config = str(self.out / "settings" / f"{self.row.folder}.yaml")
        return "training", [*python, "trainers.train", "--config", config, *where, *resume]


def jobs(chosen: Sequence[Row], seeds: Sequence[int], out: Path, iterations: int) -> list[Job]:
    """Seed by seed, so that what is done at any time is comparable; compositions last, the base model first."""
    first, last = ([row for row in chosen if (row.name in LAST) == late] for late in (False, True))
    order: list[tuple[int, Row | None]] = []
    for seed in seeds:
        order += [(seed, row) for row in (None, *first)]
    order += itertools.product(seeds, last)
    return [Job(row, seed, out, iterations) for seed, row in order]


@dataclass
class Running:
    """A process at work on a job."""

    job: Job
    stage: str
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    bar: TaskID


@dataclass
class Queue:
    """Works off jobs, some at a time, each in processes of its own.

    Args:
        pending: What is to be done, in this order.
        width: How many run at a time.
        threads: Of each.
        console: Where progress goes.
    """

    pending: list[Job]
    width: int
    threads: int
    console: Console
    failed: dict[str, str] = field(default_factory=dict)
    """The end of the log of each job that failed."""
    running: list[Running] = field(default_factory=list)

    def run(self) -> None:
        """Do all jobs.

        Raises:
            KeyboardInterrupt: SIGINT or SIGTERM came; the runs have written checkpoints.
        """
        columns = (
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            TextColumn("left"), TimeLeftColumn(),
        )  # fmt: skip
        jobs, self.pending = list(self.pending), [job for job in self.pending if not job.done]
        total = sum(job.units for job in jobs)
        before, began = sum(job.finished for job in jobs), time.monotonic()
        old = signal.signal(signal.SIGTERM, signal.default_int_handler)
        with Progress(*columns, console=self.console, speed_estimate_period=3600) as progress:
            bar = progress.add_task("all runs", total=total, completed=before)
            try:
                while self.pending or self.running:
                    while self.pending and len(self.running) < self.width:
                        job = self.pending.pop(0)
                        self._start(job, progress.add_task(job.name, total=job.units))
                    time.sleep(0.5)
                    for ended in [entry for entry in self._seen(progress) if entry.process.returncode is not None]:
                        self._end(ended, progress)
                        if (
                            not self.console.is_terminal
                            and ended.stage == "evaluation"
                            and not ended.process.returncode
                        ):
                            done = sum(job.finished for job in jobs)
                            left = (total - done) * (time.monotonic() - began) / max(1, done - before)
                            self.console.print(f"{ended.job.name} done; about {left / 60:.0f} minutes left")
                    progress.update(bar, completed=sum(job.finished for job in jobs))
            finally:
                signal.signal(signal.SIGTERM, old)
                self._stop()

    def _seen(self, progress: Progress) -> Iterator[Running]:
        for entry in list(self.running):
            entry.process.poll()
            progress.update(entry.bar, completed=entry.job.finished)
            yield entry

    def _start(self, job: Job, bar: TaskID) -> None:
        stage, command = job.command()
        job.folder.mkdir(parents=True, exist_ok=True)
        (job.folder / FAILED).unlink(missing_ok=True)
        log = (job.folder / f"{stage}.log").open("wb")
        output = (job.folder / f".{EVALUATION}").open("wb") if stage == "evaluation" else log
        environment = {**os.environ, "OMP_NUM_THREADS": str(self.threads), "PYTHONPATH": str(ROOT)}
        # In a session of its own: Ctrl-C reaches this process alone, which then asks each run to stop, once.
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=output, stderr=log, start_new_session=True
        )
        log.close()
        self.running.append(Running(job, stage, process, output, bar))

    def _end(self, ended: Running, progress: Progress) -> None:
        self.running.remove(ended)
        ended.output.close()
        job = ended.job
        if ended.process.returncode != 0:
            progress.remove_task(ended.bar)
            lines = (job.folder / f"{ended.stage}.log").read_text("utf-8", errors="replace").splitlines()[-LOG_LINES:]
            self.failed[job.name] = "\n".join([f"{ended.stage}, exit status {ended.process.returncode}", *lines])
            (job.folder / FAILED).write_text(self.failed[job.name], encoding="utf-8")
            self.console.print(f"{job.name}: {ended.stage} failed, see {job.folder / FAILED}", style="red")
        elif ended.stage == "training":
            self._start(job, ended.bar)
        else:
            os.replace(job.folder / f".{EVALUATION}", job.folder / EVALUATION)
            shutil.rmtree(job.checkpoints, ignore_errors=True)
            progress.remove_task(ended.bar)

    def _stop(self) -> None:
        """Ask what still runs to stop, and wait for it."""
        for entry in self.running:
            entry.process.terminate()
        until = time.monotonic() + PATIENCE
        for entry in self.running:
            try:
                entry.process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                entry.process.kill()
            entry.output.close()


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
