"""The map that the package has: the map's cells as a diagnosis sees them, their gains, and a test of its choices."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import yaml

from benchmarks.tables import Table
from envsuite.core.errors import UsageError
from envsuite.data.files import write_atomically
from envsuite.evaluation.statistics.paired import paired_permutation
from research.credit.arms import CEILING, CONTROL, MAPPED, REFERENCE, Trial, settings
from research.credit.cells import MAP, ROOT, Cell
from research.credit.differences import LEVEL
from research.credit.results import Result, areas, difference
from research.credit.runs import command, imitate
from research.credit.stages import MAP_SEEDS
from trainers.credit.map import AXES, Map, Spot, best_of, nearest

FILE = ROOT / "trainers" / "credit" / "map.json"
METHODS = tuple(arm for arm in MAPPED if arm not in (CEILING, CONTROL))
"""Methods that can be suggested."""


def measured(cell: Cell) -> dict[str, float | None]:
    """Returns the measures of :data:`~trainers.credit.map.AXES` of a cell's base model, from 256 episodes."""
    imitate(cell)
    with tempfile.TemporaryDirectory() as folder:
        file, out = Path(folder) / "run.yaml", Path(folder) / "measures.json"
        config = settings(Trial("map", cell, REFERENCE, 0, 1.0e-3, 0), folder)
        config["envs"][0]["kwargs"] = cell.kwargs
        config["rollout"] |= {"tasks": 16, "group_size": 16, "slots": 64}
        file.write_text(yaml.safe_dump(config))
        words = ["diagnose", "--config", str(file), "--json", str(out)]
        command(words, f"the base model of {cell.name} was not diagnosed")
        found = json.loads(out.read_text())["measures"]
    return {name: None if (value := found[name]["value"]) is None else round(value, 4) for name in AXES}


def spots(results: Sequence[Result]) -> list[Spot]:
    """Returns the cells of the map with what each method, and exact credit, adds there.

    Raises:
        UsageError: Runs are missing.
    """
    found, made = areas(results, "map"), []
    for cell in MAP.values():
        apart = {arm: difference(found, cell.name, arm, REFERENCE) for arm in (CEILING, *METHODS) if arm != REFERENCE}
        if any(len(one.pairs) < len(MAP_SEEDS) for one in apart.values()):
            raise UsageError(f"{cell.name} has not all runs of the map yet: python -m research.credit map")
        gain = {arm: [round(float(end), 2) for end in (one.mean, *one.interval)] for arm, one in apart.items()}
        made.append(Spot(cell.name, measured(cell), gain))
    return made


def usual(known: Sequence[Spot]) -> str:
    """Returns the method that is best on average."""
    return max(METHODS, key=lambda arm: float(np.mean([one.gain.get(arm, (0.0,))[0] for one in known])))


def held_out(known: Sequence[Spot]) -> list[tuple[str, str, str, float, float]]:
    """Returns for each cell its best method, the nearest cell's, the usual one of all others, and what both lose."""
    rows = []
    for cell in known:
        others = [one for one in known if one.name != cell.name]
        common, near = usual(others), nearest(others, cell.measures)
        chosen = common if near is None else best_of(near)
        gain = {arm: cell.gain.get(arm, (0.0,))[0] for arm in METHODS}
        most = max(gain.values())
        rows.append((max(gain, key=lambda arm: gain[arm]), chosen, common, most - gain[chosen], most - gain[common]))
    return rows


def table(known: Sequence[Spot]) -> Table:
    """Returns what is chosen in each cell by the others, and the points of area that it loses to the best method."""
    rows = [
        (spot.name, best, chosen, f"{lost:.1f}", common, f"{usually:.1f}")
        for spot, (best, chosen, common, lost, usually) in zip(known, held_out(known), strict=True)
    ]
    note = "Lost: points of area to the best method there. Usual: the method that is best on average over the others."
    heads = ("cell", "best", "nearest cell's", "lost", "usual", "lost")
    return Table("lookup", "Chosen for cells that are held out", note, heads, tuple(rows), "credit")


def write(results: Sequence[Result]) -> Path:
    """Measures the cells, tests the choice and writes the package's map."""
    known = spots(results)
    rows = held_out(known)
    hits, always = (sum(row[0] == row[choice] for row in rows) for choice in (1, 2))
    lost, usually = (float(np.mean([row[choice] for row in rows])) for choice in (3, 4))
    common = usual(known)
    tested = (
        f"on held-out cells the nearest cell's best method was the best one in {hits} of {len(rows)} and lost "
        f"{lost:.1f} points of area, always the usual one ({common}) in {always} and lost {usually:.1f}"
    )
    better = np.array([row[4] - row[3] for row in rows])
    atlas = Map(known, common, bool(better.mean() > 0.0 and paired_permutation(better) < LEVEL), tested)
    write_atomically(FILE, (json.dumps(asdict(atlas), indent=1) + "\n").encode())
    return FILE
