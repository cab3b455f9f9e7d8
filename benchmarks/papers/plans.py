"""Plans of all trainings on their papers' hardware, kept in ``configs/papers/plans.yaml``."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from benchmarks.papers.index import FOLDER, Run
from benchmarks.papers.settings import setting_of
from trainers.planning.hardware import GIB, machines
from trainers.planning.plan import RunPlanner
from trainers.planning.program import PLAN, check, shape_of
from trainers.run.cli import parse
from trainers.run.config import TrainConfig

PLANS = FOLDER / "plans.yaml"
MEANS = {
    "alfworld": (30, 900, 128), "webshop": (8, 1500, 128), "textcraft": (15, 1000, 128), "mathematics": (4, 4000, 1500),
}  # fmt: skip
"""Assumed means by environment: steps of an episode, tokens of a prompt, tokens of a response."""
STEPPO_STEPS = 20
"""StepPO's horizon on ALFWorld, which is below the assumed mean."""


@dataclass(frozen=True)
class Planned:
    """The plan of one training."""

    gpus: str
    gib: float
    """Memory that one GPU needs."""
    room: float
    """Memory that it has."""
    seconds: float
    """Seconds of an iteration, environments and evaluation not counted."""

    @property
    def ranks(self) -> int:
        """Number of GPUs."""
        return machines(self.gpus).ranks

    @property
    def fits(self) -> bool:
        """Whether it fits."""
        return self.gib <= self.room

    def hours(self, iterations: int) -> float:
        """Hours of a run."""
        return self.seconds * iterations / 3600


def config_of(run: Run) -> TrainConfig:
    """The settings of the run's file, resolved; an engine that is not installed here is no error."""
    return parse(["--config", str(FOLDER / run.path)], PLAN).config


def plan(runs: Iterable[Run]) -> Iterator[tuple[Run, Planned]]:
    """Plans of these runs; passes of a model on the same hardware and of the same lengths are computed once."""
    planners: dict[tuple[str, str, str], RunPlanner] = {}
    warnings.simplefilter("ignore")  # of passes on fake tensors
    for run in runs:
        gpus, config = setting_of(run).gpus, config_of(run)
        shape, where = shape_of("", run.model), machines(gpus)
        check(config, shape, where, run.model)
        steps, prompt, response = MEANS[run.env]
        steps = min(steps, STEPPO_STEPS) if run.paper == "steppo" else steps
        made = planners.setdefault((run.model, gpus, run.env), RunPlanner(shape, where, steps, prompt, response))
        found = made.plan(config)
        yield run, Planned(gpus, round(found.peak / GIB, 1), round(found.room / GIB, 1), round(found.iteration, 1))


def read_plans(path: Path = PLANS) -> dict[Run, Planned]:
    """The kept plans, by run."""
    body = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {Run(*key.split(" ")): Planned(**entry) for key, entry in body.items()}


def text_of(plans: dict[Run, Planned]) -> str:
    """The kept plans as a file."""
    lines = [
        "# Memory of one GPU and seconds of an iteration, as envsuite plan estimates them: no measurements.",
        "# Made by `python -m benchmarks.papers --plan`; docs/papers.md states the assumptions.",
    ]
    for run in sorted(plans):
        made, key = plans[run], f"{run.paper} {run.table} {run.env} {run.model} {run.name}"
        lines.append(f"{key}: {{gpus: {made.gpus}, gib: {made.gib}, room: {made.room}, seconds: {made.seconds}}}")
    return "\n".join(lines) + "\n"
