"""The stages of the experiment, as lists of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from envsuite.core.errors import UsageError
from research.credit.arms import CEILING, CLAIMED, MAPPED, REFERENCE, SAMPLED, Trial
from research.credit.cells import MAP, RATES, TUNING, Cell, cell_of
from research.credit.results import Result
from trainers.settings import AtLeastOne, ConfigError, checked
from trainers.settings.words import read_file

STAGES = ("tune", "map", "confirm", "board")
REGISTERED = Path(__file__).with_name("registered.yaml")
"""The hypotheses of stage 2, committed before its first run."""
FIRST_SEED = 10
"""The first seed of stage 2: it has the tasks of none of the map's."""
TUNED: Mapping[str, Sequence[str]] = {
    "h8-k3-p30": (*MAPPED, *CLAIMED), "h16-k3-p30": (*MAPPED, "scpo"), "h32-k3-p30": MAPPED,
    "h8-k3-p30-large": (REFERENCE, CEILING), "babyai": SAMPLED,
}  # fmt: skip
"""The arms that are tuned on each cell."""
TUNING_SEEDS = (900, 901, 902)
MAP_SEEDS = tuple(range(10))


@dataclass(frozen=True)
class Hypothesis:
    """Something that stage 2 tests."""

    name: str
    cells: list[str]
    """As :func:`~research.credit.cells.cell_of` takes them; of a slope, along the dial."""
    arm: str
    against: str = REFERENCE
    test: Literal["different", "equivalent", "slope"] = "different"
    expected: float = 1.0
    """Sign of the difference, or of the slope, that is expected."""
    margin: float = 2.0
    """Points of area below which a difference counts as none."""
    dial: list[float] = field(default_factory=list)
    """Value of each cell, of a slope."""
    deviation: float = 10.0
    """Standard deviation of a difference over seeds in stage 1, in points."""

    def __post_init__(self) -> None:
        if self.test == "equivalent" and len(self.cells) != 1:
            raise ConfigError(f"{self.name}: equivalence is tested in one cell; register one hypothesis for each")
        if self.test == "slope" and not 1 < len(self.cells) == len(self.dial):
            raise ConfigError(f"{self.name}: a slope has several cells, and a value of dial for each")


@dataclass(frozen=True)
class Registration:
    """Everything that stage 2 tests."""

    seeds: AtLeastOne = 30
    """Runs of each arm in each cell."""
    hypotheses: list[Hypothesis] = field(default_factory=list)
    board: list[str] = field(default_factory=list)
    """Cells of the leaderboard."""

    @property
    def numbers(self) -> range:
        """Seeds of the runs."""
        return range(FIRST_SEED, FIRST_SEED + self.seeds)


def registration() -> Registration:
    """Returns the registered hypotheses.

    Raises:
        UsageError: There are none, or the file is no registration.
    """
    if not REGISTERED.exists():
        raise UsageError(f"nothing is registered: {REGISTERED} is written after stage 1, and before stage 2")
    return checked(Registration, read_file(str(REGISTERED)))


def tuning(asked: Sequence[str] = (), cells: Sequence[str] = ()) -> list[Trial]:
    """Returns the trials that choose rate and setting: as many for each arm.

    Args:
        asked: These arms alone; empty: all.
        cells: Cells that the asked arms are tuned on; empty: those that they have in :data:`TUNED`.
    """
    return [
        Trial("tune", TUNING[cell], arm, seed, rate, option)
        for cell in cells or TUNED for arm in asked or TUNED[cell] if cells or arm in TUNED[cell]
        for seed in TUNING_SEEDS for rate in RATES for option in (0, 1)
    ]  # fmt: skip


def chosen(results: Sequence[Result], cell: str, arm: str) -> tuple[float, int]:
    """Returns the rate and the setting whose least area on a tuning cell is the greatest.

    The mean would choose a rate at which two runs of three learn fast and the third collapses.

    Raises:
        UsageError: A trial has no result yet.
    """
    areas: dict[tuple[float, int], dict[int, float]] = {}
    for result in results:
        if result.stage == "tune" and result.cell == cell and result.arm == arm:
            areas.setdefault((result.rate, result.option), {})[result.seed] = 0.0 if result.error else result.area
    if len(areas) != len(RATES) * 2 or any(len(found) != len(TUNING_SEEDS) for found in areas.values()):
        raise UsageError(f"{arm} is not tuned on {cell} yet: python -m research.credit tune")
    return max(areas, key=lambda trial: min(areas[trial].values()))


def tuned(stage: str, cell: Cell, arm: str, seeds: Sequence[int], results: Sequence[Result]) -> list[Trial]:
    """Returns the runs of an arm on a cell, with the settings that were chosen for it.

    Raises:
        UsageError: The arm is not tuned yet, or needs values that nobody knows.
    """
    if arm == CEILING and not cell.exact:
        raise UsageError(f"{cell.name} has no arm {arm}: nobody knows the values of {cell.env}; take {SAMPLED}")
    rate, option = chosen(results, cell.tuning, arm)
    return [Trial(stage, cell, arm, seed, rate, option) for seed in seeds]


def trials(stage: str, results: Sequence[Result], arms: Sequence[str], cells: Sequence[str] = ()) -> list[Trial]:
    """Returns the runs of a stage, those of a cell and a seed together.

    Args:
        stage: One of :data:`STAGES`.
        results: What has been run.
        arms: These alone; empty: all of the stage. Of the leaderboard, those that enter.
        cells: Those of these cells alone; empty: all.

    Raises:
        UsageError: It needs results of a stage before, or a registration, that are not there.
    """
    if stage == "tune":
        return [trial for trial in tuning(arms) if not cells or trial.cell.name in cells]
    asked = Registration() if stage == "map" else registration()
    seeds = MAP_SEEDS if stage == "map" else asked.numbers
    wanted = [(name, arm) for name in MAP for arm in MAPPED] if stage == "map" else []
    if stage == "confirm":
        wanted = [(name, arm) for one in asked.hypotheses for name in one.cells for arm in (one.against, one.arm)]
    if stage == "board":
        arms = tuple(dict.fromkeys((REFERENCE, *arms)))
        wanted = [(name, arm) for name in asked.board for arm in arms]
    each = [(cell_of(name), arm) for name, arm in dict.fromkeys(wanted)
            if (not arms or arm in arms) and (not cells or name in cells)]  # fmt: skip
    if stage == "board":
        first = tuning(arms, tuple(dict.fromkeys(cell.tuning for cell, _ in each)))
        if {trial.done for trial in first} - {result.done for result in results}:
            return first
    name = "map" if stage == "map" else "confirm"
    found = [trial for cell, arm in each for trial in tuned(name, cell, arm, seeds, results)]
    return sorted(found, key=lambda trial: trial.seed)
