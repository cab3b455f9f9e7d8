"""The arena: equal conditions for all methods, its results file, and its statistics."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

import numpy as np
import orjson
import pytest
import yaml
from console import Console
from scipy import stats

from envsuite.core.errors import DataError, UsageError
from research.arena import results as results_of
from research.arena.__main__ import check_bases, main
from research.arena.report import difference, draw, overall_table, power_table, task_table
from research.arena.results import Result, append, by_method, chosen_rates, read, read_run
from research.arena.runs import PILOT_SEEDS, TUNING_SEEDS, pilot, reported, seconds, tuning
from research.arena.tasks import CEILING, METHODS, PANEL, RATES, REFERENCE, TASKS, Trial, settings
from research.differences import Difference, detectable
from trainers.run.cli import parse
from trainers.run.config import TrainConfig

ITERATIONS = 12


def _config(trial: Trial, folder: Path) -> TrainConfig:
    path = folder / f"{trial.method}.yaml"
    path.write_text(yaml.safe_dump(settings(trial), sort_keys=False), encoding="utf-8")
    return parse(["--config", str(path)]).config


@pytest.mark.parametrize("task", TASKS)
def test_methods_differ_in_nothing_but_their_credit(task: str, tmp_path: Path) -> None:
    configs = {name: _config(Trial(task, name, 3, 3e-4), tmp_path) for name in METHODS}
    reference = configs[REFERENCE]
    assert len(reference.envs[0].kwargs["tasks"]) == PANEL == reference.rollout.tasks
    for name, config in configs.items():
        assert config.method.objective == reference.method.objective, name
        assert config.method.shapers["invalid_action_penalty"]["coef"] == 0.0
        assert dataclasses.replace(config.rollout, tree=None) == reference.rollout
        for section in ("seed", "iterations", "model", "envs", "prompt", "optim", "evaluation"):
            assert getattr(config, section) == getattr(reference, section), (name, section)
        assert config.optim.lr == 3e-4


@pytest.mark.parametrize(("task", "world"), [("sokoban", {"level_seed"}), ("textcraft", set())])
def test_a_seed_has_tasks_of_its_own_and_a_world_where_there_are_more(task: str, world: set[str]) -> None:
    one, again, two = (settings(Trial(task, "grpo", seed, 3e-4))["envs"][0]["kwargs"] for seed in (0, 0, 1))
    assert one == again and len(set(one["tasks"])) == PANEL and set(one["tasks"]) != set(two["tasks"])
    assert {name for name in one if one[name] != two[name]} == {"tasks"} | world


def test_tasks_may_share_a_base_model() -> None:
    assert TASKS["sokoban-1"].base == TASKS["sokoban"].base != TASKS["textcraft"].base
    for name, task in TASKS.items():
        assert str(task.base).endswith(task.config["model"]["path"]), name


def _result(method: str, seed: int, level: float, rate: float = 3e-4, task: str = "sokoban") -> Result:
    success = tuple(np.linspace(0.1, 2 * level - 0.1, ITERATIONS).tolist())
    cpu = {"rollout": 4.0, "estimator": 0.1, "update": 1.0}
    return Result(task, method, seed, rate, success, tuple(1e4 * (i + 1) for i in range(ITERATIONS)), cpu, 60.0)


def _results() -> list[Result]:
    rng, levels = np.random.default_rng(0), {REFERENCE: 0.3, "g2po": 0.4, "gigpo": 0.31, CEILING: 0.5}
    return [
        _result(name, seed, level + 0.02 * rng.normal() + 0.03 * seed, task=task)
        for task in TASKS
        for name, level in levels.items()
        for seed in range(5)
    ]


def _counts(console: Console, words: str) -> list[str]:
    """Runs, done and hours of Sokoban in the plan that the command shows."""
    out, _ = console(f"--plan --stage table --tasks sokoban {words}", main=main)
    row = next(line for line in out.splitlines() if "sokoban" in line)
    return [cell.strip() for cell in row.split("│")[2:5]]


def test_results_are_kept_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    assert read(path) == []
    made = _results()[:3]
    for result in made:
        append(result, path)
    assert read(path) == made and not list(tmp_path.glob(".*"))
    assert made[0].area == pytest.approx(np.mean(made[0].success))
    path.write_bytes(path.read_bytes() + b'{"task": "sokoban"}\n')
    with pytest.raises(DataError, match="line 4"):
        read(path)


def test_an_interrupted_write_leaves_the_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "results.jsonl"
    append(_results()[0], path)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(results_of.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        append(_results()[1], path)
    assert read(path) == _results()[:1]


def test_all_methods_take_the_best_rate_of_the_reference() -> None:
    assert {trial.seed for trial in pilot(list(TASKS))} == set(PILOT_SEEDS)
    trials = tuning(list(TASKS))
    assert len(trials) == len(TASKS) * len(RATES) * len(TUNING_SEEDS)
    assert {trial.method for trial in trials} == {REFERENCE}
    runs = [_result(REFERENCE, 100, level, rate) for rate, level in zip(RATES, (0.2, 0.3, 0.35), strict=True)]
    runs += [_result("g2po", 100, 0.9, RATES[0]), _result(REFERENCE, 100, 0.4, RATES[0], "textcraft")]
    assert chosen_rates(runs) == {"sokoban": RATES[2], "textcraft": RATES[0]}
    planned = reported(["sokoban", "sokoban-1"], ["grpo", "g2po"], [0], chosen_rates(runs))
    rates = {(trial.task, trial.method): trial.rate for trial in planned}
    assert rates["sokoban", "grpo"] == rates["sokoban", "g2po"] == RATES[2], "one rate for a task"
    assert rates["sokoban-1", "grpo"] == rates["sokoban-1", "g2po"] == 3e-4, "that of the pilot where none was tried"


def test_no_seed_of_tuning_or_pilot_is_reported_and_unknown_names_are_refused(console: Console) -> None:
    for seed in (*TUNING_SEEDS, *PILOT_SEEDS):
        said, _ = console(f"--plan --seeds 0 {seed}", 2, main)
        assert f"--seeds {seed} is a seed of the pilot or of the tuning" in said
    for option, wrong in (("--tasks", "chess"), ("--methods", "grop")):
        assert wrong in console(f"--plan {option} {wrong}", 2, main)[0]
    assert {trial.seed for trial in pilot(list(TASKS))} == set(PILOT_SEEDS)


def test_the_plan_says_hours_and_leaves_out_what_is_done(tmp_path: Path, console: Console) -> None:
    path = tmp_path / "results.jsonl"
    for seed in range(3):
        append(_result("grpo", seed, 0.3), path)
    assert _counts(console, f"--methods grpo g2po --results {path}") == ["10", "3", "0.1"]
    expected = seconds([Trial("sokoban", "g2po", 0, 3e-4)], read(path))
    assert expected == {("sokoban", "g2po"): 60.0}, "as long as the others of the task"


def test_a_table_of_one_rate_has_the_runs_of_that_rate(tmp_path: Path, console: Console) -> None:
    path = tmp_path / "results.jsonl"
    for rate, level in ((3e-4, 0.2), (6e-4, 0.4)):
        append(_result("grpo", TUNING_SEEDS[0], level, rate), path)
        for name in ("grpo", "tree_grpo"):
            for seed in range(2):
                append(_result(name, seed, level, rate), path)
    common = f"--results {path} --out {tmp_path}"
    console(f"{common} --report", main=main)
    console(f"{common} --report --rate 3e-4", main=main)
    tuned, fixed = ((tmp_path / f"{name}.md").read_text() for name in ("arena", "arena-lr-0.0003"))
    assert "| grpo | 2 | 40.0" in tuned and "| grpo | 2 | 20.0" in fixed, "tuning chose the higher one"
    assert (tmp_path / "arena-lr-0.0003.png").exists() and (tmp_path / "arena-lr-0.0003.tex").exists()
    assert _counts(console, f"{common} --methods grpo --rate 1e-4")[:2] == ["5", "0"], "no run has this rate yet"


def test_runs_from_different_base_models_are_not_paired() -> None:
    runs = [_result("grpo", 0, 0.3), dataclasses.replace(_result("g2po", 0, 0.3), base="a8d94f97646e")]
    with pytest.raises(UsageError, match=r"2 base models.*a8d94f97646e"):
        by_method(runs, "sokoban")


def test_a_base_model_that_was_trained_anew_is_told_before_any_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, console: Console
) -> None:
    monkeypatch.setattr("research.arena.tasks.ROOT", tmp_path)
    folder, path = tmp_path / "runs/arena/sokoban-base", tmp_path / "results.jsonl"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    append(dataclasses.replace(_result("grpo", 0, 0.3), base=TASKS["sokoban"].digest), path)
    check_bases(["sokoban", "textcraft"], read(path))
    (folder / "model.safetensors").write_bytes(b"others")
    said, _ = console(f"--tasks sokoban --results {path} --out {tmp_path}/out", 2, main)
    assert "trained anew" in said and len(read(path)) == 1


def test_a_run_is_read_from_its_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("research.arena.tasks.ROOT", tmp_path)
    trial, weights = Trial("sokoban", "oracle_mc", 0, 3e-4), tmp_path / "runs/arena/sokoban-base/model.safetensors"

    def write(*lines: dict[str, float]) -> None:
        (tmp_path / "metrics.jsonl").write_bytes(b"".join(orjson.dumps(one) + b"\n" for one in lines))

    lines = [
        {"iteration": i, "train/success": i / 10, "train/tokens_total": 100 * i, "oracle/tokens": 7, "time/total": 2.0}
        | {f"cpu/{part}": float(i) for part in results_of.PARTS}
        for i in (1, 2, 3)
    ]
    write({"iteration": 0, "eval/success": 0}, *lines)
    with pytest.raises(DataError, match=f"base model of sokoban: {weights}"):
        read_run(tmp_path, trial)
    weights.parent.mkdir(parents=True)
    weights.write_bytes(b"weights")
    found = read_run(tmp_path, trial)
    assert found.success == (0.1, 0.2, 0.3) and found.tokens == (100, 200, 300) and found.area == pytest.approx(0.2)
    assert found.cpu == dict.fromkeys(results_of.PARTS, 2.0) and found.seconds == 6.0 and found.extra_tokens == 21
    assert found.base == hashlib.sha256(b"weights").hexdigest()[:12]
    some = {"iteration": 1, "train/success": 0.5}
    for lines, said in (([some], "an iteration has no 'train/tokens_total'"), ([], "no iteration")):
        write(*lines)
        with pytest.raises(DataError, match=said):
            read_run(tmp_path, trial)


def test_a_difference_is_students_paired_t() -> None:
    rng = np.random.default_rng(1)
    one, two = rng.normal(0.4, 0.05, 5), rng.normal(0.3, 0.05, 5)
    found = Difference(one - two)
    test = stats.ttest_rel(one, two)
    assert found.p == pytest.approx(test.pvalue)
    assert found.interval == pytest.approx(tuple(test.confidence_interval()))
    assert Difference(np.array([0.1])).interval == (-np.inf, np.inf) and Difference(np.zeros(3)).p == 1.0


@pytest.mark.parametrize(("seeds", "comparisons"), [(5, 1), (5, 8), (10, 8)])
def test_the_detectable_difference_is_found_four_times_of_five(seeds: int, comparisons: int) -> None:
    apart = detectable(0.03, seeds, comparisons)
    drawn = np.random.default_rng(2).normal(apart, 0.03, (20_000, seeds))
    p = stats.ttest_1samp(drawn, 0.0, axis=1).pvalue
    assert (p < 0.05 / comparisons).mean() == pytest.approx(0.8, abs=0.015)
    with pytest.raises(UsageError):
        detectable(0.0, seeds, comparisons)


def test_tables_pair_seeds_and_correct_for_all_methods(tmp_path: Path) -> None:
    rows = _results()
    table = task_table(rows, "sokoban")
    assert [row[0] for row in table.rows] == [name for name in METHODS if name in (REFERENCE, "g2po", "gigpo", CEILING)]
    runs = by_method(rows, "sokoban")
    cells = {row[0]: row for row in table.rows}
    apart = difference(runs["g2po"], runs[REFERENCE])
    assert cells["g2po"][4].startswith(f"{100 * apart.mean:+.1f}") and float(cells["g2po"][5].strip("<")) < 0.05
    assert cells["gigpo"][5] >= f"{difference(runs['gigpo'], runs[REFERENCE]).p:.3f}", "corrected"
    assert cells[CEILING][5] == cells[REFERENCE][5] == "–"  # noqa: RUF001
    overall = overall_table(rows)
    assert overall.rows[0][0] == CEILING and {row[1] for row in overall.rows} == {str(5 * len(TASKS))}
    draw(rows, tmp_path / "arena.png")
    assert (tmp_path / "arena.png").stat().st_size > 10_000
    assert "tabular" in table.latex() and "| g2po |" in table.markdown()
    with pytest.raises(UsageError, match="no run of grpo"):
        task_table([row for row in rows if row.method != REFERENCE], "sokoban")


def test_power_needs_pilot_runs() -> None:
    runs = [
        _result(name, seed, 0.3 + 0.01 * seed * (name == "g2po")) for name in ("grpo", "g2po") for seed in PILOT_SEEDS
    ]
    table = power_table(runs, (5, 10), 8)
    assert table is not None and table.rows[0][0] == "sokoban"
    assert float(table.rows[0][2]) > float(table.rows[0][3]) > 0.0
    assert power_table(runs[:1], (5,), 8) is None
