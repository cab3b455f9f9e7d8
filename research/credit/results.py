"""Results of runs: a line each in one file; areas under learning curves, and differences of arms."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import orjson

from envsuite.core.errors import UsageError
from research.credit.differences import Difference

RESULTS = Path(__file__).with_name("results.jsonl")


@dataclass(frozen=True)
class Result:
    """A run that has ended."""

    key: str
    stage: str
    cell: str
    arm: str
    seed: int
    rate: float
    option: int
    success: tuple[float, ...] = ()
    """Expected success of the policy on the panel, exact or sampled, before each iteration and after the last."""
    held_out: tuple[float, float] = (0.0, 0.0)
    """The same on tasks of the split ``test``, before the first iteration and after the last."""
    tokens: float = 0.0
    """Response tokens."""
    seconds: float = 0.0
    """CPU time."""
    base: str = ""
    """Name of the base model, by the settings of its training."""
    commit: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics of the first iteration, which tell what the base model's steps are like."""
    guard: str = ""
    """What was done against a collapse."""
    error: str = ""
    """Why it failed; empty where it did not."""

    @property
    def done(self) -> tuple[str, str]:
        """The trial that was run, and its base model."""
        return self.key, self.base

    @property
    def area(self) -> float:
        """Area under the learning curve: mean success, without that of the base model, which all arms have."""
        return sum(self.success[1:]) / (len(self.success) - 1)


def read(path: Path = RESULTS) -> list[Result]:
    """Returns all results, in the order in which they were written."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [Result(**orjson.loads(line)) for line in lines]


def append(result: Result, path: Path) -> None:
    """Adds a result at the end of the file."""
    with path.open("ab") as file:
        file.write(orjson.dumps(asdict(result)) + b"\n")
        file.flush()
        os.fsync(file.fileno())


Areas = Mapping[tuple[str, str], Mapping[int, float]]
"""Area under the learning curve, in percent, by cell and arm, and seed."""


def areas(results: Sequence[Result], stage: str) -> Areas:
    """Returns the areas of a stage; a run that failed has that of a policy that never succeeds.

    Raises:
        UsageError: The runs of a cell start from several base models.
    """
    found: dict[tuple[str, str], dict[int, float]] = {}
    bases = {(result.cell, result.base) for result in results if result.stage == stage}
    if len(bases) > len({cell for cell, _ in bases}):
        raise UsageError(f"stage {stage}: the runs of a cell start from several base models; remove those of one")
    for result in results:
        if result.stage == stage:
            area = 0.0 if result.error else 100.0 * result.area
            found.setdefault((result.cell, result.arm), {})[result.seed] = area
    return found


def difference(found: Areas, cell: str, arm: str, against: str) -> Difference:
    """Returns the difference of two arms over the seeds that both have, in points."""
    one, other = found.get((cell, arm), {}), found.get((cell, against), {})
    return Difference(np.array([one[seed] - other[seed] for seed in sorted({*one} & {*other})]))
