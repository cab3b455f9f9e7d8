"""Tables and figure of the arena."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from benchmarks.tables import Table
from envsuite.core.errors import UsageError
from envsuite.evaluation.statistics.paired import holm, paired_permutation
from research.arena.results import LAST, Result, by_method
from research.arena.tasks import CEILING, METHODS, REFERENCE, TASKS
from research.differences import LEVEL, POWER, Difference, detectable
from trainers.report.plots import BLUE, GREY, ORANGE, figure

WANTED = 0.06
"""Difference of two areas that the arena is to show."""
NONE = "–"  # noqa: RUF001


def difference(one: Mapping[int, Result], reference: Mapping[int, Result]) -> Difference:
    """Returns the difference of two methods over the seeds that both have."""
    seeds = sorted(set(one) & set(reference))
    return Difference(np.array([one[seed].area - reference[seed].area for seed in seeds]))


def power_table(pilot: Sequence[Result], seeds: Sequence[int], comparisons: int) -> Table | None:
    """Returns what numbers of seeds would show, by the pilot runs; ``None`` without any pair of them."""
    lines = []
    for task in TASKS:
        runs = by_method(pilot, task)
        others = [difference(runs[name], runs[REFERENCE]).pairs for name in runs if name != REFERENCE]
        if not others or min(map(len, others)) < 2:
            continue
        deviation = math.sqrt(float(np.mean([pairs.var(ddof=1) for pairs in others])))
        cells = [f"{100 * detectable(deviation, count, comparisons):.1f}" for count in seeds]
        lines.append((task, f"{100 * deviation:.1f}", *cells))
    if not lines:
        return None
    note = (
        "Deviation over seeds of the difference of two areas, from the pilot runs, and the difference in points that "
        f"a paired t-test finds with a chance of {POWER:.0%}, at {LEVEL:.0%} over {comparisons} comparisons."
    )
    heads = ("task", "deviation", *(f"{count} seeds" for count in seeds))
    return Table("power", "Power, computed before any comparison", note, heads, tuple(lines), "arena")


def task_table(results: Sequence[Result], task: str) -> Table:
    """Returns the table of one task: success, differences from the reference, costs.

    Raises:
        UsageError: The reference has no run.
    """
    runs = by_method(results, task)
    order = [name for name in METHODS if name in runs]
    apart = {name: difference(runs[name], runs[REFERENCE]) for name in order if name != REFERENCE}
    others = [name for name, one in apart.items() if name != CEILING and len(one.pairs) > 1]
    corrected = dict(zip(others, holm([apart[name].p for name in others]), strict=True)) if others else {}
    lines = []
    for name in order:
        found = [runs[name][seed] for seed in sorted(runs[name])]
        tokens, cpu = np.mean([run.tokens[-1] for run in found]), np.mean([sum(run.cpu.values()) for run in found])
        lines.append((
            name, str(len(found)), _mean([run.area for run in found]), _mean([run.final for run in found]),
            NONE if name == REFERENCE else _points(apart[name]),
            _p(corrected[name]) if name in corrected else NONE,
            f"{tokens / 1e3:.0f}", f"{cpu:.1f}",
        ))  # fmt: skip
    iterations = len(next(iter(runs[REFERENCE].values())).success)
    note = (
        f"Area: mean success in percent over all {iterations} iterations; end: over the last {LAST}; mean of the seeds "
        f"± their standard deviation. Difference of the areas from {REFERENCE}'s in points, seed by seed, with the "
        "95 % interval of Student's t; p: paired t-test, corrected by Holm for all methods but the oracle. "
        "Tokens: thousands of response tokens trained on; CPU: seconds of an iteration."
    )
    heads = ("method", "seeds", "area", "end", "difference", "p", "tokens", "CPU s")
    return Table(task, TASKS[task].about, note, heads, tuple(lines), "arena")


def overall_table(results: Sequence[Result]) -> Table:
    """Returns each method against the reference over all tasks together: the primary comparison.

    Raises:
        UsageError: No task has a run of the reference.
    """
    runs = {task: by_method(results, task) for task in TASKS}
    order = [name for name in METHODS if name != REFERENCE and any(name in found for found in runs.values())]
    pairs = {}
    for name in order:
        parts = [difference(found[name], found[REFERENCE]).pairs for found in runs.values() if name in found]
        pairs[name] = np.concatenate(parts)
    if not any(map(len, pairs.values())):
        raise UsageError("no seed has a run of two methods yet")
    others = [name for name in order if name != CEILING and len(pairs[name]) > 1]
    tested = {name: paired_permutation(pairs[name]) for name in order}
    corrected = dict(zip(others, holm([tested[name] for name in others]), strict=True))
    lines = [
        (
            name,
            str(len(pairs[name])),
            _points(Difference(pairs[name])),
            _p(corrected.get(name, tested[name])) if len(pairs[name]) > 1 else NONE,
        )
        for name in sorted(order, key=lambda name: -float(pairs[name].mean()))
    ]
    note = (
        f"Difference of the areas from {REFERENCE}'s in points, mean over pairs of runs with the same task and seed, "
        "with the 95 % interval of Student's t. p: exact test that exchanges the two methods' names pair by pair, "
        "corrected by Holm (the oracle's is not)."
    )
    return Table("overall", "All tasks", note, ("method", "pairs", "difference", "p"), tuple(lines), "arena")


def draw(results: Sequence[Result], path: Path) -> None:
    """Draws, for each task, the learning curves and the differences of their areas.

    Raises:
        UsageError: There are no runs.
    """
    runs = {task: found for task in TASKS if (found := by_method(results, task))}
    if not runs:
        raise UsageError("no runs to draw; make some with python -m research.arena")
    path.parent.mkdir(parents=True, exist_ok=True)
    with figure(path, 9.0, 3.2 * len(runs), size=8) as drawn:
        axes = drawn.subplots(len(runs), 2, squeeze=False, width_ratios=(3, 2))
        for (task, found), row in zip(runs.items(), axes, strict=True):
            _curves(found, row[0], task)
            _forest(found, row[1])
        axes[-1, 0].set_xlabel("iteration")


def _curves(runs: Mapping[str, Mapping[int, Result]], axis: Axes, task: str) -> None:
    """Draws the curves of the methods that have all seeds: means over other worlds are no comparison."""
    seeds = max(map(len, runs.values()))
    complete = {name: found for name, found in runs.items() if len(found) == seeds}
    means = {name: np.mean([run.success for run in found.values()], axis=0) for name, found in complete.items()}
    rivals = [name for name in means if name not in (REFERENCE, CEILING)]
    best = max(rivals, key=lambda name: float(means[name].mean()), default="")
    shown = {REFERENCE: "black", best: BLUE, CEILING: ORANGE}
    for name, curve in means.items():
        at = np.arange(1, len(curve) + 1)
        if name in shown:
            axis.plot(at, curve, color=shown[name], linewidth=2.0, label=name, zorder=3)
        else:
            axis.plot(at, curve, color=GREY, linewidth=0.8, alpha=0.6, zorder=2)
    axis.set_title(f"{task}: success, mean of {seeds} seed{'s' * (seeds > 1)}")
    axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.legend(loc="upper left")


def _forest(runs: Mapping[str, Mapping[int, Result]], axis: Axes) -> None:
    apart = {name: difference(found, runs[REFERENCE]) for name, found in runs.items() if name != REFERENCE}
    apart = {name: one for name, one in apart.items() if len(one.pairs)}
    order = sorted(apart, key=lambda name: apart[name].mean)
    for place, name in enumerate(order):
        one, color = apart[name], ORANGE if name == CEILING else BLUE
        axis.plot(100 * one.pairs, np.full(len(one.pairs), place), "o", color=color, markersize=3, alpha=0.35)
        if len(one.pairs) > 1:
            axis.plot([100 * bound for bound in one.interval], [place, place], color=color, linewidth=2.0)
        axis.plot([100 * one.mean], [place], "o", color=color, markersize=6)
    axis.axvline(0.0, color="black", linewidth=1.0)
    axis.set_yticks(range(len(order)), order)
    axis.xaxis.set_major_locator(MaxNLocator(6))
    axis.set_title(f"difference of areas from {REFERENCE}, points")


def _mean(values: Sequence[float]) -> str:
    spread = f" ± {100 * np.std(values, ddof=1):.1f}" if len(values) > 1 else ""
    return f"{100 * np.mean(values):.1f}{spread}"


def _points(one: Difference) -> str:
    if not len(one.pairs):
        return NONE
    low, high = one.interval
    bounds = "" if math.isinf(low) else f" [{100 * low:+.1f}, {100 * high:+.1f}]"
    return f"{100 * one.mean:+.1f}{bounds}"


def _p(value: float) -> str:
    return f"{value:.3f}" if value >= 0.001 else "<0.001"
