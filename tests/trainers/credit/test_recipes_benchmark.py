"""The benchmark that trains every recipe: its configurations, its report, and two runs of it."""

from __future__ import annotations

import dataclasses
import time
from contextlib import closing
from pathlib import Path

import orjson
import pytest
import yaml
from tiny_runs import settings

from benchmarks import recipes_rows
from benchmarks.recipes import Job, jobs, main, write_settings
from benchmarks.recipes_report import newcombe, write_report
from benchmarks.recipes_rows import LAST, rows
from envsuite.core.errors import UsageError
from envsuite.evaluation.statistics import wilson
from trainers.credit.recipes import recipe, recipes
from trainers.report.metrics import MetricsWriter
from trainers.report.stats import EvalResult, StratumResult
from trainers.run.cli import EVALUATE, parse

ITERATIONS = 8


@pytest.mark.parametrize("row", rows(ITERATIONS), ids=lambda row: row.folder)
def test_every_row_is_that_of_textcraft_but_for_its_method(tmp_path, row):
    write_settings([row], tmp_path, ITERATIONS)
    config = parse(["--config", str(tmp_path / "settings" / f"{row.folder}.yaml")]).config
    quick = parse(["--config", str(recipes_rows.CRAFTING)]).config
    assert config.method.estimator == recipe(row.recipe).method["estimator"]
    for section in ("model", "envs", "prompt"):
        assert getattr(config, section) == getattr(quick, section)
    assert dataclasses.replace(config.optim, tokens_per_microbatch=quick.optim.tokens_per_microbatch) == quick.optim
    assert dataclasses.replace(config.rollout, tasks=quick.rollout.tasks, tree=None) == quick.rollout
    assert config.iterations == ITERATIONS and not config.evaluation.envs
    own = recipe(row.recipe).method.get("shapers", {}).get("invalid_action_penalty", {})
    assert config.method.shapers["invalid_action_penalty"] == {**own, "coef": 0.0}
    if row.folder == "textcraft":
        assert config.method == quick.method
    else:
        assert config.method.options == recipe(row.recipe).method.get("options", {})
    if config.method.replay is not None:
        assert config.method.shapers["spear"]["decay"] == ITERATIONS
        assert config.method.replay.warmup < ITERATIONS, "what is replayed counts in a run this short"
    measured = parse(["--config", str(tmp_path / "settings" / "evaluation.yaml")], EVALUATE).config
    assert measured.evaluation == quick.evaluation and measured.rollout == quick.rollout


def test_there_is_a_row_for_every_recipe_that_plays_and_no_two_share_a_folder():
    made = rows(ITERATIONS)
    assert {row.recipe for row in made} >= {recipe(name).name for name in recipes()} - {"sft"}
    assert len({row.folder for row in made}) == len({row.name for row in made}) == len(made)


def test_seeds_are_worked_off_one_after_the_other_and_compositions_last(tmp_path):
    order = jobs(rows(ITERATIONS), [0, 1], tmp_path, ITERATIONS)
    first = [job for job in order if job.row is None or job.row.name not in LAST]
    assert order[: len(first)] == first
    assert [job.seed for job in first] == sorted(job.seed for job in first)
    assert [job.seed for job in first if job.row is None] == [0, 1]


def test_a_folder_of_runs_with_other_settings_is_not_gone_on_with(tmp_path):
    write_settings(rows(8), tmp_path, 8)
    write_settings(rows(8), tmp_path, 8)
    with pytest.raises(UsageError, match="choose another --out"):
        write_settings(rows(9), tmp_path, 9)


def _result(successes: int, n: int = 100) -> EvalResult:
    low, high = wilson(successes, n)
    every = StratumResult("all", n, successes, successes / n, 5.0, low, high, tasks=n)
    return EvalResult("m", "TextCraft-v0", "test", "3f", 8, 1.0, 0, 2.0, (every,))


