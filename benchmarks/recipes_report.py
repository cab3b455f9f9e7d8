"""Figure and table of what ``benchmarks.recipes`` has trained."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from benchmarks.recipes_rows import Row
from benchmarks.tables import Table
from envsuite.core.errors import DataError, UsageError
from envsuite.evaluation.plots import figure
from envsuite.evaluation.sheets import percent, rate
from envsuite.evaluation.statistics import wilson
from trainers.report.metrics import read_metrics
from trainers.report.plots import BLUE, GREY
from trainers.report.stats import EvalResult

EVALUATION = "evaluation.json"
BASE = "base"
REFERENCE = "grpo"
"""The row that others are compared with."""
COLUMNS = 5
"""Panels beside each other."""
NOTE = (
    "Success in percent on {goals} held-out goals, temperature 1: mean over the seeds, 95 % Wilson interval of all "
    "their episodes together, and least and greatest of the seeds. Difference in points, with Newcombe's 95 % "
    "interval; * where that leaves out 0 and every seed lies on the same side. Intervals are of the sampled episodes; "
    "how far seeds are apart is said beside. "
    "CPU seconds per iteration, means over {iterations} iterations and the seeds. Cost: credit and update for "
    "1,000 sampled response tokens, as a multiple of {reference}'s."
)


@dataclass(frozen=True)
class Run:
    """What a finished run left."""

    seed: int
    success: NDArray[np.float64]
    """Share of the training episodes that solved their task, shape (iterations,)."""
    cpu: Mapping[str, float]
    """CPU seconds per iteration: rollout, estimator, update."""
    tokens: float
    """Response tokens sampled per iteration."""
    final: EvalResult

    @property
    def cost(self) -> float:
        """CPU seconds of credit and update for 1,000 response tokens."""
        return 1e3 * (self.cpu["estimator"] + self.cpu["update"]) / self.tokens


PARTS = ("rollout", "estimator", "update")


def _iterations(path: Path) -> list[dict[str, Any]]:
    return [record for record in read_metrics(path) if "train/success" in record]


def evaluation(folder: Path) -> EvalResult:
    """What :mod:`envsuite eval model` wrote.

    Raises:
        DataError: The file is missing or damaged.
    """
    path = folder / EVALUATION
    try:
        return EvalResult.from_json(orjson.loads(path.read_bytes())[0])
    except (OSError, orjson.JSONDecodeError, IndexError, KeyError) as error:
        raise DataError(f"{path}: not the results of an evaluation ({error})") from error


def finished(folder: Path) -> dict[int, Path]:
    """The folders of a row's runs that have an evaluation, by seed."""
    found = {int(path.parent.name.removeprefix("seed-")): path.parent for path in folder.glob(f"seed-*/{EVALUATION}")}
    return dict(sorted(found.items()))


def read_run(folder: Path) -> Run:
    """Read a finished run.

    Raises:
        DataError: A file of it is missing or damaged.
    """
    records = _iterations(folder / "metrics.jsonl")
    if not records or any(f"cpu/{part}" not in record for record in records for part in PARTS):
        raise DataError(f"{folder / 'metrics.jsonl'}: has no iterations with CPU seconds")
    cpu = {part: float(np.mean([record[f"cpu/{part}"] for record in records])) for part in PARTS}
    tokens = records[-1]["train/tokens_total"] / len(records)
    success = np.array([record["train/success"] for record in records])
    return Run(int(folder.name.removeprefix("seed-")), success, cpu, tokens, evaluation(folder))


def write_report(out: Path, rows: Sequence[Row], picture: Path) -> list[Path]:
    """Write ``recipes.md`` and ``recipes.tex`` to ``out``, and the figure; returns the files.

    Args:
        out: Folder of the benchmark.
        rows: What may be there, in the order of table and figure.
        picture: File of the figure.

    Raises:
        UsageError: No run is finished.
        DataError: A file of a finished run is damaged.
    """
    runs = {row.name: [read_run(path) for path in finished(out / row.folder).values()] for row in rows}
    runs = {name: found for name, found in runs.items() if found}
    if not runs:
        raise UsageError(f"{out}: no run is finished; make some with python -m benchmarks.recipes --out {out}")
    table = make_table(runs, [evaluation(path) for path in finished(out / BASE).values()])
    (out / "recipes.md").write_text(table.markdown(), encoding="utf-8")
    (out / "recipes.tex").write_text(table.latex(), encoding="utf-8")
    down = math.ceil(len(runs) / COLUMNS)
    with figure(picture, 2.3 * COLUMNS, 1.75 * down + 0.5, size=8) as drawn:
        _panels(runs, drawn, down)
    return [out / "recipes.md", out / "recipes.tex", picture]


