"""Tables and figures of the results; nothing else makes any."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy import stats

from benchmarks.tables import Table
from envsuite.core.errors import UsageError
from envsuite.evaluation.plots import figure
from envsuite.evaluation.statistics.paired import holm
from research.credit import board, lookup, second
from research.credit.arms import ARMS, CEILING, MAPPED, REFERENCE
from research.credit.cells import MAP, TUNING
from research.credit.differences import LEVEL, Difference, detectable, exact_p, shown, shown_p
from research.credit.results import Areas, Result, areas, difference
from research.credit.stages import REGISTERED, Hypothesis, Registration, chosen, registration
from trainers.credit.map import load
from trainers.report.plots import BLUE, GREY, ORANGE


def _points(one: Difference) -> str:
    return shown(one.mean, *one.interval) if len(one.pairs) > 1 else ""


def _chosen(results: Sequence[Result], cell: str, arm: str) -> tuple[float, int] | None:
    try:
        return chosen(results, cell, arm)
    except UsageError:
        return None


def tuning_table(results: Sequence[Result]) -> Table:
    """Returns the rate and the setting of each arm."""
    found = {arm: [_chosen(results, cell, arm) for cell in TUNING] for arm in ARMS}
    rows = [(arm, *(f"{one[0]:g}, {('first', 'second')[one[1]]}" if one else "" for one in each))
            for arm, each in found.items() if any(each)]  # fmt: skip
    note = "Of eight trials, the one whose least area of three seeds is the greatest; on cells or tasks of its own."
    return Table("tuning", "Chosen by tuning", note, ("arm", *TUNING), tuple(rows), "credit")


def map_table(results: Sequence[Result]) -> Table:
    """Returns the coarse map: GRPO's area in each cell, and what the other arms add to it."""
    found, rows = areas(results, "map"), []
    for cell in MAP.values():
        reference = found.get((cell.name, REFERENCE))
        if reference is None:
            continue
        starts = [r.held_out[0] for r in results if r.stage == "map" and r.cell == cell.name and not r.error]
        others = [_points(difference(found, cell.name, arm, REFERENCE)) for arm in MAPPED if arm != REFERENCE]
        start, mean = f"{100 * starts[0]:.0f}" if starts else "", f"{np.mean([*reference.values()]):.1f}"
        rows.append((str(cell.horizon), str(cell.decisions), start, str(len(reference)), mean, *others))
    note = (
        "Start: success of the base model on held-out walks, percent. Area: mean success over all iterations. Others: "
    )
    note += "points of area above GRPO's over pairs of runs, 95 % interval of Student's t. A map, not a result."
    heads = ("horizon", "decisions", "start", "pairs", "grpo", *(arm for arm in MAPPED if arm != REFERENCE))
    return Table("map", "The coarse map", note, heads, tuple(rows), "credit")


def verdict_table(results: Sequence[Result], registered: Registration) -> Table:
    """Returns each registered hypothesis with its difference, interval, p-value and verdict, once all its runs are."""
    found, family = areas(results, "confirm"), registered.hypotheses
    pairs = [_pairs(found, one) for one in family]
    whole = [len(apart.pairs) == registered.seeds for apart in pairs]
    raw = [_p(apart, one) if there else 1.0 for apart, one, there in zip(pairs, family, whole, strict=True)]
    rows = []
    for one, apart, there, p in zip(family, pairs, whole, holm(raw) if raw else [], strict=True):
        told = ("", "", "", "not run yet")
        if there:
            told = (_points(apart), f"{np.median(apart.pairs):+.1f}", shown_p(p), _verdict(apart, one, p))
        power = "" if one.test == "slope" else f"{detectable(one.deviation, registered.seeds, len(family)):.1f}"
        rows.append(
            (one.name, f"{one.arm}, {one.against}: {', '.join(one.cells)}", str(len(apart.pairs)), *told, power)
        )
    note = (
        "Points of area, mean over the cells of a seed, and the median of seeds, which is not tested. p: all ways to "
        "exchange names pair by pair, or one-sided t-tests where the claim is equivalence, corrected by Holm "
        "over all that is registered. Detectable: with a chance of 80 % after Bonferroni, by the deviation that was "
        "registered."
    )
    heads = ("hypothesis", "compares", "pairs", "difference", "median", "p", "verdict", "detectable")
    return Table("verdicts", "Registered hypotheses", note, heads, tuple(rows), "credit")


