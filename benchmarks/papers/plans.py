"""Plans of all runs on their papers' hardware, kept in ``plans.yaml``."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from trainers.papers.index import PaperRun, published_rows
from trainers.papers.settings import setting_of
from trainers.planning.hardware import GIB, machines
from trainers.planning.plan import RunPlanner
from trainers.planning.program import PLAN, check, shape_of
from trainers.run.cli import parse
from trainers.run.config import TrainConfig

PLANS = Path(__file__).with_name("plans.yaml")
MEANS = {
    "alfworld": (30, 900, 128), "webshop": (8, 1500, 128), "textcraft": (15, 1000, 128), "mathematics": (4, 4000, 1500),
}  # fmt: skip
"""Assumed means by environment: steps of an episode, tokens of a prompt, tokens of a response."""
STEPPO_STEPS = 20
"""StepPO's horizon on ALFWorld, which is below the assumed mean."""


@dataclass(frozen=True)
class Planned:
    """The plan of one run."""

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


def config_of(run: PaperRun) -> TrainConfig:
    """The settings of the run, resolved; an engine that is not installed here is no error."""
    return parse(["--config", run.name], PLAN).config


def plan_runs(runs: Iterable[PaperRun]) -> Iterator[tuple[PaperRun, Planned]]:
    """Plans of these runs; passes of a model on the same hardware and of the same lengths are computed once."""
    planners: dict[tuple[str, str, str], RunPlanner] = {}
    warnings.simplefilter("ignore")  # of passes on fake tensors
    for run in runs:
        gpus, config = setting_of(run).gpus, config_of(run)
        shape, where = shape_of("", run.model), machines(gpus)
        check(config, shape, where, run.model)
        steps, prompt, response = MEANS[run.env]
        steps = min(steps, STEPPO_STEPS) if run.paper == "steppo" else steps
        planner = planners.setdefault((run.model, gpus, run.env), RunPlanner(shape, where, steps, prompt, response))
        plan = planner.plan(config)
        yield run, Planned(gpus, round(plan.peak / GIB, 1), round(plan.room / GIB, 1), round(plan.iteration, 1))


def read_plans(path: Path = PLANS) -> dict[PaperRun, Planned]:
    """The kept plans, by run."""
    body = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {run: Planned(**body[run.name]) for run in published_rows() if run.name in body}


def text_of(plans: dict[PaperRun, Planned]) -> str:
    """The kept plans as a file."""
    lines = [
        "# Memory of one GPU and seconds of an iteration, as envsuite plan estimates them: no measurements.",
        "# Made by `python -m benchmarks.papers --plan`; docs/papers.md states the assumptions.",
    ]
    for run in sorted(plans):
        plan = plans[run]
        lines.append(f"{run.name}: {{gpus: {plan.gpus}, gib: {plan.gib}, room: {plan.room}, seconds: {plan.seconds}}}")
    return "\n".join(lines) + "\n"
