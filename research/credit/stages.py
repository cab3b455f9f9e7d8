"""The stages of the experiment, as lists of runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from envsuite.core.errors import UsageError
from research.credit.arms import ARMS, CEILING, MAPPED, REFERENCE, SAMPLED, Trial
from research.credit.cells import MAP, RATES, TUNING, Cell, cell_of
from research.credit.runs import Result
from trainers.settings import AtLeastOne, ConfigError, checked
from trainers.settings.words import read_file

STAGES = ("tune", "map", "confirm")
REGISTERED = Path(__file__).with_name("registered.yaml")
"""The hypotheses of stage 2, committed before its first run."""
FIRST_SEED = 10
"""The first seed of stage 2: it has the tasks of none of the map's."""
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


def registration() -> Registration:
    """Returns the registered hypotheses.

    Raises:
        UsageError: There are none, or the file is no registration.
    """
    if not REGISTERED.exists():
        raise UsageError(f"nothing is registered: {REGISTERED} is written after stage 1, and before stage 2")
    return checked(Registration, read_file(str(REGISTERED)))


def tuning() -> list[Trial]:
    """Returns the trials that choose rate and setting: as many for each arm."""
    return [
        Trial("tune", cell, arm, seed, rate, option)
        for cell in TUNING.values() for arm in (ARMS if cell.exact else SAMPLED)
        for seed in TUNING_SEEDS for rate in RATES for option in (0, 1)
    ]  # fmt: skip


def chosen(results: Sequence[Result], cell: str, arm: str) -> tuple[float, int]:
    """Returns the rate and the setting with the greatest mean area on a tuning cell.

    Raises:
        UsageError: A trial has no result yet.
    """
    areas: dict[tuple[float, int], list[float]] = {}
    for result in results:
        if result.stage == "tune" and result.cell == cell and result.arm == arm:
            areas.setdefault((result.rate, result.option), []).append(0.0 if result.error else result.area)
    if len(areas) != len(RATES) * 2 or any(len(found) != len(TUNING_SEEDS) for found in areas.values()):
        raise UsageError(f"{arm} is not tuned on {cell} yet: python -m research.credit tune")
    return max(areas, key=lambda trial: float(np.mean(areas[trial])))


def tuned(stage: str, cell: Cell, arm: str, seeds: Sequence[int], results: Sequence[Result]) -> list[Trial]:
    """Returns the runs of an arm on a cell, with the settings that were chosen for it.

    Raises:
        UsageError: The arm is not tuned yet, or needs values that nobody knows.
    """
    if arm == CEILING and not cell.exact:
        raise UsageError(f"{cell.name} has no arm {arm}: nobody knows the values of {cell.env}; take {SAMPLED}")
    rate, option = chosen(results, cell.tuned or cell.name, arm)
    return [Trial(stage, cell, arm, seed, rate, option) for seed in seeds]


def trials(stage: str, results: Sequence[Result]) -> list[Trial]:
    """Returns the runs of a stage, those of a cell and a seed together.

    Raises:
        UsageError: It needs results of a stage before, or a registration, that are not there.
    """
    if stage == "tune":
        return tuning()
    if stage == "confirm":
        asked = registration()
        seeds = range(FIRST_SEED, FIRST_SEED + asked.seeds)
        wanted = [(name, arm) for one in asked.hypotheses for name in one.cells for arm in (one.against, one.arm)]
        found = [
            trial for name, arm in dict.fromkeys(wanted)
            for trial in tuned("confirm", cell_of(name), arm, seeds, results)
        ]  # fmt: skip
        return sorted(found, key=lambda trial: trial.seed)
    found = [trial for cell in MAP.values() for arm in MAPPED for trial in tuned("map", cell, arm, MAP_SEEDS, results)]
    return sorted(found, key=lambda trial: trial.seed)