def _pairs(found: Areas, one: Hypothesis) -> Difference:
    """Returns the differences of the seeds that all cells have: their mean over the cells, or slope along the dial."""
    both = [(found.get((cell, one.arm), {}), found.get((cell, one.against), {})) for cell in one.cells]
    seeds = sorted(set.intersection(*({*first} & {*second} for first, second in both)))
    each = np.array([[first[seed] - second[seed] for seed in seeds] for first, second in both])
    if one.test != "slope":
        return Difference(each.mean(0))
    dial = np.array(one.dial) - np.mean(one.dial)
    return Difference(dial @ each / (dial @ dial))


def _p(apart: Difference, one: Hypothesis) -> float:
    if one.test != "equivalent":
        return exact_p(apart.pairs)
    n, error = len(apart.pairs), float(apart.pairs.std(ddof=1)) / math.sqrt(len(apart.pairs))
    return float(stats.t.sf((one.margin - abs(apart.mean)) / max(error, 1e-12), n - 1))


def _verdict(apart: Difference, one: Hypothesis, p: float) -> str:
    if p >= LEVEL:
        return "cannot be told"
    if one.test == "equivalent":
        return "observed"
    return "observed" if (apart.mean > 0) == (one.expected > 0) else "the opposite"


def rates_table(results: Sequence[Result]) -> Table:
    """Returns what arms add to GRPO in the tuning cells, with what was chosen for each, and with GRPO's rate."""
    rows = []
    for cell in TUNING:
        mine = [result for result in results if (result.stage, result.cell) == ("tune", cell)]
        for arm in MAPPED[1:]:
            least, own = _chosen(results, cell, REFERENCE), _chosen(results, cell, arm)
            if not least or not own:
                continue
            names = [(REFERENCE, *least), (arm, *own), (arm, least[0], 0), (arm, least[0], 1)]
            area = [np.mean([100 * r.area for r in mine if (r.arm, r.rate, r.option) == name]) for name in names]
            rows.append((cell, arm, f"{own[0]:g}", f"{area[1] - area[0]:+.1f}", f"{max(area[2:]) - area[0]:+.1f}"))
    note = (
        "Points of area above GRPO's, means of the three seeds that chose the rates: with the arm's own rate, and with "
        "GRPO's and the better setting."
    )
    return Table("rates", "At its own rate, and at GRPO's", note, ("cell", "arm", "rate", "own", "GRPO's"),
                 tuple(rows), "credit")  # fmt: skip


def measures_table(results: Sequence[Result]) -> Table:
    """Returns means of what runs ended with, by arm: of the map's cells together, and of each of stage 2."""
    runs: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        if result.stage in ("map", "confirm"):
            runs.setdefault(("the map" if result.stage == "map" else result.cell, result.arm), []).append(result)
    rows = []
    for (cell, arm), mine in runs.items():
        ended = [result for result in mine if not result.error]
        each = [(r.area, r.success[-1], r.held_out[1], r.tokens / 1e5, r.seconds / 1e2) for r in ended]
        counts = len(mine), len(mine) - len(ended), sum(r.success[-1] < r.success[0] for r in ended)
        rows.append((cell, arm, *map(str, counts), *(f"{100 * value:.1f}" for value in np.mean(each, 0))))
    note = (
        "Worse: runs that end with less success than they began with. Area, success after the last iteration, and that "
        "on held-out tasks: percent. Tokens: thousands of the responses. Seconds of a core."
    )
    heads = ("cell", "arm", "runs", "failed", "worse", "area", "last", "held out", "tokens", "seconds")
    return Table("measures", "How runs end", note, heads, tuple(rows), "credit")


