"""The second protocol: its runs, exact tests, verdicts, and the recount that shares no code with them.

Differences of two arms over pairs of runs: Student's interval, and what so many pairs find.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from envsuite.core.errors import UsageError
from research.credit import recount, second
from research.credit.cells import RATES, cell_of
from research.credit.differences import Difference, detectable, exact_p, trimmed_mean
from research.credit.results import Result, append
from research.credit.second import Comparison, Plan
from research.credit.stages import FIRST_SEED, MAP_SEEDS, TUNING_SEEDS, registration

CELL, TUNED = "h8-k2-p15", "h8-k3-p30"
PLAN = Plan("k3-0.01", RATES[1], seeds=8, comparisons=[Comparison("exact", [CELL]), Comparison("gigpo", [CELL])])


def result(stage: str, arm: str, seed: int, rate: float, *success: float, error: str = "") -> Result:
    cell = CELL if stage == "second" else TUNED
    key = f"{stage} {arm} {seed} {rate}"
    return Result(key, stage, cell, arm, seed, rate, 0, (0.1, *success), guard=PLAN.guard, error=error)


def some_runs() -> list[Result]:
    """GRPO and GiGPO learn little, exact credit much; each is tuned to another rate."""
    rng = np.random.default_rng(0)
    gains, runs = {"grpo": 0.2, "gigpo": 0.2, "exact": 0.6}, []
    for (arm, gain), best in zip(gains.items(), RATES[1:], strict=True):
        runs += [result("guard", arm, seed, rate, gain - (rate != best) * 0.1)
                 for rate in RATES[1:] for seed in TUNING_SEEDS]  # fmt: skip
        for rate in {PLAN.rate, best}:
            draws = rng.normal(0.0, 0.01, (PLAN.seeds, 2))
            runs += [
                result("second", arm, PLAN.first + n, rate, *np.round(gain + draws[n], 5).tolist())
                for n in range(PLAN.seeds)
            ]
    return runs


@given(st.lists(st.floats(-5.0, 5.0).map(lambda value: round(value, 2)), min_size=1, max_size=9))
def test_p_counts_all_changes_of_signs(values):
    pairs = np.array(values)
    sums = [abs(np.dot(signs, pairs)) for signs in itertools.product((1, -1), repeat=len(pairs))]
    assert exact_p(pairs) == pytest.approx(np.mean(np.array(sums) >= abs(pairs.sum()) - 1e-9))


def test_the_trimmed_mean_is_scipys_and_does_not_feel_a_run_that_collapsed():
    pairs = np.random.default_rng(0).normal(2.0, 1.0, 30)
    mean, low, high = trimmed_mean(pairs)
    assert mean == pytest.approx(stats.trim_mean(pairs, 0.2)) and low < mean < high
    fallen = np.where(pairs == pairs.min(), -90.0, pairs)
    assert trimmed_mean(fallen) == pytest.approx((mean, low, high))


def test_the_runs_are_fresh_and_their_base_models_several():
    plan = second.plan()
    new = {task for seed in range(plan.first, plan.first + plan.seeds) for task in cell_of(CELL).panel(seed)}
    old = [*MAP_SEEDS, *range(FIRST_SEED, FIRST_SEED + registration().seeds), *TUNING_SEEDS]
    assert not new & {task for seed in old for task in cell_of(CELL).panel(seed)}
    tuned = {(cell_of(cell).tuning, arm) for cell, arm in plan.runs}
    runs = [Result("", "guard", cell, arm, seed, rate, 0, (0.0, rate), guard=plan.guard)
            for cell, arm in tuned for seed in TUNING_SEEDS for rate in RATES[1:]]  # fmt: skip
    found = second.trials("second", runs)
    assert {trial.guard for trial in found} == {plan.guard} and {trial.rate for trial in found} == {
        plan.rate,
        RATES[-1],
    }
    for cell in {cell for cell, _ in plan.runs}:
        mine = [trial for trial in found if trial.cell.name == cell]
        assert len({trial.cell.base for trial in mine}) == plan.bases > 1
        assert not {trial.cell.base for trial in mine} & {cell_of(cell).base}


def test_a_guard_is_part_of_a_run_and_tells_two_apart():
    found = second.trials("guard", [], ["grpo"], [TUNED])
    assert {trial.guard for trial in found} >= {*second.TRIED} and len({trial.key for trial in found}) == len(found)


def test_a_verdict_needs_all_runs_and_all_measures():
    runs = some_runs()
    rows = {row[:4]: row for row in second.second_table(runs, PLAN).rows}
    assert rows["one", CELL, "exact", "grpo"][-1] == rows["tuned", CELL, "exact", "grpo"][-1] == "higher"
    assert rows["one", CELL, "gigpo", "grpo"][-1] == "equal"
    assert len(second.second_table(runs[:-1], PLAN).rows) < len(rows)
    curves = {"grpo": (0.1, 0.5, 0.0), "exact": (0.1, 0.3, 0.3)}  # greater area, lower best
    changed = [replace(run, success=curves.get(run.arm, run.success)) for run in runs]
    row = next(row for row in second.second_table(changed, PLAN).rows if row[2] == "exact")
    assert (row[4], row[6], row[-1]) == ("+5.0 [+5.0, +5.0]", "-20.0 [-20.0, -20.0]", "cannot be told")
    ends = {row[1:3]: row for row in second.ends_table(changed, PLAN).rows}
    assert ends["grpo", "one"][4:] == (str(PLAN.seeds), "10.0", "25.0", "50.0", "0.0")
    assert ends["exact", "one"][4:] == ("0", "10.0", "30.0", "30.0", "30.0")


def test_nothing_is_run_that_is_not_registered_or_tuned(monkeypatch):
    with pytest.raises(UsageError, match=f"exact is not tuned on {TUNED} with k3-0.01 yet"):
        second.tuned_rate([], TUNED, "exact", "k3-0.01")
    monkeypatch.setattr(second, "plan", Plan)
    with pytest.raises(UsageError, match="nothing is registered"):
        second.trials("second", [])


def test_the_recount_finds_what_the_report_says(tmp_path, capsys):
    for run in some_runs():
        append(run, tmp_path / "runs.jsonl")
    written = {"guard": PLAN.guard, "rate": PLAN.rate, "seeds": PLAN.seeds,
               "comparisons": [{"arm": one.arm, "cells": one.cells} for one in PLAN.comparisons]}  # fmt: skip
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(written))
    recount.main(tmp_path / "runs.jsonl", tmp_path / "plan.yaml")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    rows = second.second_table(some_runs(), PLAN).rows
    assert [(*line["row"], line["area"], line["best"]) for line in lines] == [(*row[:5], row[6]) for row in rows]
    for line, row in zip(lines, rows, strict=True):
        assert [line["p"], line["p best"]] == pytest.approx(
            [float(row[place].strip("<")) for place in (5, 7)], abs=4e-3
        )


def test_an_interval_is_students():
    rng = np.random.default_rng(1)
    one, two = rng.normal(0.4, 0.05, 5), rng.normal(0.3, 0.05, 5)
    expected = stats.ttest_rel(one, two).confidence_interval()
    assert Difference(one - two).interval == pytest.approx(tuple(expected))
    assert Difference(np.array([0.1])).interval == (-np.inf, np.inf)


@pytest.mark.parametrize(("seeds", "comparisons"), [(5, 1), (5, 8), (10, 8)])
def test_the_detectable_difference_is_found_four_times_of_five(seeds, comparisons):
    apart = detectable(0.03, seeds, comparisons)
    drawn = np.random.default_rng(2).normal(apart, 0.03, (20_000, seeds))
    p = stats.ttest_1samp(drawn, 0.0, axis=1).pvalue
    assert (p < 0.05 / comparisons).mean() == pytest.approx(0.8, abs=0.015)
    with pytest.raises(UsageError):
        detectable(0.0, seeds, comparisons)
