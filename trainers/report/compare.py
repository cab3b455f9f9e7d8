"""One page that compares runs: results on the same tasks, curves, time, settings that differ, episodes side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from envsuite.core.errors import UsageError
from envsuite.evaluation.groups import natural
from envsuite.evaluation.statistics import paired_permutation, paired_rates_interval
from trainers.report.html import file_entry, page, script_json, setting_text, write_page
from trainers.report.metrics import METRICS, is_share
from trainers.report.pack import STEP_FIELDS, pack
from trainers.report.run import PHASE_COLOURS, RunData, flat
from trainers.report.stats import EvalResult, by_stratum, first_and_last, interval
from trainers.steps.parquet import read_table

SCRIPTS = ("charts.js", "episodes.js", "compare.js")
UNCOMPARED = ("name", "output")
"""Settings that differ between any two runs."""


@dataclass(frozen=True)
class RunEvaluation:
    """The last evaluation of a run in one of its environments."""

    run: int
    """Number of the run."""
    result: EvalResult
    budget: int | None
    """Most steps of an episode; ``None`` where it is the environment's own."""
    arguments: Mapping[str, Any]
    """Arguments of the environment."""
    file: Path | None
    """Its episodes; ``None`` where they are not saved."""
    repeats: int = 1
    """Episodes of each task."""

    def conditions(self) -> dict[str, Any]:
        """Returns what must be equal for two results to stand in one table, by the words for it."""
        result = self.result
        episodes = result.all.n + result.failed + result.unanswered  # also those in no rate were to be played
        return {
            "environment": result.env_id,
            "split": result.split,
            "task set": result.manifest_hash,
            "step budget": self.budget,
            "environment's arguments": dict(sorted(self.arguments.items())),
            "tasks": episodes // self.repeats,
            "episodes of a task": self.repeats,
        }


def last_evaluations(number: int, run: RunData) -> list[RunEvaluation]:
    """Returns the last evaluation of a run in each of its environments, in the order of its settings."""
    section = run.config.get("evaluation")
    envs = (section.get("envs") if isinstance(section, Mapping) else None) or []
    repeats = (section.get("repeats") if isinstance(section, Mapping) else None) or 1
    evaluations = []
    for place, (_, result) in enumerate(first_and_last(run.evaluations)):
        env = envs[place] if place < len(envs) and envs[place].get("id") == result.env_id else {}
        stem = f"episodes/eval-?????{f'-{place}' if place else ''}"
        shards = (str(path).partition(".0-of-")[0] for path in run.folder.glob(f"{stem}.0-of-*.parquet"))
        files = [*run.folder.glob(f"{stem}.parquet"), *(Path(f"{path}.parquet") for path in shards)]
        budget, arguments = env.get("max_episode_steps"), env.get("kwargs") or {}
        evaluations.append(RunEvaluation(number, result, budget, arguments, max(files, default=None), repeats))
    return evaluations


