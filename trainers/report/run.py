"""Reads a run folder for the report."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import orjson
import yaml

from envsuite.core.errors import DataError
from trainers.report.metrics import read_metrics
from trainers.report.stats import EvalResult, first_and_last
from trainers.steps.parquet import episode_files

_FILE = re.compile(r"(iteration|eval)-(\d+)(?:-(\d+))?")
"""Episode files: of a training iteration, or of an evaluation (of several environments: numbered from the second)."""


@dataclass(frozen=True)
class RunData:
    """The content of a run folder, without episodes."""

    folder: Path
    config: dict[str, Any]
    config_text: str
    """``config.yaml`` as it was written."""
    metrics: list[dict[str, Any]]
    """Lines of ``metrics.jsonl``."""
    summary: dict[str, Any]
    """``summary.json``; empty while the run is in progress."""
    evaluations: tuple[EvalResult, ...]
    """Evaluations, in order."""

    @classmethod
    def load(cls, folder: Path) -> RunData:
        """Reads ``folder``; a run in progress, or a killed one, need not have ``summary.json``.

        Raises:
            DataError: The folder is not a run folder, or a file of it is damaged.
        """
        folder = Path(folder)
        if not (folder / "config.yaml").is_file():
            raise DataError(f"{folder}: not a run folder (it has no config.yaml)")
        text = _text(folder / "config.yaml")
        try:
            config = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise DataError(f"{folder / 'config.yaml'}: not YAML ({error})") from error
        if not isinstance(config, dict):
            raise DataError(f"{folder / 'config.yaml'}: not a configuration (no keys)")
        path = folder / "summary.json"
        try:
            summary: Any = orjson.loads(_text(path)) if path.exists() else {}
            evaluations = tuple(EvalResult.from_json(body) for body in summary.get("evaluations", []))
        except (orjson.JSONDecodeError, DataError, AttributeError, TypeError) as error:
            raise DataError(f"{path}: not a run summary ({error})") from error
        path = folder / "metrics.jsonl"
        return cls(folder, config, text, read_metrics(path) if path.exists() else [], summary, evaluations)

    @property
    def name(self) -> str:
        """The run's name."""
        return str(self.config.get("name") or self.folder.resolve().name)

    def state(self) -> str:
        """Returns one line that says whether the run has finished, after how many iterations and how long."""
        iterations = max((record["iteration"] for record in self.metrics), default=0)
        total = self.config.get("iterations", iterations)
        is_finished = self.evaluations[-1].name == "after" if self.evaluations else iterations >= total
        seconds = self.summary.get("wall_s")
        took = "" if seconds is None else f" in {seconds / 60:,.0f} min" if seconds >= 120 else f" in {seconds:.0f} s"
        return f"{'Finished' if is_finished else 'Not finished'}: {iterations} of {total} iterations{took}."

    def pairs(self) -> list[tuple[EvalResult, EvalResult]]:
        """Returns the first and last evaluation of each environment and split with at least two."""
        return [(first, last) for first, last in first_and_last(self.evaluations) if first is not last]

    def series(self, name: str) -> tuple[list[int], list[float]]:
        """Returns iterations and values of one metric, where it is a number."""
        points = [(record["iteration"], record[name]) for record in self.metrics if _is_number(record.get(name))]
        return [i for i, _ in points], [float(value) for _, value in points]

    def metric_names(self) -> list[str]:
        """Returns the names that occur, in order of first occurrence."""
        return list(dict.fromkeys(name for record in self.metrics for name in record if name != "iteration"))

    def evaluation_points(self) -> list[tuple[int, float, float, float]]:
        """Returns (iteration, success, low, high) of each evaluation in the metrics, with its 95 % bounds."""
        lines = [line for line in self.metrics if _is_number(line.get("eval/success"))]
        return [(line["iteration"], line["eval/success"], line["eval/low"], line["eval/high"]) for line in lines]

    def episode_files(self) -> list[tuple[str, Path]]:
        """Returns label and path of each file of episodes: evaluations first, then iterations in order."""
        files = sorted(episode_files(self.folder / "episodes"), key=lambda path: _order(path.stem))
        return [(_label(path.stem), path) for path in files]

    def times(self) -> list[tuple[str, float]]:
        """Returns the seconds of the run by disjoint parts, the longest first."""
        totals = {name: sum(self.series(f"time/{name}")[1]) for name in (*PARTS, "total")}
        parts = {label: totals[name] for name, label in PARTS.items()}
        # Where every evaluation's line also has the iteration's total time, that time includes the evaluation.
        lines = [record for record in self.metrics if "time/eval" in record]
        in_total = lines and all("time/total" in record for record in lines)
        seconds = totals["total"] + (0.0 if in_total else totals["eval"])
        parts["rest"] += max(0.0, seconds - sum(parts.values()))
        return sorted(((label, s) for label, s in parts.items() if s > 0), key=lambda item: -item[1])


PARTS = {
    "engine": "generation",
    "env": "environments",
    "codec": "prompts and parsing",
    "longest_episode": "longest episodes",
    "estimator": "advantages",
    "update": "update",
    "sync": "weight sync",
    "other_processes": "other processes",
    "eval": "evaluation",
    "checkpoint": "checkpoints",
    "log": "logging",
    "rest": "rest",
}
"""Disjoint metrics ``time/…``, and their names in the report."""
_COLOURS = "#0072B2 #009E73 #56B4E9 #E69F00 #A050F0 #D55E00 #5000F0 #604060 #F0D090 #803000 #F00050 #C0D0D0"
PHASE_COLOURS = dict(zip(PARTS.values(), _COLOURS.split(), strict=True))
"""Colour of each part in every chart and page; with every common kind of colour blindness all differ."""


def window_of(length: int) -> int:
    """Returns the number of iterations in the moving mean of a curve of so many."""
    return min(10, max(1, length // 4))


def moving_mean(values: Sequence[float], window: int) -> list[float]:
    """Returns the mean of each value and the ``window - 1`` before it (fewer at the start)."""
    return [sum(part) / len(part) for i in range(len(values)) if (part := values[max(0, i + 1 - window) : i + 1])]


def flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields dotted keys and values of nested settings."""
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def iteration_of(path: Path) -> int | None:
    """Returns the iteration whose training episodes a file has; ``None`` for an evaluation's and for other files."""
    match = _FILE.fullmatch(path.stem)
    return int(match[2]) if match and match[1] == "iteration" else None


def _order(stem: str) -> tuple[int, int, str]:
    match = _FILE.fullmatch(stem)
    return (int(match[1] == "iteration"), int(match[2]), stem) if match else (0, 0, stem)


def _label(stem: str) -> str:
    match = _FILE.fullmatch(stem)
    if not match:
        return stem
    label = f"iteration {int(match[2])}" if match[1] == "iteration" else f"evaluation at iteration {int(match[2])}"
    return f"{label}, environment {int(match[3]) + 1}" if match[3] else label


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
