"""The stages of the experiment on credit assignment, and what its report says of them.

The package's map: what is chosen for cells that are held out, and the file.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

from envsuite.core.errors import EnvsuiteError, UsageError
from research.credit import lookup
from research.credit.__main__ import main
from research.credit.arms import MAPPED, SAMPLED, arm_of
from research.credit.cells import BABYAI, MAP, RATES, TUNING, Cell, cell_of
from research.credit.lookup import held_out, table, write
from research.credit.report import verdict_table
from research.credit.results import Result, append, read
from research.credit.stages import (
    FIRST_SEED,
    MAP_SEEDS,
    TUNING_SEEDS,
    Hypothesis,
    Registration,
    chosen,
    registration,
    trials,
    tuned,
    tuning,
)
from trainers.credit.map import Map, Spot
from trainers.settings import ConfigError

CELL = "h8-k2-p15"


def result(arm: str, seed: int, area: float, cell: str = CELL, **more: object) -> Result:
    """A run whose success is the same in all iterations."""
    own = {"stage": "confirm", "rate": 1.0, "option": 0, "base": cell} | more
    key = f"{own['stage']} {cell} {arm} {seed} {own['rate']} {own['option']}"
    return Result(key=key, cell=cell, arm=arm, seed=seed, success=(0.0, area, area), **own)  # type: ignore[arg-type]


def told(results: list[Result], *hypotheses: Hypothesis, seeds: int) -> dict[str, dict[str, str]]:
    """Rows of the table of verdicts, by hypothesis and heading."""
    table = verdict_table(results, Registration(seeds, list(hypotheses)))
    return {row[0]: dict(zip(table.heads, row, strict=True)) for row in table.rows}


def test_stage_2_has_the_tasks_of_none_of_the_maps_runs():
    for cell in MAP.values():
        before = {task for seed in MAP_SEEDS for task in cell.panel(seed)}
        after = [task for seed in range(FIRST_SEED, FIRST_SEED + 30) for task in cell.panel(seed)]
        assert not before & {*after} and len({*after}) == len(after)
        assert cell.tuned in TUNING


def test_a_walk_s_base_model_keeps_the_name_that_results_have():
    names = {name: cell.base.name for name, cell in TUNING.items() if (cell.exact, cell.size) == (True, "small")}
    assert names == {"h8-k3-p30": "e4787f4f21d9", "h16-k3-p30": "1f76fc8c16ba", "h32-k3-p30": "c077f77d2e11"}


def test_the_world_that_is_not_ours_is_tuned_on_other_tasks_and_has_no_exact_arm():
    before = {task for seed in TUNING_SEEDS for task in BABYAI.panel(seed)}
    after = [task for seed in range(FIRST_SEED, FIRST_SEED + 30) for task in BABYAI.panel(seed)]
    assert not before & {*after} and len({*after}) == len(after)
    assert cell_of("babyai") is BABYAI and not BABYAI.tuned
    assert {trial.arm for trial in tuning() if trial.cell is BABYAI} == {*SAMPLED}
    for cell in (BABYAI, cell_of("babyai:horizon=20")):
        with pytest.raises(UsageError, match="has no arm exact: nobody knows the values of BabyAI-v0") as caught:
            tuned("confirm", cell, "exact", [10], [])
        assert "\n" not in str(caught.value)


def test_what_is_registered_has_cells_and_arms_that_are_there():
    asked = registration()
    assert len({one.name for one in asked.hypotheses}) == len(asked.hypotheses) and asked.board
    for name in {*asked.board, *(cell for one in asked.hypotheses for cell in one.cells)}:
        assert cell_of(name).name == name and cell_of(name).tuning in TUNING
    for one in asked.hypotheses:
        assert arm_of(one.arm) != arm_of(one.against)


def test_runs_of_some_cells_need_no_tuning_of_others():
    runs = [
        result(one.arm, one.seed, one.rate, "h8-k3-p30", stage="tune", rate=one.rate, option=one.option)
        for one in tuning(["grpo"]) if one.cell.name == "h8-k3-p30"
    ]  # fmt: skip
    found = trials("confirm", runs, ["grpo"], ["h8-k2-p40"])
    assert [one.seed for one in found] == [*registration().numbers] and {one.rate for one in found} == {max(RATES)}
    assert {one.cell.name for one in trials("tune", [], ["grpo"], ["babyai"])} == {"babyai"}
    with pytest.raises(UsageError, match="grpo is not tuned on h16-k3-p30 yet"):
        trials("confirm", runs, ["grpo"], ["h8-k2-p40", "h16-k5-p15"])


def test_a_verdict_takes_all_registered_runs_and_corrects_for_all_that_is_registered():
    rng = np.random.default_rng(0)
    noise = rng.normal(0.0, 0.02, 12)
    runs = [result("grpo", seed, 0.3) for seed in range(12)]
    runs += [result("exact", seed, 0.4 + noise[seed]) for seed in range(12)]
    runs += [result("gigpo", seed, 0.3 + noise[seed] / 10) for seed in range(12)]
    more = Hypothesis("more", [CELL], "exact")
    same, other = Hypothesis("same", [CELL], "gigpo", test="equivalent"), Hypothesis("other", [CELL], "g2po")
    rows = told(runs, more, same, other, seeds=12)
    assert rows["more"]["verdict"] == rows["same"]["verdict"] == "observed"
    assert rows["other"]["verdict"] == "not run yet" and rows["other"]["p"] == ""
    assert float(rows["more"]["p"]) == pytest.approx(3 * float(told(runs, more, seeds=12)["more"]["p"]), rel=0.6)
    assert told(runs[:-1], same, seeds=12)["same"]["verdict"] == "not run yet"
    less = Hypothesis("less", [CELL], "exact", expected=-1.0)
    assert told(runs, less, seeds=12)["less"]["verdict"] == "the opposite"


def test_cells_are_averaged_seed_by_seed_and_slopes_go_along_the_dial():
    cells, dial = [f"{CELL}:own_words={n}" for n in (0, 1, 4)], [0.0, 1.0, 4.0]
    runs = [result("grpo", seed, 0.2, cell) for cell in cells for seed in (*range(8), 90)]
    runs += [
        result("exact", seed, 0.2 + 0.01 * seed + 0.02 * at, cell)
        for cell, at in zip(cells, dial, strict=True) for seed in (*range(8), 80)
    ]  # fmt: skip
    rows = told(
        runs, Hypothesis("mean", cells, "exact"), Hypothesis("slope", cells, "exact", test="slope", dial=dial), seeds=8
    )
    assert rows["mean"]["pairs"] == rows["slope"]["pairs"] == "8"
    assert rows["mean"]["difference"].startswith(f"{3.5 + 2.0 * np.mean(dial):+.1f}")
    assert rows["slope"]["difference"] == "+2.0 [+2.0, +2.0]"


def test_hypotheses_and_results_that_make_no_sense_are_refused(tmp_path, capsys):
    with pytest.raises(ConfigError, match="equivalence is tested in one cell"):
        Hypothesis("two", [CELL, CELL], "exact", test="equivalent")
    with pytest.raises(ConfigError, match="a value of dial for each"):
        Hypothesis("slope", [CELL, CELL], "exact", test="slope", dial=[1.0])
    runs = [result("grpo", 0, 0.3), result("exact", 0, 0.3, base="another")]
    with pytest.raises(UsageError, match="several base models"):
        told(runs, Hypothesis("more", [CELL], "exact"), seeds=1)
    with pytest.raises(UsageError, match="exact is not tuned on h8-k3-p30 yet"):
        chosen(runs, "h8-k3-p30", "exact")
    with pytest.raises(EnvsuiteError, match="h8-k2-p16"):
        cell_of("h8-k2-p16")
    file = tmp_path / "results.jsonl"
    for one in runs:
        append(one, file)
    assert [one.key for one in read(file)] == [one.key for one in runs]
    assert main(["map", "--plan", "--results", str(file)]) == 2
    assert "is not tuned on" in capsys.readouterr().err


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
