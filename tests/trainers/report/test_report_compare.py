"""The page that compares runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from chromium import CUT_OFF
from scipy.stats import binomtest
from synthetic_run import make_episodes, make_run

from envsuite.core.errors import UsageError
from envsuite.evaluation.statistics import paired_rates_interval
from envsuite.playing.step import Episode
from trainers.programs.report import main
from trainers.report.compare import (
    ComparedTask,
    RunComparison,
    compare_outcomes,
    last_evaluations,
    outcomes,
    write_comparison,
)
from trainers.report.run import RunData
from trainers.report.stats import evaluate_summary
from trainers.steps.parquet import shard_of, write_episodes

TASKS = 24
Runs = Callable[..., RunData]
ENV = {"id": "TextCraft-v0", "split": "test", "kwargs": {"source": "builtin"}, "max_episode_steps": 20}


def played(skill: float, seed: int) -> list[Episode]:
    """An evaluation: one episode of each task, whose ids any run has."""
    episodes, _, _ = make_episodes(np.random.default_rng(seed), 1, TASKS, 1, 4, skill)
    return [replace(one, task_id=f"task-{i}", task_type=f"depth-{i % 2 + 1}", split="test", error=None)
            for i, one in enumerate(episodes)]  # fmt: skip


@pytest.fixture
def run_of(tmp_path: Path) -> Runs:
    def make(name: str, skill: float = 0.5, seed: int = 0, env: dict[str, Any] | None = None, **config: Any) -> RunData:
        config["evaluation"] = {"envs": [{**ENV, **(env or {})}]}
        folder = make_run(tmp_path / name, 2, 2, 2, 3, seed, advantages=False, tasks=4, **config)
        episodes = played(skill, seed)
        split, tasks = (env or {}).get("split", "test"), (env or {}).get("hash", "3f9a77c0de")
        result = evaluate_summary(episodes, "after", "TextCraft-v0", split, tasks, 8, 0.4, 1.0)
        summary = json.loads((folder / "summary.json").read_text())
        (folder / "summary.json").write_text(json.dumps({**summary, "evaluations": [result.to_json()]}))
        write_episodes(folder / "episodes" / "eval-00000.parquet", played(0.0, 9))
        write_episodes(folder / "episodes" / "eval-00002.parquet", episodes)
        return RunData.load(folder)

    return make


def test_equal_conditions_stand_in_one_table_and_tasks_are_paired(run_of):
    one, other = run_of("one", 0.3, 1), run_of("other", 0.9, 2)
    comparison = RunComparison([one, other])
    (table,) = comparison.tables()
    assert comparison.warnings() == [] and table["runs"] == [0, 1]
    (pair,) = table["pairs"]
    solved = [[episode.success for episode in played(*which)] for which in ((0.3, 1), (0.9, 2))]
    first, second = (np.array(values) for values in solved)
    assert pair["first_better"] == (first & ~second).sum() and pair["second_better"] == (~first & second).sum()
    assert pair["tasks"] == TASKS and pair["unpaired"] == 0
    assert pair["difference"] == pytest.approx(second.mean() - first.mean())
    assert pair["p"] == pytest.approx(
        binomtest(pair["first_better"], pair["first_better"] + pair["second_better"]).pvalue
    )
    assert pair["interval"] == pytest.approx(np.ravel(paired_rates_interval((first, 1), (second, 1))))
    assert table["rows"][-1][:2] == ["all", TASKS]
    assert table["rows"][-1][2].startswith(f"{100 * first.mean():.1f} [")
    assert [cell[1] for cell in (task["cells"][0] for task in table["tasks"])] == first.astype(int).tolist()


@pytest.mark.parametrize(
    ("env", "differs"),
    [
        ({"hash": "ffffffffff"}, "task set 3f9a77c0de and ffffffffff"),
        ({"max_episode_steps": 30}, "step budget 20 and 30"),
        ({"max_episode_steps": None}, "step budget 20 and the environment's own"),
        ({"split": "validation"}, "split test and validation"),
        ({"kwargs": {"source": "generated"}}, "environment's arguments"),
    ],
)
def test_runs_that_are_not_comparable_are_named(run_of, tmp_path, capsys, env, differs):
    one, other = run_of("one"), run_of("other", env=env)
    comparison = RunComparison([one, other])
    (said,) = comparison.warnings()
    assert said.startswith("TextCraft-v0: one and other are not comparable") and differs in said
    assert [table["runs"] for table in comparison.tables()] == [[0], [1]]
    assert all(table["pairs"] == [] for table in comparison.tables())
    out = tmp_path / "deep" / "page.html"
    assert main([str(one.folder), str(other.folder), "--out", str(out)]) == 0
    assert differs in capsys.readouterr().err and out.exists()


def test_other_tasks_are_not_compared_and_those_with_an_episode_that_failed_are(run_of):
    one, other = run_of("one"), run_of("other")
    episodes = played(0.5, 0)
    failed = [replace(episodes[0], error="crashed", success=False), *episodes[1:]]
    for some, tables in ((episodes[:9], 2), (failed, 1)):
        result = evaluate_summary(some, "after", "TextCraft-v0", "test", "3f9a77c0de", 8, 0.4, 1.0)
        comparison = RunComparison([one, replace(other, evaluations=(result,))])
        assert len(comparison.tables()) == tables
        assert [f"tasks {TASKS} and 9" in said for said in comparison.warnings()] == [True] * (tables - 1)


def test_settings_that_differ_are_listed_and_no_others(run_of):
    one, other = run_of("one", seed=1), run_of("other", seed=1, optim={"lr": 1e-3})
    assert RunComparison([one, other]).settings() == [("optim.lr", ["0.0001", "0.001"]), ("optim.epochs", ["2", "–"])]  # noqa: RUF001


def test_an_evaluation_without_saved_episodes_is_not_paired(run_of):
    one, other = run_of("one"), run_of("other")
    for path in other.folder.glob("episodes/eval-*"):
        path.unlink()
    (table,) = RunComparison([one, other]).tables()
    assert table["pairs"][0]["problem"] == "the episodes of other are not saved" and len(table["rows"]) > 1


def test_the_last_evaluation_is_found_in_shards_too(run_of):
    run = run_of("one")
    path = run.folder / "episodes" / "eval-00002.parquet"
    path.unlink()
    for number in range(2):
        write_episodes(shard_of(path, number, 2), [e for e in played(0.5, 0) if e.episode_id % 2 == number])
    (found,) = last_evaluations(0, run)
    assert found.file == path and len(outcomes(path)) == TASKS


def test_repeated_tasks_are_compared_by_their_rates_and_lone_ones_left_out():
    counts = ({"a": (2, 1), "b": (2, 2), "c": (1, 1)}, {"a": (2, 2), "b": (1, 1), "d": (1, 1)})
    first, second = (
        {name: ComparedTask((*range(played),), solved, 3.0, "") for name, (played, solved) in tasks.items()}
        for tasks in counts
    )
    assert compare_outcomes(first, second) == {
        "tasks": 2, "unpaired": 2, "first_better": 0, "second_better": 1, "difference": 0.25, "p": 1.0,
        "interval": pytest.approx(np.ravel(paired_rates_interval(([0.75, 1.5], 1.5), ([1.5, 1.5], 1.5)))),
    }  # fmt: skip
    assert compare_outcomes(first, {}) == {"tasks": 0}


def test_episodes_that_failed_pair_with_nothing_and_those_without_room_are_not_solved(tmp_path):
    episodes = [replace(one, success=False) for one in played(1.0, 0)[:3]]
    silent = replace(episodes[0], error="no answer", unanswered=True)
    full = replace(episodes[2], error="no room", context_truncated=True)
    write_episodes(tmp_path / "x.parquet", [silent, replace(episodes[1], error="crashed"), full])
    assert {name: task.solved for name, task in outcomes(tmp_path / "x.parquet").items()} == {full.task_id: 0}


def test_a_run_in_progress_and_runs_of_one_name_can_be_compared(run_of, tmp_path):
    one = run_of("one")
    young = tmp_path / "young"
    young.mkdir()
    (young / "config.yaml").write_text(yaml.safe_dump({"name": "one"}))
    comparison = RunComparison([one, RunData.load(young)])
    assert comparison.names == [f"one ({one.folder})", f"one ({young})"]
    assert comparison.warnings() == [f"one ({young}) has no evaluation"]
    assert write_comparison(comparison, tmp_path / "page.html").stat().st_size > 10_000


def test_what_cannot_be_compared_is_refused(run_of, tmp_path, capsys):
    one, other = run_of("one"), run_of("other")
    with pytest.raises(UsageError, match="is there twice"):
        RunComparison([one, one])
    assert main([str(one.folder), str(other.folder)]) == 2
    assert "name it with --out" in capsys.readouterr().err
    assert main([str(one.folder), "--out", "x.html"]) == 2
    assert main([str(one.folder), str(tmp_path / "nothing"), "--out", "x.html"]) == 2
    assert "not a run folder" in capsys.readouterr().err


@pytest.mark.parametrize("width", [390, 1400])
def test_a_browser_shows_the_episodes_of_a_task_side_by_side(browser, run_of, tmp_path, width):
    runs = [run_of("<b>one</b>".replace("/", ""), 0.3, 1), run_of("other", 0.9, 2), run_of("third", 0.5, 3)]
    page = write_comparison(RunComparison(runs), tmp_path / "page.html")
    without_namespace = page.read_text().replace("http://www.w3.org/2000/svg", "")
    assert "fetch(" not in without_namespace and "://" not in without_namespace
    for run in runs:
        shutil.rmtree(run.folder)  # the page needs nothing else
    browser.size(width)
    browser.open(page.as_uri())
    browser.until("document.querySelectorAll('.sides > .card').length === 3")
    differ = sum(len({cell[1] for cell in task["cells"]}) > 1 for task in json.loads(
        browser.run("document.getElementById('data').textContent"))["tables"][0]["tasks"])  # fmt: skip
    assert browser.text("#count") == f"{differ} of {TASKS} tasks" and 0 < differ < TASKS
    first = browser.text("#sides h3")
    browser.key("ArrowDown")
    browser.run("document.querySelector('#task-list button').focus()")
    browser.key("ArrowDown")
    browser.until(f"document.querySelector('#sides h3').innerText !== {json.dumps(first)}")
    browser.choose("outcome", "")
    assert browser.text("#count") == f"{TASKS} of {TASKS} tasks"
    assert "<b>one<b>" in browser.text("#subtitle") and browser.complaints == []
    assert browser.run(CUT_OFF) == [] and "points [" in browser.text(".paired")
