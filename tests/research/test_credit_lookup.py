"""The package's map: what is chosen for cells that are held out, and the file."""

from __future__ import annotations

import json

import pytest

from envsuite.core.errors import UsageError
from research.credit import lookup
from research.credit.arms import MAPPED
from research.credit.cells import MAP, Cell
from research.credit.lookup import held_out, table, write
from research.credit.results import Result
from research.credit.stages import MAP_SEEDS
from trainers.credit.map import Map, Spot


def spot(name: str, length: float, success: float, **gain: float) -> Spot:
    """A cell whose gains are certain to a point."""
    measures = {"median_length": length, "success": success, "effective_decisions": None}
    return Spot(name, measures, {arm: (mean, mean - 1.0, mean + 1.0) for arm, mean in gain.items()})


def test_choices_are_tested_on_cells_that_they_have_not_seen():
    sizes = [(f"{length}-{success}", length, success) for length in (8.0, 9.0, 32.0, 34.0) for success in (0.2, 0.4)]
    apart = [spot(*size, g2po=4.0 if size[1] < 16 else -2.0, gigpo=-3.0 if size[1] < 16 else 2.0) for size in sizes]
    rows = held_out(apart)
    assert all(best == chosen and lost == 0.0 for best, chosen, _, lost, _ in rows)
    assert sum(usual for *_, usual in rows) > 10.0
    alike = [spot(*size, g2po=4.0, gigpo=1.0) for size in sizes]
    assert [row[3:] for row in held_out(alike)] == [(0.0, 0.0)] * len(sizes)
    assert table(alike).rows[0] == (alike[0].name, "g2po", "g2po", "0.0", "g2po", "0.0")


def runs() -> list[Result]:
    """The runs of the map: GiGPO leads with two decisions and G2PO with five, by a little more with each seed."""
    found = []
    for cell in MAP.values():
        for arm in MAPPED:
            best = "gigpo" if cell.decisions == 2 else "g2po"
            for seed in MAP_SEEDS:
                area = 0.3 + (arm == best) * (0.01 * cell.decisions + 0.001 * seed) + (arm == "exact") * 0.2
                own = (f"{cell.name} {arm} {seed}", "map", cell.name, arm, seed, 1.0, 0, (0.1, area))
                found.append(Result(*own, base=cell.name))
    return found


def test_the_map_has_every_cell_and_the_test_of_its_choices(tmp_path, monkeypatch):
    def measured(cell: Cell) -> dict[str, float | None]:
        return {"median_length": float(cell.horizon), "success": cell.start, "effective_decisions": cell.decisions}

    monkeypatch.setattr(lookup, "FILE", tmp_path / "map.json")
    monkeypatch.setattr(lookup, "measured", measured)
    body = json.loads(write(runs()).read_text())
    made = Map(**{**body, "spots": [Spot(**one) for one in body["spots"]]})
    assert [one.name for one in made.spots] == [*MAP] and made.usual == "g2po"
    assert made.spots[0].gain["gigpo"][0] == pytest.approx(2.45) and made.spots[0].gain["exact"][0] == 20.0
    assert made.suggests and "12 of 12" in made.tested
    with pytest.raises(UsageError, match="has not all runs of the map yet"):
        write([one for one in runs() if one.key != "h32-k5-p40 g2po 9"])
