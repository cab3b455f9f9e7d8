"""The stages of the experiment, as lists of runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from research.credit.arms import ARMS, MAPPED, Trial
from research.credit.cells import MAP, RATES, TUNING, Cell
from research.credit.runs import Result

STAGES = ("tune", "map")
TUNING_SEEDS = (900, 901, 902)
MAP_SEEDS = tuple(range(10))


def tuning() -> list[Trial]:
    """Returns the trials that choose rate and setting: as many for each arm."""
    return [
        Trial("tune", cell, arm, seed, rate, option)
        for cell in TUNING.values() for arm in ARMS for seed in TUNING_SEEDS for rate in RATES for option in (0, 1)
    ]  # fmt: skip


def chosen(results: Sequence[Result], cell: str, arm: str) -> tuple[float, int]:
    """Returns the rate and the setting with the greatest mean area on a tuning cell.

    Raises:
        LookupError: A trial has no result yet.
    """
    areas: dict[tuple[float, int], list[float]] = {}
    for result in results:
        if result.stage == "tune" and result.cell == cell and result.arm == arm:
            areas.setdefault((result.rate, result.option), []).append(0.0 if result.error else result.area)
    if len(areas) != len(RATES) * 2 or any(len(found) != len(TUNING_SEEDS) for found in areas.values()):
        raise LookupError(f"{arm} is not tuned on {cell} yet: python -m research.credit tune")
    return max(areas, key=lambda trial: float(np.mean(areas[trial])))


def tuned(stage: str, cell: Cell, arm: str, seeds: Sequence[int], results: Sequence[Result]) -> list[Trial]:
    """Returns the runs of an arm on a cell, with the settings that were chosen for it."""
    rate, option = chosen(results, cell.tuned or cell.name, arm)
    return [Trial(stage, cell, arm, seed, rate, option) for seed in seeds]


def trials(stage: str, results: Sequence[Result]) -> list[Trial]:
    """Returns the runs of a stage, those of a cell and a seed together.

    Raises:
        LookupError: It needs results of a stage before that are not there.
    """
    if stage == "tune":
        return tuning()
    found = [trial for cell in MAP.values() for arm in MAPPED for trial in tuned("map", cell, arm, MAP_SEEDS, results)]
    return sorted(found, key=lambda trial: trial.seed)
