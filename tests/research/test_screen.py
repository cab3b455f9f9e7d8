"""The first screen's table, and its runs."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from envsuite.core.errors import DataError
from envsuite.evaluation.statistics import clustered_wilson
from research import screen
from research.screen import Outcome, Screen, beside, bits, read_outcomes, table


def outcome(arm: str, seed: int, solved: str) -> Outcome:
    return Outcome("door", arm, seed, "test", solved, "1" * len(solved), 2.0, "abc")


RUNS = st.integers(2, 12).flatmap(lambda tasks: st.tuples(*[st.text("01", min_size=tasks, max_size=tasks)] * 2))


@given(RUNS)
def test_one_seed_is_compared_by_mcnemar(runs):
    first, second = runs
    difference, p_value, over_seeds = beside(bits([outcome("grpo", 0, second)], "solved"), [outcome("rft", 0, first)])
    if first == second:
        assert difference == ""
        return
    gained = sum(a < b for a, b in zip(first, second, strict=True))
    lost = sum(a > b for a, b in zip(first, second, strict=True))
    assert (
        float(p_value) == pytest.approx(binomtest(lost, lost + gained).pvalue, rel=0.06) and over_seeds == ""
    )  # two digits
    assert difference.startswith(f"{100 * (gained - lost) / len(first):+.1f} [")


def test_a_row_has_the_mean_the_clustered_interval_and_the_pairs_of_seeds(tmp_path):
    rng = np.random.default_rng(0)
    runs = {arm: ["".join(map(str, rng.integers(0, 2, 20))) for _ in range(3)] for arm in ("rft", "gigpo")}
    file = tmp_path / "results.jsonl"
    lines = [json.dumps(asdict(outcome(arm, seed, text))) for arm in runs for seed, text in enumerate(runs[arm])]
    file.write_text("\n".join(reversed(lines)) + "\n")
    rows = {row.split(" | ")[1]: row.split(" | ") for row in table(read_outcomes(file)).splitlines()}
    solved = {arm: np.array([[int(bit) for bit in text] for text in runs[arm]]) for arm in runs}
    low, high = clustered_wilson([(int(n), 3) for n in solved["gigpo"].sum(0)])
    row = rows["`gigpo`"]
    assert row[3] == f"{100 * solved['gigpo'].mean():.1f} [{100 * low:.1f}, {100 * high:.1f}]"
    assert row[4] == ", ".join(f"{5 * text.count('1'):.1f}" for text in runs["gigpo"])
    gaps = 5.0 * np.array([g.count("1") - r.count("1") for g, r in zip(runs["gigpo"], runs["rft"], strict=True)])
    half = 4.302653 * gaps.std(ddof=1) / 3**0.5  # Student's t of two degrees of freedom
    assert row[9].strip(" |") == f"[{gaps.mean() - half:+.1f}, {gaps.mean() + half:+.1f}]"
    assert rows["`rft`"][7:] == ["", "", " |"]
    turned = [line.split(" | ") for line in table(read_outcomes(file), "gigpo").splitlines()]
    assert turned[0][7] == "over `gigpo`" and turned[-1][7].startswith(f"{-gaps.mean():+.1f} [")


def test_an_environment_that_is_not_planned_is_named():
    with pytest.raises(DataError, match=r"screen.yaml has no doors; it has "):
        Screen("doors", Path("runs"), Path("results"), dev=True, file=screen.ARMS)


@pytest.mark.slow
def test_arms_are_played_once_and_their_episodes_are_those_of_the_run(tmp_path):
    plan = tmp_path / "screen.yaml"
    plan.write_text(
        "bifurcation:\n  config: configs/bifurcation.yaml\n  imitate: tiny.yaml\n  dev: {split: validation}\n"
        "  imitations: {imitation: {stages: [{steps: 2, max_steps: 12, games: [{errs: 0.3}]}]}}\n"
        "  arms: {rft: {iterations: 1, recipe: rft, method: {filters: {accepted: {score: 0.0}}}}}\n"
    )
    base = (screen.ROOT / "configs/bifurcation-base.yaml").read_text().replace("steps: 400", "steps: 2")
    (tmp_path / "tiny.yaml").write_text(base)
    results = tmp_path / "results.jsonl"
    screening = Screen("bifurcation", tmp_path / "runs", results, dev=True, file=plan)
    screening.plan["imitate"] = str(tmp_path / "tiny.yaml")
    screening.play((), [0])
    outcomes = read_outcomes(results)
    assert [o.arm for o in outcomes] == ["base", "imitation", "rft"] and {len(o.solved) for o in outcomes} == {100}
    screening.play((), [0])
    assert read_outcomes(results) == outcomes
