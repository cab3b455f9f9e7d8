"""The leaderboard: an arm's gain over GRPO in the registered cells, as a dated row that its runs can be checked by."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from benchmarks.tables import Table
from envsuite.core.errors import UsageError
from research.credit.arms import REFERENCE, source
from research.credit.differences import shown as points
from research.credit.results import Result, areas, difference
from research.credit.stages import registration

CLOSE = 0.001
"""Success at the start may differ by so much, by rounding."""
BOARD = Path(__file__).with_name("board.jsonl")


@dataclass(frozen=True)
class Row:
    """An arm that has all runs of the leaderboard's cells."""

    arm: str
    date: str
    """Day of the entry, UTC."""
    commit: str
    """That its last run was made with."""
    runs: str
    """SHA-256 of the success of all its runs, by cell and seed."""
    source: str
    """SHA-256 of the file of its estimator."""
    gain: dict[str, list[float]]
    """Points of area above GRPO's by cell, with the 95 % interval."""


def enter(arm: str, results: Sequence[Result]) -> Row:
    """Returns the row of an arm.

    Raises:
        UsageError: Runs are missing, of the arm or of GRPO, or start from different base models.
    """
    asked, gain = registration(), dict[str, list[float]]()
    found, seeds = areas(results, "confirm"), asked.numbers
    for cell in asked.board:
        for name in (arm, REFERENCE):
            if missing := {*seeds} - {*found.get((cell, name), {})}:
                raise UsageError(f"{name} has no run of {cell} for {len(missing)} of {asked.seeds} seeds")
        runs = [run for run in results if (run.stage, run.cell) == ("confirm", cell) and not run.error]
        first = {(run.arm, run.seed): run.success[0] for run in runs}
        both = [seed for seed in seeds if (arm, seed) in first and (REFERENCE, seed) in first]
        if any(abs(first[arm, seed] - first[REFERENCE, seed]) > CLOSE for seed in both):
            raise UsageError(f"{cell}: runs of {arm} start from another base model than GRPO's; run GRPO here, too")
        apart = difference(found, cell, arm, REFERENCE)
        gain[cell] = [round(value, 4) for value in (apart.mean, *apart.interval)]
    mine = [r for r in results if r.stage == "confirm" and r.arm == arm and r.cell in asked.board and r.seed in seeds]
    played = sorted((result.cell, result.seed, result.success, result.error) for result in mine)
    own = hashlib.sha256(source(arm).read_bytes()).hexdigest()
    digest = hashlib.sha256(orjson.dumps(played)).hexdigest()
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return Row(arm, today, mine[-1].commit, digest[:16], own[:16], gain)


def read() -> list[Row]:
    """Returns the rows that were entered."""
    return [Row(**orjson.loads(line)) for line in BOARD.read_bytes().splitlines()] if BOARD.exists() else []


def add(row: Row) -> None:
    """Adds a row; one of the same arm with the same runs stays."""
    if all((one.arm, one.runs) != (row.arm, row.runs) for one in read()):
        with BOARD.open("ab") as file:
            file.write(orjson.dumps(asdict(row)) + b"\n")


def table(rows: Sequence[Row]) -> Table:
    """Returns the leaderboard, the greatest mean gain first."""
    cells = list(dict.fromkeys(cell for row in rows for cell in row.gain))
    order = sorted(rows, key=lambda row: -sum(mean for mean, *_ in row.gain.values()))
    shown = []
    for row in order:
        each = [row.gain.get(cell) for cell in cells]
        gains = ["" if one is None else points(*one) for one in each]
        shown.append((row.arm, *gains, row.date, row.commit, row.runs, row.source))
    note = "Points of area above GRPO's with 95 % intervals; hashes of the runs and of the method's file."
    return Table(
        "board", "Leaderboard", note, ("method", *cells, "date", "commit", "runs", "source"), tuple(shown), "credit"
    )
