"""``python -m research.screen``: what reinforcement learning adds to imitation, environment by environment.

    python -m research.screen play sokoban --results research/screen.jsonl
    python -m research.screen table --results research/screen.jsonl

``research/screen.yaml``, or the file of ``--plans``, has for each environment its configuration, its base model, and
what each arm changes: ``base`` is the imitated model, ``imitation`` imitates more of the same players, ``solved`` more
of their solved episodes alone. All other arms play as many episodes. A run that ends is a line of the results; those
that are there are not run again, and one that was interrupted goes on. ``--dev`` measures on the split on which rates
and budgets are chosen.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from envsuite.core.errors import DataError, EnvsuiteError
from envsuite.evaluation.statistics import (
    clustered_wilson,
    paired_permutation,
    paired_rates_interval,
    student_t95,
)
from trainers.steps.parquet import read_episodes

ROOT = Path(__file__).resolve().parents[1]
ARMS, RESULTS = ROOT / "research" / "screen.yaml", ROOT / "research" / "screen.jsonl"
BASE = "base"


@dataclass(frozen=True)
class Outcome:
    """One arm's run: its held-out episodes, one for each task, in the order of the tasks' ids."""

    environment: str
    arm: str
    seed: int
    split: str
    solved: str
    """``1`` or ``0`` for each task."""
    valid: str
    """``1`` where every action of the episode was valid."""
    seconds: float
    """CPU time of the arm's training and evaluation; of the base model, of its imitation."""
    commit: str


def read_outcomes(path: Path) -> list[Outcome]:
    """The lines of the results; none where there is no file."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [Outcome(**json.loads(line)) for line in lines]


def run_command(folder: Path, *words: str) -> float:
    """Runs a command of ``envsuite`` in a folder, on one thread; returns its CPU seconds.

    Raises:
        DataError: It failed.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    line, environment = [sys.executable, "-m", "envsuite.cli", *words], {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(line, check=False, env=environment, cwd=folder, capture_output=True, text=True)
    if ended.returncode:
        raise DataError(f"{' '.join(words)}: {ended.stderr[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


class Screen:
    """The runs of one environment.

    Args:
        name: Its name in ``screen.yaml``.
        folder: Where models and runs are kept.
        results: File of the lines.
        dev: Whether the split for choices is measured, in place of the configuration's last one.
        file: The plans.
    """

    def __init__(self, name: str, folder: Path, results: Path, dev: bool, file: Path) -> None:
        plans = yaml.safe_load(file.read_text(encoding="utf-8"))
        if name not in plans:
            raise DataError(f"{file.name} has no {name}; it has {', '.join(plans)}")
        self.name, self.plan, self.folder, self.results = name, plans[name], folder, results
        self.home = ROOT / self.plan.get("folder", "")
        self.settings = yaml.safe_load((self.home / self.plan["config"]).read_text(encoding="utf-8"))
        self.measured = {**self.settings["evaluation"]["envs"][-1], **(self.plan["dev"] if dev else {})}
        self.split = self.measured["split"]
        self.commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip()

    def play(self, arms: Sequence[str], seeds: Sequence[int]) -> None:
        """Plays what is missing of the arms, one seed after the other."""
        known = {(o.arm, o.seed, o.split) for o in read_outcomes(self.results) if o.environment == self.name}
        for seed, arm in itertools.product(seeds, arms or (BASE, *self.plan["imitations"], *self.plan["arms"])):
            if (arm, seed, self.split) not in known:
                outcome = self.outcome(arm, seed)
                with self.results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(outcome)) + "\n")
                rate = 100 * outcome.solved.count("1") / len(outcome.solved)
                print(f"{self.name} {arm} seed {seed}, {self.split}: {rate:.1f} %, {outcome.seconds:.0f} s", flush=True)

    def outcome(self, arm: str, seed: int) -> Outcome:
        """Trains an arm and measures it."""
        base, seconds = self.imitate(BASE, 0, {})
        changes: dict[str, Any] = {"name": f"{self.name}-{arm}-{seed}-{self.split}", "output": str(self.folder)}
        changes |= {"seed": seed, "report": False, "model": {"path": str(base)}}
        changes["evaluation"] = {"envs": [self.measured], "repeats": 1, "episodes": self.plan.get("episodes")}
        more = self.plan["imitations"].get(arm)
        if more:
            imitated, seconds = self.imitate(f"{arm}-{seed}", seed, {"start": str(base), **more})
            changes["model"] = {"path": str(imitated)}
        if more or arm == BASE:
            changes["iterations"] = 0
        else:
            changes |= {key: value for key, value in self.plan["arms"][arm].items() if key != "method"}
        run = self.folder / changes["name"]
        with tempfile.TemporaryDirectory() as folder:
            files = [self.home / self.plan["config"], Path(folder) / "changes.yaml"]
            method = self.plan["arms"].get(arm, {}).get("method")
            if method is not None:  # in place of the configuration's, so that nothing of another method is left
                files = [Path(folder) / "run.yaml", files[1]]
                files[0].write_text(yaml.safe_dump({**self.settings, "method": method}), encoding="utf-8")
            files[1].write_text(yaml.safe_dump(changes), encoding="utf-8")
            resumed = ["--resume"] if (run / "checkpoints").exists() else []
            words = [word for file in files for word in ("--config", str(file))]
            spent = run_command(self.home, "train", *words, *resumed)
        last = sorted((run / "episodes").glob("eval-*.parquet"))[-1]
        episodes = sorted(read_episodes(last), key=lambda episode: episode.task_id)
        solved = "".join("01"[episode.success] for episode in episodes)
        valid = "".join("01"[all(step.valid for step in episode.steps)] for episode in episodes)
        total = (seconds if more or arm == BASE else 0.0) + spent
        return Outcome(self.name, arm, seed, self.split, solved, valid, round(total, 1), self.commit)

    def imitate(self, name: str, seed: int, changes: dict[str, Any]) -> tuple[Path, float]:
        """Trains a model by imitation, unless it is there; returns it and the CPU seconds that it took."""
        model = self.folder / f"{self.name}-{name}"
        took = model.with_suffix(".seconds")
        if not took.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            settings = yaml.safe_load((self.home / self.plan["imitate"]).read_text(encoding="utf-8"))
            file = self.folder / f"{self.name}-{name}.yaml"
            file.write_text(yaml.safe_dump({**settings, **changes, "seed": seed, "output": str(model)}))
            took.write_text(str(run_command(self.home, "imitate", "--config", str(file))))
        return model, float(took.read_text())


