"""The stages of the experiment on credit assignment, and what its report says of them."""

from __future__ import annotations

import numpy as np
import pytest

from envsuite.core.errors import EnvsuiteError, UsageError
from research.credit.__main__ import main
from research.credit.arms import SAMPLED, arm_of
from research.credit.cells import BABYAI, MAP, RATES, TUNING, cell_of
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
