"""Runs commands, some at a time, each in processes of its own, with progress and the time that is left."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import TimeRemainingColumn as TimeLeftColumn

ROOT = Path(__file__).resolve().parents[1]
FAILED = "failed.txt"
"""The end of the log of a job that failed."""
LOG_LINES = 15
PATIENCE = 120.0
"""Seconds that a run has to write its checkpoint when it is asked to stop."""


class Job(Protocol):
    """Something to be done in one or several stages, each a command."""

    @property
    def name(self) -> str:
        """Name in the display."""

    @property
    def folder(self) -> Path:
        """Folder of its logs."""

    @property
    def done(self) -> bool:
        """Whether nothing is left to do."""

    @property
    def units(self) -> int:
        """How much there is to do, such as iterations."""

    @property
    def finished(self) -> int:
        """How many of :attr:`units` are done."""

    def command(self) -> tuple[str, list[str]]:
        """Returns the name of the next stage and its command line."""

    def output(self, stage: str) -> Path | None:
        """Returns the file that the standard output of a stage goes to; ``None``: its log."""

    def ended(self, stage: str) -> None:
        """Called when a stage has ended well."""


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
    """Works off jobs, some at a time.

    Args:
        pending: The jobs, in this order.
        width: How many run at a time.
        threads: Of each.
        console: Where progress goes.
    """

    pending: Sequence[Job]
    width: int
    threads: int
    console: Console
    failed: dict[str, str] = field(default_factory=dict)
    """The end of the log of each job that failed."""
    running: list[Running] = field(default_factory=list)

    def run(self) -> None:
        """Does all jobs.

        Raises:
            KeyboardInterrupt: SIGINT or SIGTERM came; the processes were asked to stop and have ended.
        """
        columns = (
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            TextColumn("left"), TimeLeftColumn(),
        )  # fmt: skip
        jobs, pending = list(self.pending), [job for job in self.pending if not job.done]
        total = sum(job.units for job in jobs)
        before, began = sum(job.finished for job in jobs), time.monotonic()
        old = signal.signal(signal.SIGTERM, signal.default_int_handler)
        with Progress(*columns, console=self.console, speed_estimate_period=3600) as progress:
            bar = progress.add_task("all runs", total=total, completed=before)
            try:
                while pending or self.running:
                    while pending and len(self.running) < self.width:
                        job = pending.pop(0)
                        self._start(job, progress.add_task(job.name, total=job.units))
                    time.sleep(0.5)
                    for ended in [entry for entry in self._seen(progress) if entry.process.returncode is not None]:
                        self._end(ended, progress)
                        if not self.console.is_terminal and ended.job.done:
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
        where = job.output(stage)
        output = log if where is None else where.open("wb")
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
            return
        job.ended(ended.stage)
        if job.done:
            progress.remove_task(ended.bar)
        else:
            self._start(job, ended.bar)

    def _stop(self) -> None:
        """Asks the processes that still run to stop, and waits for them."""
        for entry in self.running:
            entry.process.terminate()
        until = time.monotonic() + PATIENCE
        for entry in self.running:
            try:
                entry.process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                entry.process.kill()
            entry.output.close()