def _record(job: Job, successes: int, update: float) -> None:
    """What a finished run leaves."""
    job.folder.mkdir(parents=True)
    (job.folder / "evaluation.json").write_bytes(orjson.dumps([_result(successes).to_json()]))
    if job.row is None:
        return
    with closing(MetricsWriter(job.folder / "metrics.jsonl")) as writer:
        for i in range(1, job.iterations + 1):
            cpu = {"cpu/rollout": 10.0, "cpu/estimator": 0.5, "cpu/update": update}
            writer.write(i, {"train/success": i / 10, "train/tokens_total": 2000 * i, **cpu})


def test_the_report_pools_seeds_and_compares_with_grpo(tmp_path):
    made = rows(4)
    chosen = [row for row in made if row.name in ("grpo", "gigpo", "ppo")]
    for seed, extra in ((0, 0), (1, 10)):
        _record(Job(None, seed, tmp_path, 4), 20, 0.0)
        for row, successes, update in zip(chosen, (60, 40, 41), (9.5, 4.5, 19.5), strict=True):
            _record(Job(row, seed, tmp_path, 4), successes + extra, update)
    unfinished = Job(chosen[0], 2, tmp_path, 4)
    unfinished.folder.mkdir(parents=True)
    picture = tmp_path / "figures" / "recipes.png"
    written = write_report(tmp_path, made, picture)
    assert written == [tmp_path / "recipes.md", tmp_path / "recipes.tex", picture] and picture.stat().st_size > 10_000
    lines = (tmp_path / "recipes.md").read_text("utf-8").splitlines()
    cells = {line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:-1]] for line in lines[2:-2]}
    assert list(cells)[2:] == ["base model", "gigpo", "grpo", "ppo"]
    low, high = wilson(130, 200)
    assert cells["gigpo"][:3] == ["2", f"65.0 [{100 * low:.1f}, {100 * high:.1f}]", "60.0, 70.0"]
    assert cells["gigpo"][3].startswith("+20.0* [") and cells["ppo"][3].startswith("+1.0 [-")
    assert cells["gigpo"][4:] == ["10.00", "0.50", "9.50", "2.00"], "ten CPU seconds where grpo has five"
    assert cells["grpo"][-1] == "1.00" and cells["base model"][1].startswith("20.0")
    assert r"\label{tab:benchmark-recipes}" in (tmp_path / "recipes.tex").read_text("utf-8")
    assert "gigpo & 2 & 65.0" in (tmp_path / "recipes.tex").read_text("utf-8")


def test_a_report_of_nothing_says_how_to_make_something(tmp_path):
    with pytest.raises(UsageError, match=r"python -m benchmarks\.recipes --out"):
        write_report(tmp_path, rows(4), tmp_path / "recipes.png")


def test_the_interval_of_a_difference_is_newcombes():
    low, high = newcombe((48 / 80, *wilson(48, 80)), (56 / 70, *wilson(56, 70)))
    assert (round(low, 4), round(high, 4)) == (0.0524, 0.3339), "his first example"


def _tiny(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    """In place of TextCraft, a run of seconds."""
    quick = place / "quick.yaml"
    body = settings(place, recipe="gigpo")
    quick.write_text(yaml.safe_dump({**body, "method": {"shapers": {"invalid_action_penalty": {"coef": 0.0}}}}))
    monkeypatch.setattr(recipes_rows, "CRAFTING", quick)


@pytest.mark.slow
def test_two_recipes_are_trained_measured_and_reported_and_nothing_is_done_twice(place, monkeypatch, capsys):
    _tiny(monkeypatch, place)
    out = place / "out"
    words = ["--out", str(out), "--only", "grpo", "gigpo", "--seeds", "0", "--iterations", "1"]
    assert main(words) == 0, capsys.readouterr().out
    text = (out / "recipes.md").read_text("utf-8")
    assert all(f"| {name} |" in text for name in ("base model", "grpo", "gigpo"))
    assert (out / "recipes.png").exists() and not list(out.glob("*/*/checkpoints"))
    before = {path: path.stat().st_mtime_ns for path in out.glob("*/*/evaluation.json")}
    assert len(before) == 3
    began = time.monotonic()
    assert main(words) == 0
    assert time.monotonic() - began < 5.0 and before == {path: path.stat().st_mtime_ns for path in before}
    assert main(["--out", str(out), "--report"]) == 0
