"""Fit the bounds of the alarms on healthy runs, and induce collapses: after how many iterations is each found?

    python -m benchmarks.alarms            # trains what is missing, then the report; goes on where it was stopped
    python -m benchmarks.alarms --report   # of what is there

Healthy runs are of Sokoban with panels of eight levels, and of the quick start with 4 tasks an iteration; bounds are
fitted on even seeds and tested on odd ones, likewise on every second of --healthy. A collapse is one of them with one
thing wrong. Sokoban needs its base model: envsuite imitate --config benchmarks/alarms-sokoban-base.yaml
"""

from __future__ import annotations

import argparse
import bisect
import itertools
import sys
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import yaml
from rich.console import Console
from rich.table import Table
from torch import Tensor

import envsuite  # noqa: F401  # registers the environments
from benchmarks.queue import ROOT
from benchmarks.recipes_report import trained
from trainers.credit.estimators.groups import episode_codes
from trainers.credit.shapers import SHAPERS, Shaper
from trainers.report.events import RunEvent
from trainers.report.metrics import read_metrics
from trainers.rollout.engine import ENGINES, EngineSetup
from trainers.rollout.hf_engine import HFEngine
from trainers.run.alarm_rules import RULES, AlarmRule
from trainers.run.alarms import Alarms
from trainers.run.config import AlarmConfig, AlarmRuleConfig
from trainers.run.training import main as train
from trainers.settings.words import merge
from trainers.steps import StepTable

WORLDS = {"sokoban": (2, [3, 8], 20), "sokoban-1": (1, [2, 4], 15)}
"""Boxes, pushes and steps of the worlds of Sokoban."""
METHODS = ("grpo", "gigpo", "steppo")
SEEDS = (0, 1, 2)
ITERATIONS = {"healthy": 12, "rate": 6, "length": 12, "penalty": 12, "engine": 5, "template": 3}
"""Of the runs, by their kinds."""
TEMPLATE = "{% for message in messages %}{{ message['content'] }}<|end|>{% endfor %}"
"""Without roles, and without the header of the answer."""


@SHAPERS.register("alarms_length")
@dataclass(frozen=True)
class Length(Shaper):
    """Pays an episode for the mean length of its responses, and leaves out the task's reward."""

    coef: float = 0.1

    def __call__(self, steps: StepTable) -> StepTable:
        """Returns the steps with the pay."""
        episode = episode_codes(steps)
        return steps.with_reward(self.coef * steps.response.lengths / np.bincount(episode)[episode])


@SHAPERS.register("alarms_penalty")
@dataclass(frozen=True)
class PenaltyAlone(Shaper):
    """Charges invalid actions, and leaves out the task's reward."""

    coef: float = 0.1

    def __call__(self, steps: StepTable) -> StepTable:
        """Returns the steps with the penalty as their reward."""
        return steps.with_reward(np.where(steps.valid, 0.0, -self.coef))