def cost_table(results: Sequence[Result]) -> Table:
    """Returns runs, failures and core-hours by stage."""
    rows = []
    for stage in dict.fromkeys(result.stage for result in results):
        mine = [result for result in results if result.stage == stage]
        hours = sum(result.seconds for result in mine) / 3600
        rows.append((stage, str(len(mine)), str(sum(bool(result.error) for result in mine)), f"{hours:.2f}"))
    return Table("cost", "Runs", "Core-hours without the base models.", ("stage", "runs", "failed", "core-hours"),
                 tuple(rows), "credit")  # fmt: skip


def draw_map(results: Sequence[Result], path: Path) -> None:
    """Draws what exact credit, and two methods, add to GRPO in each cell of the map."""
    found, horizons = areas(results, "map"), sorted({cell.horizon for cell in MAP.values()})
    lines = {(cell.decisions, cell.start) for cell in MAP.values()}
    with figure(path, 9.0, 3.4, size=8) as drawn:
        axes = drawn.subplots(1, 3, sharey=True)
        for axis, arm in zip(axes, (CEILING, "g2po", "gigpo"), strict=True):
            for number, (decisions, start) in enumerate(sorted(lines)):
                name = f"{decisions} decisions, {start:.0%} at the start"
                cells = [cell for cell in MAP.values() if (cell.decisions, cell.start) == (decisions, start)]
                apart = [difference(found, cell.name, arm, REFERENCE) for cell in cells]
                ends = np.array([one.interval for one in apart])
                mean = np.array([one.mean for one in apart])
                place = np.arange(len(horizons)) + 0.12 * (number - 1.5)
                axis.errorbar(
                    place, mean, np.abs(ends.T - mean), label=name, marker="o",
                    color=BLUE if decisions == 2 else ORANGE, linestyle="-" if start < 0.3 else "--",
                )  # fmt: skip
            axis.axhline(0.0, color=GREY, linewidth=0.8)
            axis.set(title=arm, xlabel="places of a walk", xticks=range(len(horizons)), xticklabels=horizons)
        axes[0].set_ylabel("points of area above GRPO")
        axes[0].legend(frameon=False)


def draw_dial(found: Areas, one: Hypothesis, path: Path) -> None:
    """Draws what exact credit adds to GRPO along a dial."""
    apart = [difference(found, cell, one.arm, one.against) for cell in one.cells]
    mean, ends = np.array([each.mean for each in apart]), np.array([each.interval for each in apart])
    with figure(path, 3.6, 2.8, size=8) as drawn:
        axis = drawn.subplots()
        axis.errorbar(one.dial, mean, np.abs(ends.T - mean), capsize=3, color=BLUE, marker="o")
        axis.axhline(0.0, color=GREY, linewidth=0.8)
        axis.set(xlabel="words of its own that a kind of place has", xticks=one.dial, title=one.arm)
        axis.set_ylabel(f"points of area above {one.against}")


def write(results: Sequence[Result], folder: Path) -> list[Path]:
    """Writes tables (Markdown and LaTeX) and figures of what is there; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    registered = registration() if REGISTERED.exists() else Registration()
    planned = second.plan()
    made = (
        tuning_table(results), rates_table(results), map_table(results), verdict_table(results, registered),
        lookup.table(load().spots), board.table(board.read()), measures_table(results),
        cost_table(results), second.guard_table(results), second.second_table(results, planned),
        second.ends_table(results, planned),
    )  # fmt: skip
    tables = [table for table in made if table.rows]
    found = [folder / "credit.md", folder / "credit.tex"]
    found[0].write_text("\n".join(table.markdown() for table in tables), encoding="utf-8")
    found[1].write_text("\n".join(table.latex() for table in tables), encoding="utf-8")
    if any(result.stage == "map" for result in results):
        draw_map(results, folder / "map.png")
        found.append(folder / "map.png")
    confirmed = areas(results, "confirm")
    for one in registered.hypotheses:
        if one.test == "slope" and len(_pairs(confirmed, one).pairs) == registered.seeds:
            found.append(folder / f"{one.name}.png")
            draw_dial(confirmed, one, found[-1])
    return found
