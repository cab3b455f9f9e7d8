"""``python -m research.lab``: runs every experiment, writes tables and figures."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from envsuite.core.errors import DataError
from envsuite.exits import status_of
from research.lab import claims, experiments, learning
from research.lab.figures import write_figures
from research.lab.methods import methods
from research.lab.tables import Record, all_tables
from research.lab.worlds import delayed
from trainers.settings import AtLeastOne, Seed, Text
from trainers.settings.words import parse_settings

DESCRIPTION = """Measure every estimator against exact advantages, without a language model.

Worlds of a few states, where Q and V of any policy can be computed exactly, are played by random policies; the step
tables go through the same estimators as those of a training run. The worlds are
  delayed    a corridor with one reward at its end
  graded     a reward at every step
  aliased    states that look alike and are different
  renamed    states that look different and are alike
  textcraft  TextCraft-v0 itself: one task, six commands
Measured are bias, variance, sign agreement, rank correlation, the cosine of policy gradients, singletons and cost;
against group size, horizon, success, discount and names per state; then learning curves, and what four papers claim.

Written to the output folder: report.md (all tables and figures), tables/*.md and *.tex, figures/*.png, records.jsonl
(every figure of every seed).

examples:
  python -m research.lab                        all of it, minutes on two cores, to runs/lab
  python -m research.lab --quick --out /tmp/lab two seeds and the ends of each axis, about a minute
  python -m research.lab --seed 100             other policies, other episodes
"""


@dataclass(frozen=True)
class LabConfig:
    """Settings of a run of the laboratory."""

    out: Text = "runs/lab"
    """Output folder."""
    quick: bool = False
    """Two seeds, few episodes, the ends of each axis: a smoke test whose numbers mean little."""
    seed: Seed = 0
    """First seed of the measurements."""
    processes: AtLeastOne = 2
    """Number of worker processes; 1 runs everything in this process."""


@dataclass(frozen=True)
class Size:
    """The size of a run."""

    seeds: int
    batches: int
    """Number of batches of four groups for each seed; half as many in the sweeps."""
    runs: int
    """Number of seeds of a learning curve."""
    iterations: int


FULL = Size(seeds=10, batches=48, runs=20, iterations=40)
QUICK = Size(seeds=2, batches=4, runs=2, iterations=6)


@dataclass(frozen=True)
class Job:
    """A piece of work, small enough to show progress."""

    what: str
    """Text of the progress display."""
    work: Callable[..., list[Record]]
    arguments: tuple[Any, ...]


def jobs(config: LabConfig) -> list[Job]:
    """Returns all jobs, the longest first."""
    size = QUICK if config.quick else FULL
    seeds = range(config.seed, config.seed + size.seeds)
    out, swept = [], experiments.swept()
    for world in (make() for make in experiments.WORLDS.values()):
        for method in [learning.ORACLE, *methods(world.name)]:
            arguments = ("learning", world, method, size.runs, size.iterations)
            out.append(Job(f"learning in {world.name}: {method.name}", learning.learn, arguments))
    for method in claims.trained():
        arguments = ("learning by discount", delayed(8), method, size.runs, size.iterations)
        out.append(Job(f"learning by discount: {method.name}", learning.learn, arguments))
    for name, experiment in claims.CLAIMS.items():
        out += [Job(f"claims: {name}, seed {seed}", experiment, (seed, size.batches)) for seed in seeds]
    for setting in experiments.settings(config.quick):
        what = f"{setting.experiment} {setting.world.name} {setting.x:g}"
        chosen, batches = (None, size.batches) if setting.experiment == "worlds" else (swept, size.batches // 2)
        out += [Job(f"{what}, seed {seed}", experiments.measure, (setting, seed, batches, chosen)) for seed in seeds]
    return out


def done(work: Sequence[Job], processes: int) -> Iterator[tuple[Job, list[Record]]]:
    """Yields each job with its records, in the order of completion."""
    if processes == 1:
        for job in work:
            yield job, job.work(*job.arguments)
        return
    # One thread per process: the work is many small arrays.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        pending: dict[Future[list[Record]], Job] = {pool.submit(job.work, *job.arguments): job for job in work}
        try:
            for future in as_completed(pending):
                yield pending[future], future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def run(config: LabConfig, console: Console) -> list[Record]:
    """Runs all jobs with a progress display; returns the records in a fixed order."""
    work = jobs(config)
    found: dict[str, list[Record]] = {}
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    said = time.monotonic()
    with Progress(*columns, console=console, speed_estimate_period=600) as progress:
        task = progress.add_task("starting", total=len(work))
        for number, (job, records) in enumerate(done(work, config.processes), 1):
            found[job.what] = records
            progress.update(task, advance=1, description=f"{job.what[:46]:<46}")
            if not console.is_terminal and time.monotonic() - said > 15:
                said = time.monotonic()
                console.print(f"{number} of {len(work)} done, last: {job.what}", highlight=False)
    return [record for job in work for record in found[job.what]]


def output_folder(out: str) -> Path:
    """Returns the folder ``out``, created if necessary; checks before the work that it is writable.

    Raises:
        DataError: The folder cannot be created or written.
    """
    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "records.jsonl").touch()
    except OSError as error:
        raise DataError(f"--out {out}: cannot be written to ({error})") from error
    return folder


def write(records: Sequence[Record], folder: Path, quick: bool) -> list[Path]:
    """Writes records, tables, figures and the report; returns the files."""
    descriptions = {name: make().description for name, make in experiments.WORLDS.items()}
    tables = all_tables(records, descriptions)
    (folder / "tables").mkdir(parents=True, exist_ok=True)
    written = [folder / "records.jsonl", folder / "report.md"]
    with written[0].open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)
    for table in tables:
        for ending, text in (("md", table.markdown()), ("tex", table.latex())):
            path = folder / "tables" / f"{table.name}.{ending}"
            path.write_text(text, encoding="utf-8")
            written.append(path)
    figures = write_figures(records, folder / "figures")
    lines = ["# Estimators against exact advantages", ""]
    if quick:
        lines += ["Made with `--quick`: two seeds, few episodes. The numbers say little.", ""]
    lines += [f"![{path.stem}](figures/{path.name})\n" for path in figures]
    written[1].write_text("\n".join([*lines, *(table.markdown() for table in tables)]), encoding="utf-8")
    return [*written, *figures]


def parse(arguments: Sequence[str] | None) -> LabConfig:
    """Parses the command line.

    Raises:
        ConfigError: An option does not exist or has an invalid value.
    """
    return parse_settings(LabConfig, arguments, "python -m research.lab", DESCRIPTION)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the laboratory; returns the exit status."""
    return status_of(lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    console, config = Console(), parse(arguments)
    folder, started = output_folder(config.out), time.monotonic()
    written = write(run(config, console), folder, config.quick)
    minutes, cpu = (time.monotonic() - started) / 60, sum(os.times()[:4]) / 60
    console.print(
        f"{len(written)} files in {minutes:.1f} minutes ({cpu:.1f} of CPU); begin with {written[1]}", highlight=False
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