@ENGINES.register("alarms_late")
class OneBehind(HFEngine):
    """Samples from the weights of the last sync but one, and says that they are the present ones."""

    @classmethod
    def from_setup(cls, setup: EngineSetup) -> OneBehind:  # type: ignore[override]
        """Returns an engine with a copy of the policy."""
        made = super().from_setup(replace(setup, model=deepcopy(setup.model)))
        assert isinstance(made, OneBehind)
        made.late = {}
        return made

    late: dict[str, Tensor]

    def sync(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Takes the weights that came with the call before."""
        fresh = {name: tensor.detach().clone() for name, tensor in weights}
        self.model.load_state_dict(self.late or fresh, strict=False)
        self.late = fresh
        super().sync((), version)


def collapses(out: Path) -> dict[str, dict[str, Any]]:
    """Returns what is laid over a healthy run, by the name of the collapse."""
    return {
        "rate": {"optim": {"lr": 9.0e-3}},
        "length": {"method": {"shapers": {"alarms_length": {}}}},
        "penalty": {"method": {"shapers": {"alarms_penalty": {}}}},
        "engine": {"rollout": {"engine": "alarms_late"}},
        "template": {"model": {"chat_template": str(out / "wrong.jinja")}},
    }


@dataclass(frozen=True, eq=False)
class Job:
    """One run; ``kind`` is ``healthy`` or a collapse."""

    kind: str
    source: str
    seed: int
    config: Mapping[str, Any]
    """Settings, but for ``iterations``."""
    out: Path

    @property
    def name(self) -> str:
        """As the display has it."""
        return f"{self.kind}, {self.source}, seed {self.seed}"

    @property
    def folder(self) -> Path:
        """Of the run."""
        return self.out / self.kind / f"{self.source}-seed-{self.seed}"

    @property
    def done(self) -> bool:
        """Whether all iterations are."""
        return trained(self.folder) >= ITERATIONS[self.kind]

    def run(self) -> int:
        """Trains in this process, on from a checkpoint if there is one; returns the exit status."""
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / "settings.yaml"
        config = {**self.config, "iterations": ITERATIONS[self.kind]}
        file.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
        resume = ["--resume"] if any((self.folder / "checkpoints").glob("iteration-*")) else []
        where = ["--output", str(self.folder.parent), "--name", self.folder.name, "--seed", str(self.seed)]
        return train(["--config", str(file), *where, *resume])


def levels(world: str, method: str, seed: int) -> dict[str, Any]:
    """Returns the settings of a run on eight levels of Sokoban, which follow from the seed.

    Args:
        world: One of :data:`WORLDS`.
        method: A recipe.
        seed: At least 0; imitation has seen no level of its world.
    """
    config = yaml.safe_load((ROOT / "benchmarks" / "alarms-sokoban.yaml").read_text(encoding="utf-8"))
    (env,) = config["envs"]
    boxes, pushes, env["max_episode_steps"] = WORLDS[world]
    env["kwargs"] |= {"level_seed": 1000 + seed, "boxes": boxes, "pushes": pushes}
    made = gymnasium.make(env["id"], disable_env_checker=True, **env["kwargs"])
    env["kwargs"]["tasks"] = [*made.unwrapped.tasks.ids(env["split"])[:8]]  # type: ignore[attr-defined]
    made.close()
    config["model"]["path"] = str(ROOT / config["model"]["path"])
    return {**config, "name": world, "seed": seed, "recipe": method}


def jobs(out: Path, seeds: Sequence[int]) -> list[Job]:
    """Returns all runs, seed by seed."""
    quick = yaml.safe_load((ROOT / "configs" / "quickstart.yaml").read_text(encoding="utf-8"))
    short = {
        "rollout": {"tasks": 4}, "optim": {"tokens_per_microbatch": 2048}, "evaluation": {"envs": []},
        "checkpoint_every": 4, "keep_checkpoints": 1, "episodes_every": 0, "report": False,
    }  # fmt: skip
    found = []
    for seed in seeds:
        level = levels("sokoban", "grpo", seed)
        for kind, wrong in collapses(out).items():
            room = {"rollout": {"sampling": {"max_tokens": 32}}} if kind == "length" else {}
            found.append(Job(kind, "sokoban", seed, merge(merge(level, room), wrong), out))
        for world, method in itertools.product(WORLDS, METHODS):
            found.append(Job("healthy", f"{world}-{method}", seed, levels(world, method, seed), out))
    for seed, (kind, wrong) in itertools.product(seeds, {"healthy": {}, **collapses(out)}.items()):
        found.append(Job(kind, "quickstart", seed, merge(merge(quick, short), wrong), out))
    return found


Lines = list[dict[str, Any]]
"""Metrics of a run."""


def raised(lines: Lines, config: AlarmConfig) -> list[RunEvent]:
    """Returns the alarms of a run."""
    alarms = Alarms(config)
    return [event for line in lines for event in alarms(line["iteration"], line)]


def tightest(name: str, runs: Iterable[Lines]) -> float | None:
    """Returns the tightest bound of a rule that raises no alarm in ``runs``; ``None``: its floor alone is silent."""
    rule, others = RULES[name], [other for other in RULES if other != name]
    above = rule.beyond == "above"
    if rule.reference and not rule.times:
        grid = np.linspace(0.0, 1.0 if above else -1.0, 201).tolist()
    else:
        grid = np.geomspace(1e-6 if above and not rule.reference else 1.0, 1e6 if above else 1e-6, 401).tolist()

    def silent(bound: float) -> bool:
        config = AlarmConfig(silent=others, rules={name: AlarmRuleConfig(bound=bound)})
        return not any(raised(lines, config) for lines in runs)

    runs = list(runs)
    place = bisect.bisect_left(range(len(grid) - 1), True, key=lambda number: silent(grid[number]))
    return None if place == 0 else float(grid[place])


def with_margin(rule: AlarmRule, bound: float) -> float:
    """Returns a bound that is half as far again from the reference, of absolute ones by a factor of two."""
    if not rule.reference:
        return bound * (2.0 if rule.beyond == "above" else 0.5)
    return bound**1.5 if rule.times else 1.5 * bound


@dataclass(frozen=True, eq=False)
class Seen:
    """A run that has been made."""

    name: str
    part: str
    """``fit``, ``test``, or the name of a collapse."""
    lines: Lines


def seen(done: Iterable[Job], healthy: Sequence[Path]) -> list[Seen]:
    """Returns the runs that were made here, and further healthy ones, of which every second is for the test."""
    halves = ("fit", "test")
    found = [Seen(path.name, halves[i % 2], read_metrics(path / "metrics.jsonl")) for i, path in enumerate(healthy)]
    for job in done:
        part = halves[job.seed % 2] if job.kind == "healthy" else job.kind
        found.append(Seen(f"{job.source}, seed {job.seed}", part, read_metrics(job.folder / "metrics.jsonl")))
    return sorted(found, key=lambda run: (run.part not in halves, run.part, run.name))


def report(runs: Sequence[Seen], console: Console) -> None:
    """Prints what was fitted, and what was found."""
    fitting = [run.lines for run in runs if run.part == "fit"]
    table = Table("rule", "fitted", "with margin", "in the table", title=f"Bounds, fitted on {len(fitting)} runs")
    for name, rule in RULES.items():
        bound = tightest(name, fitting)
        words = ["any", ""] if bound is None else [f"{bound:.3g}", f"{with_margin(rule, bound):.3g}"]
        table.add_row(name, *words, f"{rule.bound:g}")
    console.print(table)
    table = Table("part", "run", "iterations", "success", "alarms: iteration")
    for run in runs:
        rates = [line["train/success"] for line in run.lines if "train/success" in line]
        ends = f"{np.mean(rates[:2]):.2f} to {np.mean(rates[-2:]):.2f}"
        found = [f"{event.facts['alarm']} {event.iteration}" for event in raised(run.lines, AlarmConfig())]
        table.add_row(run.part, run.name, str(len(rates)), ends, ", ".join(found) or "none")
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.alarms", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "alarms", help="folder (default runs/alarms)")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS, help="(default 0 1 2)")
    parser.add_argument("--only", nargs="+", choices=ITERATIONS, help="kinds of runs to train (default all)")
    parser.add_argument("--source", help="sokoban or quickstart (default both): runs whose source begins so")
    parser.add_argument("--healthy", nargs="+", type=Path, default=(), help="folders of further healthy runs")
    parser.add_argument("--report", action="store_true", help="train nothing")
    args = parser.parse_args(arguments)
    console, out = Console(), args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    (out / "wrong.jinja").write_text(TEMPLATE, encoding="utf-8")
    every = jobs(out, args.seeds)
    chosen = [
        job for job in every if job.kind in (args.only or ITERATIONS) and job.source.startswith(args.source or "")
    ]
    left = [] if args.report else [job for job in chosen if not job.done]
    for number, job in enumerate(left, start=1):
        console.print(f"{job.name}: run {number} of {len(left)}")
        if status := job.run():
            return status
    report(seen([job for job in every if job.done], args.healthy), console)
    return 0


if __name__ == "__main__":
    sys.exit(main())
