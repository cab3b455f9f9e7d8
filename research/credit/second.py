"""The second protocol: a guard against collapse, one rate for all arms beside tuned ones, several base models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.tables import Table
from envsuite.core.errors import UsageError
from envsuite.evaluation.statistics.paired import holm
from research.credit.arms import CEILING, REFERENCE, Trial
from research.credit.cells import RATES, TUNING, cell_of
from research.credit.differences import LEVEL, Difference, exact_p, shown, shown_p, trimmed_mean
from research.credit.results import Result
from research.credit.stages import TUNING_SEEDS
from trainers.settings import AtLeastOne, checked
from trainers.settings.words import read_file

PLAN = Path(__file__).with_name("second.yaml")
"""What is compared, committed before the first run of the stage ``second``."""
STAGES = ("guard", "second")
TRIED, FAST = ("k3-0.01", "return"), RATES[2:]
"""Guards that are tried, at the rates at which runs collapse."""
WALKS = ("h8-k3-p30", "h16-k3-p30", "h32-k3-p30")
WATCHED = (REFERENCE, CEILING, "gigpo", "g2po", "steppo")
"""The arms that guards are tried on: those that the first protocol tuned on all walks, without a guard."""


@dataclass(frozen=True)
class Comparison:
    """Two arms that are compared in each of some cells, at one rate for both and at tuned ones."""

    arm: str
    cells: list[str]
    against: str = REFERENCE


@dataclass(frozen=True)
class Plan:
    """The registration."""

    guard: str = ""
    rate: float = 0.0
    """The one rate of all arms."""
    seeds: AtLeastOne = 30
    first: int = 40
    """First seed: the panels of tasks are those of no run of the first protocol."""
    bases: AtLeastOne = 3
    """Base models of a cell; seed s has number s modulo ``bases``."""
    margin: float = 5.0
    """Two arms count as equal where the 95 % interval lies within so many points."""
    comparisons: list[Comparison] = field(default_factory=list)

    @property
    def runs(self) -> list[tuple[str, str]]:
        """Cells and arms that are run."""
        pairs = [(cell, arm) for one in self.comparisons for cell in one.cells for arm in (one.against, one.arm)]
        return list(dict.fromkeys(pairs))


def plan() -> Plan:
    """Returns the registration; without any comparison before there is one."""
    return checked(Plan, read_file(str(PLAN))) if PLAN.exists() else Plan()


def trials(stage: str, results: Sequence[Result], arms: Sequence[str] = (), cells: Sequence[str] = ()) -> list[Trial]:
    """Returns the runs of a stage, those of a cell together, seed by seed.

    Args:
        stage: One of :data:`STAGES`.
        results: What has been run.
        arms: These alone; empty: all.
        cells: Those of these cells alone; empty: all.

    Raises:
        UsageError: Nothing is registered, or an arm is not tuned yet.
    """
    registered = plan()
    if stage == "guard":
        wanted = [(cell, arm, guard, rate) for cell in WALKS for arm in WATCHED for guard in TRIED for rate in FAST]
        tuned = dict.fromkeys((cell_of(name).tuning, arm) for name, arm in registered.runs)
        wanted += [(cell, arm, registered.guard, rate) for cell, arm in tuned for rate in RATES[1:]]
        found = [Trial(stage, TUNING[cell], arm, seed, rate, 0, guard)
                 for cell, arm, guard, rate in dict.fromkeys(wanted) for seed in TUNING_SEEDS]  # fmt: skip
    else:
        if not registered.runs:
            raise UsageError(f"nothing is registered: {PLAN} is written after the stage guard")
        found = []
        for name, arm in registered.runs:
            cell = cell_of(name)
            for rate in dict.fromkeys((registered.rate, tuned_rate(results, cell.tuning, arm, registered.guard))):
                for seed in range(registered.first, registered.first + registered.seeds):
                    based = replace(cell, base_seed=1 + seed % registered.bases)
                    found.append(Trial(stage, based, arm, seed, rate, 0, registered.guard))
    order = list(dict.fromkeys(one.cell.name for one in found))
    asked = (one for one in found if (not arms or one.arm in arms) and (not cells or one.cell.name in cells))
    return sorted(asked, key=lambda trial: (order.index(trial.cell.name), trial.seed))


def tuned_rate(results: Sequence[Result], cell: str, arm: str, guard: str) -> float:
    """Returns the rate whose least area of three seeds on a tuning cell is the greatest.

    Raises:
        UsageError: A trial has no result yet.
    """
    least: dict[float, list[float]] = {}
    for one in results:
        if (one.stage, one.cell, one.arm, one.guard) == ("guard", cell, arm, guard):
            least.setdefault(one.rate, []).append(one.area)
    if any(len(least.get(rate, ())) != len(TUNING_SEEDS) for rate in RATES[1:]):
        raise UsageError(f"{arm} is not tuned on {cell} with {guard} yet: python -m research.credit guard")
    return max(least, key=lambda rate: min(least[rate]))


def ends_worse(run: Result) -> bool:
    """Whether a run ends with less success than it began with."""
    return bool(run.error) or run.success[-1] < run.success[0]


def guard_table(results: Sequence[Result]) -> Table:
    """Returns how runs end by guard and rate, and what a guard changes in runs that are healthy without it."""
    runs: dict[tuple[str, float], dict[tuple[str, str, int], Result]] = {}
    for one in results:
        tried = one.option == 0 if one.stage == "tune" else one.stage == "guard" and one.guard in TRIED
        if tried and one.cell in WALKS and one.arm in WATCHED and one.rate in FAST:
            runs.setdefault((one.guard, one.rate), {})[one.cell, one.arm, one.seed] = one
    rows = []
    for (guard, rate), mine in sorted(runs.items()):
        plain = runs.get(("", rate), {})
        both = [
            (100 * (mine[key].area - plain[key].area)) for key in mine if key in plain and not ends_worse(plain[key])
        ]
        apart = shown(float(np.mean(both)), *Difference(np.array(both)).interval) if guard and both else ""
        area = np.mean([100 * one.area for one in mine.values()])
        worse = sum(map(ends_worse, mine.values()))
        rows.append((guard or "none", f"{rate:g}", str(len(mine)), str(worse), f"{area:.1f}", apart))
    note = (
        "Five arms, three tuning cells, three seeds. Worse: runs that end with less success than they began with. "
        "Healthy: points of area that the guard adds to runs that do not end worse without it, Student's interval."
    )
    return Table("guards", "Guards against collapse", note, ("guard", "rate", "runs", "worse", "area", "healthy"),
                 tuple(rows), "credit")  # fmt: skip


def runs_of(results: Sequence[Result], registered: Plan, cell: str, arm: str, rates: str) -> list[Result]:
    """Returns an arm's runs at the ``one`` rate or at its ``tuned`` one, by seed; none before it is tuned."""
    try:
        tuned = tuned_rate(results, cell_of(cell).tuning, arm, registered.guard)
    except UsageError:
        return []
    rate = registered.rate if rates == "one" else tuned
    found = [one for one in results if (one.stage, one.cell, one.arm, one.rate) == ("second", cell, arm, rate)]
    return sorted(found, key=lambda one: one.seed)


