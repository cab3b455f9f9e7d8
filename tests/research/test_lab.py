from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import rich.console
from console import Console

from benchmarks.tables import Table
from research.lab import __main__ as program
from research.lab import claims, experiments, learning
from research.lab.methods import methods
from research.lab.rollout import Plan, play, table
from research.lab.tables import all_tables, cell
from research.lab.worlds import aliased, delayed, renamed


def without_times(records: list[dict[str, str | float]]) -> list[dict[str, str | float]]:
    # nan equals nothing, itself included: compare as text
    return [{k: str(v) for k, v in record.items() if k != "ms_per_1000"} for record in records]


@pytest.mark.seconds
@pytest.mark.parametrize("make", experiments.WORLDS.values(), ids=experiments.WORLDS)
def test_the_same_seed_measures_the_same(make) -> None:  # type: ignore[no-untyped-def]
    setting = experiments.Setting("worlds", make(), 0.0)
    one, other = (experiments.measure(setting, 3, 2) for _ in range(2))
    assert without_times(one) == without_times(other)
    assert without_times(one) != without_times(experiments.measure(setting, 4, 2))
    assert [record["method"] for record in one] == [method.name for method in methods(setting.world.name)]


@pytest.mark.parametrize("name", claims.CLAIMS)
def test_a_claim_is_tried_the_same_with_the_same_seed(name: str) -> None:
    one, other = (claims.CLAIMS[name](1, 2) for _ in range(2))
    assert one
    assert without_times(one) == without_times(other)


def test_the_exact_advantage_learns_the_best_actions() -> None:
    curves = learning.train(delayed(), learning.ORACLE, np.full(3, 30.0), range(3), 20)
    assert curves[:, 0] == pytest.approx(learning.START["delayed"])
    assert (curves[:, -1] > 0.95).all()


def test_all_methods_start_from_the_same_policies() -> None:
    first = [
        learning.train(aliased(1), method, np.full(2, 1.0), range(2), 2)[:, 0]
        for method in methods("aliased")
        if method.estimator in ("grpo", "steppo", "bipace")
    ]
    np.testing.assert_array_equal(first, np.broadcast_to(first[0], np.shape(first)))


def test_names_hide_a_state_from_exact_keys_and_not_from_its_fingerprint() -> None:
    records = experiments.measure(experiments.Setting("names", renamed(names=16), 16.0), 0, 8)
    alone = {str(record["method"]): float(record["singletons"]) for record in records}
    assert alone["bipace"] < 0.05 < 0.5 < alone["gigpo"]


def test_history_tells_look_alikes_apart_as_far_as_it_reaches() -> None:
    records = [r for seed in range(3) for r in claims.hgpo(seed, 24)]
    bias = {
        name: np.mean([float(r["bias"]) for r in records if r["method"] == name and r["x"] == 64.0 and "bias" in r])
        for name in ("episode", "level 0", "level 2", "level 4")
    }
    assert bias["episode"] > bias["level 0"] > bias["level 2"] > bias["level 4"]


def test_a_step_table_of_the_lab_is_what_a_rollout_makes() -> None:
    played = play(aliased(2), np.full((7, 3), 1 / 3), Plan(2, 2, 3), np.random.default_rng(0))
    steps = table(played, np.random.default_rng(0))
    assert len(np.unique(steps.group_id)) == 4
    assert len(np.unique(steps.episode_id)) == 12
    for episode in range(12):
        rows = steps.episode_id == episode
        assert steps.t[rows].tolist() == list(range(rows.sum()))
        assert steps.reward[rows].sum() == played.returns[episode]
        assert steps.extra["step_text"][rows][-1].endswith("success" if played.returns[episode] > 0 else "end")


@pytest.mark.slow
def test_the_command_leaves_tables_figures_and_a_report(tmp_path: Path) -> None:
    world = delayed(2)
    setting = experiments.Setting("worlds", world, 0.0)
    records = experiments.measure(setting, 0, 2) + experiments.measure(setting, 1, 2)
    few = [method for method in methods("delayed") if method.estimator in ("grpo", "gigpo")]
    for method in few:
        records += learning.learn("learning", world, method, 2, 2)
    for x in (1.0, 2.0):
        records += experiments.measure(experiments.Setting("group size", world, x), 0, 2, few)
    for claim in claims.CLAIMS.values():
        records += claim(0, 2)
    files = program.write(records, tmp_path, quick=True)
    assert all(file.stat().st_size > 0 for file in files)
    assert {file.name for file in files if file.suffix == ".png"} == {
        "quality.png", "sweeps.png", "learning.png", "claims.png",
    }  # fmt: skip
    report = (tmp_path / "report.md").read_text()
    assert "--quick" in report
    assert all(table.title in report for table in all_tables(records, {}))
    assert sum(1 for _ in (tmp_path / "records.jsonl").open()) == len(records)
    assert json.loads((tmp_path / "records.jsonl").open().readline())["world"] == "delayed"


@pytest.mark.seconds
def test_jobs_come_back_in_their_order_whoever_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = experiments.Setting("worlds", delayed(2), 0.0)
    work = [program.Job(f"seed {seed}", experiments.measure, (setting, seed, 2)) for seed in range(3)]
    monkeypatch.setattr(program, "jobs", lambda config: work)
    alone, together = (program.run(program.LabConfig(processes=n), rich.console.Console(quiet=True)) for n in (1, 2))
    assert without_times(alone) == without_times(together)


def test_everything_the_full_run_does_is_named_once() -> None:
    names = [job.what for job in program.jobs(program.LabConfig())]
    assert len(names) == len(set(names))


def test_a_wrong_option_or_folder_is_an_error_that_says_which_before_the_work(tmp_path: Path, console: Console) -> None:
    (tmp_path / "file").touch()
    for line, said in (
        (f"--out {tmp_path}/file/lab", "cannot be written to"),
        ("--proceses 1", "--processes"),
        ("--processes 0", "processes is 0"),
    ):
        assert said in console(line, 2, program.main)[1]


def test_tables_are_markdown_and_latex() -> None:
    made = Table("name", "A title", "A note.", ("method", "bias²"), (("a_b", "0.1 ±0.0"), ("c, d", cell(None))))
    assert "| a_b | 0.1 ±0.0 |" in made.markdown()
    assert r"a\_b & 0.1 $\pm$0.0 \\" in made.latex()
    assert r"c, d & -- \\" in made.latex()