def make_table(runs: Mapping[str, Sequence[Run]], base: Sequence[EvalResult]) -> Table:
    """Final success and costs of each row; the base model first."""
    reference = runs.get(REFERENCE)
    cost = None if reference is None else np.mean([run.cost for run in reference])
    lines: list[tuple[str, ...]] = [("base model", *_success(base), *[_NONE] * 5)] if base else []
    for name, found in runs.items():
        final = [run.final for run in found]
        apart = _NONE if reference is None or name == REFERENCE else _difference(reference, found)
        seconds = [f"{np.mean([run.cpu[part] for run in found]):.2f}" for part in PARTS]
        relative = _NONE if cost is None else f"{np.mean([run.cost for run in found]) / cost:.2f}"
        lines.append((name, *_success(final), apart, *seconds, relative))
    heads = ("recipe", "seeds", "success %", "least, greatest", f"over {REFERENCE}")
    costs = ("rollout s", "credit s", "update s", "cost")
    some = next(iter(runs.values()))[0]
    note = NOTE.format(goals=some.final.all.n, iterations=len(some.success), reference=REFERENCE)
    return Table("recipes", "TextCraft with every recipe", note, (*heads, *costs), tuple(lines), "benchmark")


_NONE = "–"  # noqa: RUF001


def _success(results: Sequence[EvalResult]) -> tuple[str, str, str]:
    """Number of seeds, success with its interval, least and greatest of the seeds."""
    shares = [result.all.success for result in results]
    pooled = rate(float(np.mean(shares)), *_pooled(results)[1:], None)
    return str(len(results)), pooled, f"{percent(min(shares))}, {percent(max(shares))}"


def _pooled(results: Sequence[EvalResult]) -> tuple[float, float, float]:
    """Share of all episodes together that succeeded, and its interval."""
    successes, n = sum(result.all.successes for result in results), sum(result.all.n for result in results)
    return successes / n, *wilson(successes, n)


def newcombe(one: tuple[float, float, float], two: tuple[float, float, float]) -> tuple[float, float]:
    """Interval of the difference ``two - one`` of independent shares (Newcombe 1998, method 10).

    Args:
        one: A share, and its Wilson interval.
        two: Another.
    """
    difference = two[0] - one[0]
    down = math.hypot(two[0] - two[1], one[2] - one[0])
    up = math.hypot(two[2] - two[0], one[0] - one[1])
    return difference - down, difference + up


def _difference(reference: Sequence[Run], found: Sequence[Run]) -> str:
    one, two = (_pooled([run.final for run in runs]) for runs in (reference, found))
    low, high = newcombe(one, two)
    before = {run.seed: run.final.all.success for run in reference}
    by_seed = [run.final.all.success - before[run.seed] for run in found if run.seed in before]
    agree = by_seed and (min(by_seed) > 0 or max(by_seed) < 0)
    mark = "*" if agree and (low > 0 or high < 0) else ""
    return f"{100 * (two[0] - one[0]):+.1f}{mark} [{100 * low:+.1f}, {100 * high:+.1f}]"


def _panels(runs: Mapping[str, Sequence[Run]], drawn: Figure, down: int) -> None:
    axes = drawn.subplots(down, COLUMNS, sharex=True, sharey=True, squeeze=False)
    flat: list[Axes] = list(axes.ravel())
    for axis, (name, found) in zip(flat, runs.items(), strict=False):
        if name != REFERENCE and REFERENCE in runs:
            curves = _curves(runs[REFERENCE])
            axis.plot(np.arange(1, curves.shape[1] + 1), curves.mean(0), color=GREY, linewidth=1.2, label=REFERENCE)
        curves = _curves(found)
        at = np.arange(1, curves.shape[1] + 1)
        axis.fill_between(at, curves.min(0), curves.max(0), color=BLUE, alpha=0.2, linewidth=0)
        axis.plot(at, curves.mean(0), color=BLUE, linewidth=1.6)
        axis.set_title(name)
        axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axis.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10], nbins=5))
    for axis in flat[len(runs) :]:
        axis.set_visible(False)
    for axis in flat[: len(runs)][-COLUMNS:]:
        axis.set_xlabel("iteration")
        axis.tick_params(labelbottom=True)
    drawn.supylabel("training success: mean of the seeds, least to greatest; grey: " + REFERENCE, fontsize=9)


def _curves(found: Sequence[Run]) -> NDArray[np.float64]:
    """Success by seed and iteration."""
    return np.stack([run.success for run in found])