def curve(run: Result) -> tuple[float, ...]:
    """Returns the success after each iteration, in percent; of a run that failed, no success."""
    return (0.0,) if run.error else tuple(100 * value for value in run.success[1:])


@dataclass(frozen=True)
class Row:
    """A comparison in a cell."""

    cell: str
    rates: str
    arm: str
    against: str
    area: NDArray[np.float64]
    """Differences of the mean success over the iterations, by seed, in points."""
    best: NDArray[np.float64]
    """The same of the greatest success."""


def comparisons(results: Sequence[Result], registered: Plan) -> list[Row]:
    """Returns all comparisons whose runs are all there."""
    rows = []
    for rates in ("one", "tuned"):
        for one in registered.comparisons:
            for cell in one.cells:
                both = [runs_of(results, registered, cell, arm, rates) for arm in (one.arm, one.against)]
                if any(len(runs) != registered.seeds for runs in both):
                    continue
                pairs = [*zip(*([curve(run) for run in runs] for runs in both), strict=True)]
                area = np.array([np.mean(x) - np.mean(y) for x, y in pairs])
                best = np.array([max(x) - max(y) for x, y in pairs])
                rows.append(Row(cell, rates, one.arm, one.against, area, best))
    return rows


def second_table(results: Sequence[Result], registered: Plan) -> Table:
    """Returns what all comparisons found: by area, by the greatest success, and by the trimmed mean of areas."""
    rows, found = [], comparisons(results, registered)
    missing = [1.0] * (2 * sum(len(one.cells) for one in registered.comparisons) - len(found))
    corrected = [holm([exact_p(values) for values in each] + missing) for each in
                 ([row.area for row in found], [row.best for row in found])]  # fmt: skip
    for row, p_area, p_best in zip(found, *corrected, strict=False):
        area, best, middle = Difference(row.area), Difference(row.best), trimmed_mean(row.area)
        texts = shown(area.mean, *area.interval), shown(best.mean, *best.interval), shown(*middle)
        verdict = _verdict((area.mean, *area.interval), best.mean, middle, max(p_area, p_best), registered.margin)
        rows.append((row.rates, row.cell, row.arm, row.against, texts[0], shown_p(p_area), texts[1], shown_p(p_best),
                     texts[2], verdict))  # fmt: skip
    note = (
        f"Points, {registered.seeds} pairs of runs, {registered.bases} base models a cell. Area: mean success over the "
        "iterations; best: the greatest; trimmed: area without a fifth of the pairs at each end. p: all changes of "
        "signs, corrected by Holm over all that is registered. Higher, lower: both p below 0.05, and all three say so. "
        f"Equal: the interval of the area lies within {registered.margin:g} points."
    )
    heads = ("rates", "cell", "arm", "against", "area", "p", "best", "p best", "trimmed", "verdict")
    return Table("second", "The second protocol", note, heads, tuple(rows), "credit")


def _verdict(area: Sequence[float], best: float, middle: Sequence[float], p: float, margin: float) -> str:
    if p < LEVEL and min(area[0], best, middle[1]) > 0.0:
        return "higher"
    if p < LEVEL and max(area[0], best, middle[2]) < 0.0:
        return "lower"
    return "equal" if -margin < area[1] and area[2] < margin else "cannot be told"


def ends_table(results: Sequence[Result], registered: Plan) -> Table:
    """Returns how the runs of each arm end, at one rate and at tuned ones."""
    rows = []
    for name, arm in registered.runs:
        for rates in ("one", "tuned"):
            runs = runs_of(results, registered, name, arm, rates)
            if len(runs) != registered.seeds:
                continue
            each = [(100 * run.success[0], float(np.mean(curve(run))), max(curve(run)), curve(run)[-1]) for run in runs]
            rows.append((name, arm, rates, f"{runs[0].rate:g}", str(sum(map(ends_worse, runs))),
                         *(f"{value:.1f}" for value in np.mean(each, 0))))  # fmt: skip
    heads = ("cell", "arm", "rates", "rate", "worse", "start", "area", "best", "last")
    note = f"Of {registered.seeds} runs: how many end with less success than they began with; means in percent."
    return Table("ends", "How the runs of the second protocol end", note, heads, tuple(rows), "credit")