COLUMNS = (
    "environment", "arm", "seeds", "success, %", "by seed", "all valid, %", "CPU s",
    "over `rft`", "p, by task", "over seeds",
)  # fmt: skip


def table(outcomes: Iterable[Outcome], reference: str = "rft") -> str:
    """The table in Markdown: success with intervals clustered by task, and each arm beside another on its tasks."""
    heads = [name.replace("rft", reference) for name in COLUMNS]
    rows, groups = [heads, ["---"] * len(heads)], grouped(outcomes)
    for (name, split, arm), group in groups.items():
        solved = bits(group, "solved")
        low, high = clustered_wilson([(int(n), len(group)) for n in solved.sum(0)])
        rows.append([
            f"{name}, {split}", f"`{arm}`", str(len(group)),
            f"{100 * solved.mean():.1f} [{100 * low:.1f}, {100 * high:.1f}]",
            ", ".join(f"{100 * rate:.1f}" for rate in solved.mean(1)),
            f"{100 * bits(group, 'valid').mean():.1f}", f"{np.mean([o.seconds for o in group]):.0f}",
            *beside(solved, groups.get((name, split, reference))),
        ])  # fmt: skip
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def grouped(outcomes: Iterable[Outcome]) -> dict[tuple[str, str, str], list[Outcome]]:
    """The runs of each environment, split and arm, by seed."""
    groups: dict[tuple[str, str, str], list[Outcome]] = {}
    for outcome in sorted(outcomes, key=lambda o: o.seed):
        groups.setdefault((outcome.environment, outcome.split, outcome.arm), []).append(outcome)
    return groups


def bits(group: Sequence[Outcome], column: str) -> NDArray[np.int64]:
    """Episodes as 0 and 1, (seeds, tasks)."""
    return np.array([[int(bit) for bit in getattr(outcome, column)] for outcome in group])


def beside(solved: NDArray[np.int64], reference: Sequence[Outcome] | None) -> tuple[str, str, str]:
    """Difference from the reference, its interval and p by task, and Student's interval over pairs of seeds."""
    other = None if reference is None else bits(reference, "solved")
    if other is None or solved.shape != other.shape or (solved == other).all():
        return "", "", ""
    first, second = ((runs.sum(0), np.full(runs.shape[1], len(runs))) for runs in (other, solved))
    low, high = paired_rates_interval(first, second)
    p_value = paired_permutation(solved.mean(0) - other.mean(0), resamples=1_000_000)
    gaps = 100 * (solved.mean(1) - other.mean(1))
    difference = f"{gaps.mean():+.1f} [{100 * float(low):+.1f}, {100 * float(high):+.1f}]"
    if len(gaps) == 1:
        return difference, f"{p_value:.2g}", ""
    half = student_t95(len(gaps) - 1) * gaps.std(ddof=1) / len(gaps) ** 0.5
    return difference, f"{p_value:.2g}", f"[{gaps.mean() - half:+.1f}, {gaps.mean() + half:+.1f}]"


def main(arguments: Sequence[str] | None = None) -> int:
    """Plays, or prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", choices=["play", "table"])
    parser.add_argument("environments", nargs="*", metavar="NAME", help="of the plans")
    parser.add_argument("--arms", nargs="+", default=(), help="(default: all)")
    parser.add_argument("--seeds", nargs="+", type=int, default=range(5), help="(default: 0 to 4)")
    parser.add_argument("--plans", type=Path, default=ARMS, help="what is played (default: %(default)s)")
    parser.add_argument("--over", default="rft", metavar="ARM", help="arm that the table compares with (default: rft)")
    parser.add_argument("--dev", action="store_true", help="measure on the split for choices")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "screen", help="(default: %(default)s)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="(default: %(default)s)")
    given = parser.parse_args(arguments)
    try:
        for name in given.environments if given.job == "play" else ():
            Screen(name, given.runs.resolve(), given.results, given.dev, given.plans).play(given.arms, given.seeds)
    except EnvsuiteError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    print(table(read_outcomes(given.results), given.over))
    return 0


if __name__ == "__main__":
    sys.exit(main())
