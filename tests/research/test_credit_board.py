"""The leaderboard: what a row says, and what it can be checked by."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from envsuite.core.errors import EnvsuiteError, UsageError
from research.credit import board, stages
from research.credit.__main__ import main
from research.credit.arms import Trial, arm_of
from research.credit.cells import RATES, cell_of
from research.credit.results import Result, append
from research.credit.stages import FIRST_SEED, tuning

CELLS, SEEDS = ["h8-k2-p15", "h16-k2-p15"], 4


@pytest.fixture(autouse=True)
def registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "registered.yaml"
    file.write_text(yaml.safe_dump({"seeds": SEEDS, "board": CELLS}))
    monkeypatch.setattr(stages, "REGISTERED", file)
    monkeypatch.setattr(board, "BOARD", tmp_path / "board.jsonl")


def run(trial: Trial, area: float) -> Result:
    """A run of the same success in all iterations."""
    own = (trial.key, trial.stage, trial.cell.name, trial.arm, trial.seed, trial.rate, trial.option)
    return Result(*own, success=(0.0, area, area), base=trial.cell.base.name, commit="abc")


def runs(arm: str, area: float) -> list[Result]:
    """The runs of the leaderboard's cells, each a little better than the one before."""
    return [
        run(Trial("confirm", cell_of(cell), arm, FIRST_SEED + seed, RATES[0], 0), area + 0.01 * seed)
        for cell in CELLS for seed in range(SEEDS)
    ]  # fmt: skip


def test_a_row_has_the_gain_of_each_cell_and_hashes_of_runs_and_method():
    results = [*runs("grpo", 0.3), *runs("g2po", 0.35)]
    row = board.enter("g2po", results)
    assert row.gain == {cell: [5.0, 5.0, 5.0] for cell in CELLS} and row.commit == "abc"
    assert board.enter("g2po", [*results[::-1]]).runs == row.runs
    other = board.enter("g2po", [*runs("grpo", 0.3), *runs("g2po", 0.351)])
    assert (
        other.runs != row.runs
        and other.source == row.source != board.enter("gigpo", [*runs("grpo", 0.3), *runs("gigpo", 0.3)]).source
    )
    board.add(row)
    board.add(row)
    board.add(other)
    assert board.read() == [row, other]
    assert board.table([row, other]).rows[0][:2] == ("g2po", "+5.1 [+5.1, +5.1]")


def test_a_row_needs_all_runs():
    with pytest.raises(UsageError, match="g2po has no run of h8-k2-p15 for 1 of 4 seeds"):
        board.enter("g2po", [*runs("grpo", 0.3), *runs("g2po", 0.3)[1:]])
    with pytest.raises(UsageError, match="exact is no method"):
        board.enter("exact", [*runs("grpo", 0.3), *runs("exact", 0.3)])
    other = [replace(one, success=(0.1, *one.success[1:])) for one in runs("g2po", 0.3)]
    with pytest.raises(UsageError, match="start from another base model"):
        board.enter("g2po", [*runs("grpo", 0.3), *other])


def test_a_method_of_a_package_enters_by_a_file(tmp_path, capsys, monkeypatch):
    file, results = tmp_path / "mine.yaml", tmp_path / "results.jsonl"
    file.write_text("estimator: rloo\noptions: [{options: {}}, {shapers: {scale: {factor: 2.0}}}]\n")
    arm = arm_of(str(file))
    assert (arm.recipe, arm.estimator, len(arm.options)) == ("grpo", "rloo", 2)
    for trial in tuning([str(file), "grpo"], ("h8-k3-p30", "h16-k3-p30")):
        append(run(trial, 0.3), results)
    for one in [*runs("grpo", 0.3), *runs(str(file), 0.4)]:
        append(one, results)
    assert main(["board", "--arms", str(file), "--results", str(results)]) == 0
    (row,) = board.read()
    assert row.gain[CELLS[0]] == [10.0, 10.0, 10.0] and "+10.0" in capsys.readouterr().out
    cell = cell_of("h8-k2-p15")
    first, second = (Trial("tune", cell, str(file), 900, RATES[0], option) for option in (0, 1))
    before = first.key
    file.write_text("estimator: rloo\noptions: [{options: {}}, {shapers: {scale: {factor: 3.0}}}]\n")
    assert first.key == before != second.key  # the other setting is another run
    file.write_text("estimator: dr_grpo\noptions: [{options: {}}, {}]\n")
    assert first.key != before
    file.write_text("estimator: rloo\noptions: [{}]\n")
    assert main(["board", "--arms", str(file), "--results", str(results)]) == 2
    assert "options" in capsys.readouterr().err
    with pytest.raises(EnvsuiteError, match="unknown arm 'median'"):
        arm_of("median")