class RunComparison:
    """Several runs, and which of their evaluations can be compared.

    Args:
        runs: At least two.

    Raises:
        UsageError: There are fewer, or one is there twice.
    """

    def __init__(self, runs: Sequence[RunData]) -> None:
        if len(runs) < 2:
            raise UsageError("a comparison takes at least two runs")
        folders = [run.folder.resolve() for run in runs]
        if len(set(folders)) < len(folders):
            folder = next(folder for folder in folders if folders.count(folder) > 1)
            raise UsageError(f"{folder} is there twice; name different runs")
        self.runs = list(runs)
        names = [run.name for run in runs]
        self.names = [run.name if names.count(run.name) == 1 else f"{run.name} ({run.folder})" for run in runs]
        self.evaluations = [result for number, run in enumerate(runs) for result in last_evaluations(number, run)]
        self.groups: list[list[RunEvaluation]] = []
        """Evaluations under equal conditions: one table each."""
        for evaluation in self.evaluations:
            group = next((group for group in self.groups if group[0].conditions() == evaluation.conditions()), None)
            if group is None:
                self.groups.append(group := [])
            group.append(evaluation)

    def warnings(self) -> list[str]:
        """Returns why evaluations in the same environment are not in one table, naming the runs and what differs."""
        messages = []
        for number, first in enumerate(self.groups):
            for second in self.groups[number + 1 :]:
                conditions, other_conditions = first[0].conditions(), second[0].conditions()
                if conditions["environment"] != other_conditions["environment"]:
                    continue
                differences = "; ".join(
                    f"{key} {_format_condition(conditions[key])} and {_format_condition(other_conditions[key])}"
                    for key in conditions
                    if conditions[key] != other_conditions[key]
                )
                messages.append(
                    f"{conditions['environment']}: {self._names(first)} and {self._names(second)} are not comparable: "
                    f"{differences}"
                )
        runs = {evaluation.run for evaluation in self.evaluations}
        return messages + [f"{name} has no evaluation" for number, name in enumerate(self.names) if number not in runs]

    def _names(self, group: Sequence[RunEvaluation]) -> str:
        return ", ".join(dict.fromkeys(self.names[evaluation.run] for evaluation in group))

    def settings(self) -> list[tuple[str, list[str]]]:
        """Returns the settings that differ: the dotted key, and its value in each run."""
        flats = [dict(flat(run.config)) for run in self.runs]
        keys = list(dict.fromkeys(key for settings in flats for key in settings if key not in UNCOMPARED))
        rows = [(key, [setting_text(settings[key]) if key in settings else "–" for settings in flats]) for key in keys]  # noqa: RUF001
        return [(key, values) for key, values in rows if len(set(values)) > 1]

    def tables(self) -> list[dict[str, Any]]:
        """Returns a table for each group of comparable evaluations."""
        return [self._table(group) for group in self.groups]

    def _table(self, group: Sequence[RunEvaluation]) -> dict[str, Any]:
        conditions, results = group[0].conditions(), [evaluation.result for evaluation in group]
        run_tasks = {evaluation.run: outcomes(evaluation.file) for evaluation in group if evaluation.file is not None}
        pairs = [self._pair(group[0].run, evaluation.run, run_tasks) for evaluation in group[1:]]
        return {
            "title": f"{conditions['environment']}, split {conditions['split']}",
            "note": f"task set {conditions['task set'][:12]}, "
            f"step budget {_format_condition(conditions['step budget'])}",
            "runs": [evaluation.run for evaluation in group],
            "evaluations": [f"{result.name}, temperature {result.temperature:g}" for result in results],
            "results": [result.to_json() for result in results],
            "rows": [[name, n, *map(interval, strata)] for name, n, strata in by_stratum(results)],
            "pairs": pairs,
            "tasks": _tasks(group, run_tasks),
        }

    def _pair(self, first: int, second: int, run_tasks: Mapping[int, Mapping[str, ComparedTask]]) -> dict[str, Any]:
        """Compares the evaluations of two runs, by their numbers."""
        names = {"first": self.names[first], "second": self.names[second]}
        if missing := [self.names[run] for run in (first, second) if run not in run_tasks]:
            return {**names, "problem": f"the episodes of {' and '.join(missing)} are not saved"}
        return {**names, **compare_outcomes(run_tasks[first], run_tasks[second])}

    def times(self) -> list[dict[str, Any]]:
        """Returns seconds by phase and tokens of each run."""
        rows = []
        for run in self.runs:
            iterations = len(run.series("time/total")[1])
            rates = run.series("rate/tokens")[1]
            rows.append({
                "iterations": iterations,
                "phases": dict(run.times()),
                "sampled": max(run.series("train/tokens_total")[1], default=None),
                "trained": sum(run.series("train/tokens")[1]) or None,
                "rate": sum(rates) / len(rates) if rates else None,
                "wall_s": run.summary.get("wall_s"),
            })  # fmt: skip
        return rows

    def data(self, files: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Returns the page's data besides the episodes.

        Args:
            files: What the page knows of each file of episodes before it is unpacked.
        """
        metrics = list(dict.fromkeys(name for run in self.runs for name in run.metric_names()))
        return {
            "names": self.names,
            "warnings": self.warnings(),
            "tables": self.tables(),
            "settings": self.settings(),
            "metrics": {
                name: [dict(zip("xy", run.series(name), strict=True)) for run in self.runs] for name in metrics
            },
            "descriptions": {name: METRICS[name] for name in metrics if name in METRICS},
            "shares": [name for name in metrics if is_share(name)],
            "evaluation_points": [run.evaluation_points() for run in self.runs],
            "times": self.times(),
            "phase_colours": PHASE_COLOURS,
            "step_fields": STEP_FIELDS,
            "files": list(files),
        }


@dataclass(frozen=True)
class ComparedTask:
    """The episodes of one task in an evaluation."""

    episodes: tuple[int, ...]
    """Their ids, without those that failed, which say nothing of the policy."""
    solved: int
    steps: float
    """Mean length."""
    family: str

    @property
    def rate(self) -> float:
        """Share of the episodes that solved the task."""
        return self.solved / len(self.episodes)


def outcomes(file: Path) -> dict[str, ComparedTask]:
    """Returns the tasks of an evaluation's file; episodes that failed are left out, as in every rate.

    Raises:
        DataError: The file is damaged.
    """
    names = ["episode_id", "task_id", "task_type", "success", "error", "context_truncated", "t"]
    episodes: dict[str, dict[int, tuple[bool, int]]] = {}
    families: dict[str, str] = {}
    for row in read_table(file, names).to_pylist():
        if row["error"] is None or row["context_truncated"]:
            families[row["task_id"]] = row["task_type"]
            episodes.setdefault(row["task_id"], {})[row["episode_id"]] = (row["success"], row["t"] + 1)
    return {
        task: ComparedTask(
            tuple(task_episodes),
            sum(success for success, _ in task_episodes.values()),
            sum(steps for _, steps in task_episodes.values()) / len(task_episodes),
            families[task],
        )
        for task, task_episodes in episodes.items()
    }


def compare_outcomes(first: Mapping[str, ComparedTask], second: Mapping[str, ComparedTask]) -> dict[str, Any]:
    """Returns how two evaluations differ on the tasks that both played.

    Of tasks with several episodes the rates are compared. ``interval`` is the 95 % interval of the difference, ``p``
    the p-value of the permutation by task.
    """
    tasks = [task for task in first if task in second]
    if not tasks:
        return {"tasks": 0}
    rates = np.array([[side[task].rate for task in tasks] for side in (first, second)])
    often = [np.mean([len(side[task].episodes) for task in tasks]) for side in (first, second)]
    bounds = paired_rates_interval(*((rates[side] * count, count) for side, count in enumerate(often)))
    gaps = rates[1] - rates[0]
    return {
        "tasks": len(tasks),
        "unpaired": len({*first, *second}) - len(tasks),
        "first_better": int(sum(gaps < 0)),
        "second_better": int(sum(gaps > 0)),
        "difference": gaps.mean(),
        "interval": [*map(float, bounds)],
        "p": paired_permutation(gaps),
    }


def _tasks(group: Sequence[RunEvaluation], run_tasks: Mapping[int, Mapping[str, ComparedTask]]) -> list[dict[str, Any]]:
    """The tasks of comparable evaluations: of each run the episodes, how many were solved, and their mean length."""
    task_maps = [run_tasks.get(evaluation.run, {}) for evaluation in group]
    rows = []
    for task in sorted({task for tasks in task_maps for task in tasks}, key=natural):
        own = [tasks.get(task) for tasks in task_maps]
        family = next(outcome.family for outcome in own if outcome is not None)
        cells = [None if outcome is None else [outcome.episodes, outcome.solved, outcome.steps] for outcome in own]
        rows.append({"task": task, "family": family, "cells": cells})
    return rows


def _format_condition(value: Any) -> str:
    return "the environment's own" if value is None else value[:12] if isinstance(value, str) else setting_text(value)


def write_comparison(comparison: RunComparison, out: Path) -> Path:
    """Writes the page to ``out``, replacing an old one atomically.

    Raises:
        DataError: A file of episodes is damaged, or the page cannot be written.
    """
    return write_page(out, page("compare.html", " · ".join(comparison.names), _data(comparison), SCRIPTS))


def _data(comparison: RunComparison) -> Iterator[str]:
    files: list[dict[str, Any]] = []
    for number, group in enumerate(comparison.groups):
        for evaluation in group:
            if evaluation.file is None:
                continue
            bundle = pack(evaluation.file)
            yield f'<script type="text/plain" id="episodes-{len(files)}">{bundle.payload}</script>\n'
            entry = file_entry(comparison.names[evaluation.run], evaluation.file, bundle, False)
            files.append({**entry, "run": evaluation.run, "group": number})
    yield f'<script type="application/json" id="data">{script_json(comparison.data(files))}</script>\n'
