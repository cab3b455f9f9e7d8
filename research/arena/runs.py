"""Runs of the arena as jobs, and how long they will take."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml

from benchmarks.recipes_report import trained
from research.arena.results import Result, append, read_run
from research.arena.tasks import RATES, REFERENCE, TASKS, Trial, settings

TUNING_SEEDS = (100,)
"""Seeds of the runs that choose learning rates; no reported run has one of them."""
PILOT_SEEDS = (101, 102, 103)
"""Seeds of the runs that say how far apart two runs are, before any comparison is made."""
PILOT_METHODS = ("grpo", "gigpo")
PILOT_RATE = 3.0e-4
"""Learning rate of the pilot runs, and of all runs of a task that was not tuned."""
GUESS = 120.0
"""Seconds of a run of which nothing is known."""


@dataclass(frozen=True)
class Base:
    """Training of a task's base model."""

    task: str
    out: Path

    @property
    def name(self) -> str:
        """Name in the display."""
        return f"base model of {self.task}"

    @property
    def folder(self) -> Path:
        """Folder of its log."""
        return self.out / self.task / "base"

    @property
    def done(self) -> bool:
        """Whether the model is there."""
        return (TASKS[self.task].base / "config.json").exists()

    @property
    def units(self) -> int:
        """One."""
        return 1

    @property
    def finished(self) -> int:
        """One when the model is there."""
        return int(self.done)

    def command(self) -> tuple[str, list[str]]:
        """The imitation."""
        return "imitation", [
            sys.executable, "-m", "envsuite.cli", "imitate", "--config", str(TASKS[self.task].imitation),
        ]  # fmt: skip

    def output(self, stage: str) -> Path | None:
        """The log."""
        return None

    def ended(self, stage: str) -> None:
        """Nothing is left to do."""


class Run:
    """A run of the arena; its result is kept, its folder is not.

    Args:
        trial: The run.
        out: Folder of all runs.
        lines: File of the results.
        known: Keys of the runs that have a result.
    """

    def __init__(self, trial: Trial, out: Path, lines: Path, known: set[tuple[str, str, int, float]]) -> None:
        self.trial = trial
        self.folder = out / trial.task / trial.method / f"seed-{trial.seed}-lr-{trial.rate:g}"
        self.lines = lines
        self.known = known
        self.units = int(TASKS[trial.task].config["iterations"])

    @property
    def name(self) -> str:
        """Name in the display."""
        return f"{self.trial.task}, {self.trial.method}, seed {self.trial.seed}, lr {self.trial.rate:g}"

    @property
    def done(self) -> bool:
        """Whether there is a result."""
        return self.trial.key in self.known

    @property
    def finished(self) -> int:
        """Number of its iterations that are done."""
        return self.units if self.done else min(trained(self.folder), self.units)

    def command(self) -> tuple[str, list[str]]:
        """The training, from its beginning."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        config = self.folder.with_suffix(".yaml")
        config.write_text(yaml.safe_dump(settings(self.trial), sort_keys=False), encoding="utf-8")
        return "training", [
            sys.executable, "-m", "trainers.train", "--config", str(config), "--output", str(self.folder.parent),
            "--name", self.folder.name,
        ]  # fmt: skip

    def output(self, stage: str) -> Path | None:
        """The log."""
        return None

    def ended(self, stage: str) -> None:
        """Keeps the result, and drops the weights."""
        append(read_run(self.folder, self.trial), self.lines)
        self.known.add(self.trial.key)
        shutil.rmtree(self.folder / "checkpoints", ignore_errors=True)


def tuning(tasks: Sequence[str]) -> list[Trial]:
    """Returns the runs that choose the learning rate of each task: the reference's."""
    return [Trial(task, REFERENCE, seed, rate) for task in tasks for seed in TUNING_SEEDS for rate in RATES]


def pilot(tasks: Sequence[str]) -> list[Trial]:
    """Returns the runs from which the power is computed before any comparison is made."""
    return [Trial(task, method, seed, PILOT_RATE) for task in tasks for seed in PILOT_SEEDS for method in PILOT_METHODS]


def reported(
    tasks: Sequence[str], methods: Sequence[str], seeds: Sequence[int], rates: Mapping[str, float]
) -> list[Trial]:
    """Returns the runs of the table, seed by seed, so that all methods have the same ones at any time.

    Args:
        tasks: Names of tasks.
        methods: Names of methods.
        seeds: Seeds.
        rates: Learning rate of each task; others have that of the pilot runs.
    """
    return [
        Trial(task, method, seed, rates.get(task, PILOT_RATE))
        for seed in seeds for task in tasks for method in methods
    ]  # fmt: skip


def seconds(trials: Iterable[Trial], results: Sequence[Result]) -> dict[tuple[str, str], float]:
    """Returns the expected seconds of one run of each task and method, from those that are done."""
    found: dict[tuple[str, str], list[float]] = {}
    for result in results:
        found.setdefault((result.task, result.method), []).append(result.seconds)
        found.setdefault((result.task, ""), []).append(result.seconds)
    expected = {}
    for trial in trials:
        known = found.get((trial.task, trial.method)) or found.get((trial.task, "")) or [GUESS]
        expected[trial.task, trial.method] = float(np.median(known))
    return expected
