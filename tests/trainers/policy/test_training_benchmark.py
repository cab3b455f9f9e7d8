"""The benchmark of training steps: every way computes the same gradient, and no figure is made up."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from tiny_runs import ROOT, save_model, tokenizer

from benchmarks.training.__main__ import main
from benchmarks.training.episodes import Cell, record
from benchmarks.training.measure import measure
from benchmarks.training.models import model_folder
from benchmarks.training.others import _grouped
from benchmarks.training.ours import Ours
from benchmarks.training.results import Results
from benchmarks.training.rows import Rows, batches, padded
from benchmarks.training.ways import Padded
from envsuite.core.errors import DataError, MissingExtra
from trainers.steps.sharing import shared_lengths


def rows_of(episodes: int, turns: int, full: bool, seed: int = 0) -> Rows:
    """Random tokens; prompts that continue each other, or a window of the last observations."""
    rng = np.random.default_rng(seed)
    task = rng.integers(5, 60, 9)
    prompts, responses, index = [], [], []
    for episode in range(episodes):
        history = [task]
        for t in range(turns):
            shown = history if full else [task, *history[1:][-2:]]
            prompts.append(np.concatenate([*shown, rng.integers(5, 60, 2)]))
            responses.append(rng.integers(5, 60, int(rng.integers(1, 6))))
            index.append((episode // 2, episode, t))
            history = [prompts[-1], responses[-1]] if full else [*history, rng.integers(5, 60, 3)]
    group, numbers, ts = (np.array(column) for column in zip(*index, strict=True))
    return Rows(prompts, responses, group, numbers, ts, rng.normal(size=episodes)[numbers])


def gradient(way: Any, folder: Path, rows: Rows) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    made = way(folder, rows, 128)
    told = measure(made, float("inf"))
    return {name: p.grad for name, p in made.model.named_parameters() if p.grad is not None}, told


def assert_equal(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.allclose(found[name], value, rtol=1e-4, atol=1e-4 * float(value.abs().max())), name


@pytest.mark.parametrize("full", [True, False], ids=["continued", "window"])
def test_ours_and_a_padded_batch_have_the_same_loss_and_gradient(tmp_path, full):
    folder, rows = save_model(tmp_path), rows_of(4, 3, full)
    (ours, told), (plain, expected) = gradient(Ours, folder, rows), gradient(Padded, folder, rows)
    assert_equal(ours, plain)
    assert told["loss"] == pytest.approx(expected["loss"], abs=1e-5) and max(map(float_max, plain.values())) > 1e-3
    assert told["computed"] > 0
    assert expected["computed"] == sum(padded([one.tokens for one in part]).size for part in batches(rows.steps(), 128))


def float_max(values: torch.Tensor) -> float:
    return float(values.abs().max())


@pytest.mark.slow
@pytest.mark.parametrize("full", [True, False], ids=["continued", "window"])
@pytest.mark.parametrize("way", ["trl-steps", "trl-episodes", "prefix-grouper"])
def test_other_libraries_have_the_same_gradient_or_say_why_they_have_none(tmp_path, way, full):
    python = os.environ.get("TRL_PYTHON")
    if python is None:
        pytest.skip("needs TRL and PrefixGrouper: set TRL_PYTHON to a Python that has them")
    folder, rows = save_model(tmp_path), rows_of(4, 3, full)
    tokenizer().save_pretrained(folder)
    rows.save(tmp_path / "rows.npz")
    words = f"-m benchmarks.training.measure {way} --rows {tmp_path}/rows.npz --budget 128 --model {folder}"
    command = [python, *words.split(), "--gradients", str(tmp_path / "gradients")]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=_environment())
    assert told.returncode == 0, told.stderr
    found = json.loads(told.stdout.splitlines()[-1])
    if way == "trl-episodes" and not full:
        assert "no prompt continues" in found["reason"]
        return
    plain, expected = gradient(Padded, folder, rows)
    assert found["loss"] == pytest.approx(expected["loss"], abs=1e-5)
    assert_equal(load_file(tmp_path / "gradients"), plain)


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}


def test_what_the_limit_leaves_out_is_added_by_the_positions_of_the_micro_batches(tmp_path):
    folder, rows = save_model(tmp_path), rows_of(6, 4, full=False)
    whole, part = measure(Padded(folder, rows, 64), float("inf")), measure(Padded(folder, rows, 64), 0.0)
    assert 0 < part["measured"] < 1 == whole["measured"]
    assert part["computed"] == whole["computed"] and part["loss"] is None and whole["loss"] is not None


@settings(deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.booleans(), st.integers(0, 99))
def test_joined_episodes_train_on_the_tokens_of_their_steps(episodes, turns, full, seed):
    rows = rows_of(episodes, turns, full, seed)
    joined = rows.episodes()
    assert np.array_equal(np.concatenate([one.tokens[one.trained] for one in joined]), np.concatenate(rows.responses))
    assert len(joined) == episodes or not full
    for one in joined:
        assert not one.trained[: one.prompt].any()


@settings(deadline=None)
@given(st.integers(1, 5), st.integers(1, 3), st.booleans(), st.integers(10, 80))
def test_the_rows_of_a_group_are_cut_after_a_prefix_that_all_have(episodes, turns, full, budget):
    rows = [one for one in rows_of(episodes, turns, full).episodes() if one.group == 0]
    parts = list(_grouped(rows, budget))
    assert [one for _, part in parts for one in part] == rows
    for length, part in parts:
        assert all(np.array_equal(one.tokens[:length], rows[0].tokens[:length]) for one in rows)
        assert len(part) == 1 or length + sum(len(one.tokens) - length for one in part) <= budget


def test_rows_are_what_was_saved(tmp_path):
    rows = rows_of(3, 2, full=True)
    rows.save(tmp_path / "rows.npz")
    again = Rows.load(tmp_path / "rows.npz")
    for name in ("prompts", "responses"):
        assert all(map(np.array_equal, getattr(rows, name), getattr(again, name)))
    assert all(np.array_equal(getattr(rows, name), getattr(again, name)) for name in ("group", "t", "advantage"))


@settings(deadline=None)
@given(st.integers(0, 99), st.booleans())
def test_renumbered_rows_share_what_they_shared(seed, full):
    rows = rows_of(3, 3, full, seed)
    found = rows.renumbered(60)
    tokens = [[one.tokens for one in some.steps()] for some in (rows, found)]
    assert np.array_equal(*map(shared_lengths, tokens))
    used = np.unique(np.concatenate(tokens[1]))
    assert used.tolist() == list(range(len(used)))
    with pytest.raises(ValueError, match=f"{len(used)} different tokens"):
        rows.renumbered(len(used) - 1)


@pytest.mark.slow
@pytest.mark.parametrize("env", ["TextCraft", "ALFWorld"])
def test_episodes_have_as_many_turns_as_asked_for_and_the_same_actions_under_every_memory(env):
    try:
        folder = model_folder("tiny")
    except MissingExtra as error:
        pytest.skip(str(error))
    found = {memory: record(Cell(env, memory, 8, 3, groups=2), folder) for memory in ("full", "window(2)")}
    for rows in found.values():
        assert rows.t.tolist() == [*range(8)] * 6 and rows.group.tolist() == [0] * 24 + [1] * 24
    full, window = found["full"], found["window(2)"]
    assert all(map(np.array_equal, full.responses, window.responses))
    assert len(full.episodes()) == 6 and len(window.episodes()) == 48
    responses = {row.tobytes() for row in full.responses}
    assert len(responses) > 40, "sampled answers differ"


def measured(**changes: Any) -> dict[str, Any]:
    made = {
        "model": "small", "budget": 4096, "env": "TextCraft", "memory": "full", "turns": 4, "group": 8, "groups": 1,
        "template": None, "way": "ours", "round": 0, "rows": 900, "distinct": 300, "completion": 100, "cpu": 2.0,
        "seconds": 2.5, "computed": 310, "peak": 2**21,
    }  # fmt: skip
    return made | changes


def test_table_and_figure_show_medians_ratios_and_reasons(tmp_path, capsys):
    results = Results.read(tmp_path / "results.jsonl")
    for number, cpu in enumerate((2.0, 8.0, 4.0)):
        results.add(measured(round=number, cpu=cpu))
    results.add(measured(way="padded", cpu=40.0, computed=900))
    results.add(measured(way="dense-layers", cpu=1.0, computed=100))
    results.add(measured(way="dense", cpu=2.0, computed=100))
    results.add(measured(way="trl-steps", reason="out of memory"))
    results.add(measured(turns=32, template="steps"))
    results.add(measured(turns=8, cpu=1.0))
    results.add(measured(turns=8, way="padded", cpu=5.0, peak=2**22))
    assert main(["--report", "--out", str(tmp_path)]) == 0
    text = (tmp_path / "table.md").read_text()
    cell = "| small | TextCraft | `full` | 4 x 8 | 900 | 300 |"
    # A token costs 0.01 s in the layers and 0.02 s more where it is trained on: 5.1 s of dense batches, and 11 s.
    assert f"{cell} ours | 310 | 25 |  | 2 | 0.78 |" in text
    assert f"{cell} padded | 900 | 2 | 10.00 | 2 | 3.64 |" in text
    assert f"{cell} trl-steps | out of memory |  |  |  |  |" in text
    assert "`full steps` | 32 x 8" in text and "dense" not in text.split("|---:|", 1)[1].split("\n", 1)[1]
    ranges = "| 1.03 to 1.03 | 0.78 to 0.78 | padded | 5.00 to 10.00 | 0.50 to 1.00 |"
    assert f"| TextCraft | `full` | 4,096 | 2 {ranges}" in (tmp_path / "summary.md").read_text()
    assert (tmp_path / "training-small.png").read_bytes().startswith(b"\x89PNG")


def test_a_measurement_is_made_once_and_a_damaged_file_is_refused(tmp_path):
    results = Results.read(tmp_path / "results.jsonl")
    assert not results.has(measured())
    results.add(measured())
    again = Results.read(tmp_path / "results.jsonl")
    assert again.has(measured(cpu=9.0)) and not again.has(measured(round=1)) and not again.has(measured(way="padded"))
    for line, told in (("{", "line 2: not a measurement"), ('{"way": "ours"}', "no 'model'"), ("3", "line 2")):
        (tmp_path / "results.jsonl").write_text(json.dumps(measured()) + f"\n{line}\n")
        with pytest.raises(DataError, match=told):
            Results.read(tmp_path / "results.jsonl")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [(["--report"], "no measurements; run without --report first"), (["--trl-python", "/no/python"], "no such file")],
)
def test_what_cannot_be_done_is_said(tmp_path, capsys, arguments, told):
    assert main([*arguments, "--out", str(tmp_path)]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.slow
def test_a_cell_is_measured_in_processes_of_their_own_and_not_again(tmp_path, capsys):
    try:
        model_folder("tiny")
    except MissingExtra as error:
        pytest.skip(str(error))
    cell = ["--model", "tiny", "--envs", "TextCraft", "--memories", "window(2)", "--turns", "2", "--groups", "2"]
    for expected in (3, 0):
        assert main([*cell, "--ways", "ours", "padded", "dense", "--out", str(tmp_path)]) == 0
        assert capsys.readouterr().out.count("TextCraft, window(2), 2 turns, group of 2: ") == expected
    assert main([*cell, "--count"]) == 0
    counted = capsys.readouterr().out
    for found in Results.read(tmp_path / "results.jsonl").records:
        assert found["cpu"] > 0 and found["peak"] > 0 and found["computed"] > 0
        assert found["distinct"] < found["rows"] and f" {found['rows']:,} | {found['distinct']:,} |" in counted
