import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.golden import Report, compare, main, run
from benchmarks.golden_dispatch import Rounding

OURS = {"grpo", "rloo", "gigpo", "ppo", "dapo", "gspo", "gmpo", "cispo", "gpg", "clip", "kl", "agg", "value", "trl"} | {
    "reinforce",
    "remax",
    "opo",
    "hgpo",
    "gae",
    "token",
    "steppo",
    "bipace",
    "bigpo",
    "scpo",
    "spear",
}


@pytest.fixture(scope="module")
def golden(shared: Path) -> Path:
    return shared / "golden"


@pytest.fixture(scope="module")
def report(golden: Path) -> Report:
    return run(golden)


def test_every_method_and_loss_that_is_here_agrees_with_the_originals(report: Report):
    assert [f"{result.file} {result.case_id}" for result in report.disagreements] == []
    assert not report.unread
    assert all(result.covered for result in report.results), "every case is compared"
    covered = {result.estimator for result in report.results if result.covered}
    assert {
        "grpo_paper",
        "rloo_paper",
        "gigpo_paper",
        "gigpo",
        "gigpo_traj",
        "ppo_dualclip",
        "kl",
        "agg_loss",
    } <= covered
    for result in report.results:
        if result.estimator.split("_")[0] in OURS:
            said_of_the_recording = {"min_decision_margin", "rows_changed_by_rounding_noise"}
            missing = [key for key, _ in result.not_covered if key not in said_of_the_recording]
            assert not missing, (result.case_id, result.not_covered)


def test_newer_methods_agree_with_the_originals(shared: Path):
    report = run(shared / "golden-2")
    assert [f"{result.file} {result.case_id}" for result in report.disagreements] == []
    assert not report.unread
    covered = Counter(result.estimator for result in report.results if result.covered)
    assert covered == {
        "g2po_values": 14, "g2po": 168, "g2po_paper": 56, "graphgpo_distances": 14, "graphgpo": 308,
        "graphgpo_paper": 56, "graphgpo_similarity": 10, "pgpo": 56, "gagpo": 42, "rewardflow": 96,
        "beacon": 56, "beacon_paper": 14, "beacon_matching": 24,
        "empg": 28, "empg_port": 28, "hcapo": 42,
        "vetta": 28, "hiper": 56, "hiper_paper": 28,
        "tree_grpo": 14, "tree_grpo_2norm": 14,
    }  # fmt: skip
    assert all(not result.not_covered for result in report.results if result.covered)


def test_what_is_set_aside_is_the_originals_rounding_and_nothing_else(report: Report):
    aside = [(r, c) for r in report.results for c in r.comparisons if c.aside]
    assert {result.estimator for result, _ in aside} <= {"gigpo", "gigpo_traj", "hgpo"}
    for result, comparison in aside:
        if result.estimator == "hgpo":  # asks whether a difference is exactly zero, which float64 can get wrong too
            assert comparison.aside == comparison.aside_explained
        else:
            assert "float32" in result.case_id and "zero_variance" in result.file


def write(folder: Path, case: dict[str, Any], peer: str = "verl-agent") -> Path:
    steps = [
        {
            "group_id": "g",
            "traj_id": f"t{episode}",
            "step_index": t,
            "observation": "o",
            "step_reward": float(episode and t),
            "is_action_valid": True,
        }
        for episode in (0, 1)
        for t in (0, 1)
    ]
    (folder / "some_steps.json").write_text(json.dumps({"schema": "golden-steps/1", "steps": steps}))
    full = {"id": "c", "dtype": "float64", "tolerance": {"rtol": 1e-7, "atol": 1e-8}, "origin": "peer-code", **case}
    document = {"schema": "golden-expected/1", "input": "some_steps", "peer": {"name": peer}, "cases": [full]}
    (folder / "whatever.json").write_text(json.dumps(document))
    return folder


def returns_case(per_row: list[Any], **changes: Any) -> dict[str, Any]:
    return {
        "estimator": "step_discounted_returns",
        "function": "compute_step_discounted_returns",
        "params": {"gamma": 0.5},
        "expect": {"per_row": per_row},
        **changes,
    }


def test_agreement_exits_with_zero(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main([str(write(tmp_path, returns_case([0.0, 0.0, 0.5, 1.0]))), "--verbose"]) == 0
    assert "discounted_returns(gamma=0.5)" in capsys.readouterr().out


@pytest.mark.parametrize("per_row", [[0.0, 0.0, 0.5, 1.001], [0.0, 0.0, "nan", 1.0], [0.0, 0.0, 0.5]])
def test_a_difference_exits_with_one_and_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], per_row: list[Any]
):
    assert main([str(write(tmp_path, returns_case(per_row)))]) == 1
    assert "whatever.json :: c :: per_row" in capsys.readouterr().out


def test_null_is_undefined_and_matches_anything(tmp_path: Path):
    assert main([str(write(tmp_path, returns_case([0.0, None, 0.5, 1.0])))]) == 0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"params": {"gamma": 0.5, "warp": 9}}, "parameter warp is not known"),
        ({"function": "compute_something"}, "function 'compute_something' is not known"),
        ({"estimator": "hindsight"}, "no such method or loss here yet"),
    ],
)
def test_what_is_unknown_is_listed_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], reason: str
):
    assert main([str(write(tmp_path, returns_case([0.0] * 4, **changes)))]) == 2
    assert reason in capsys.readouterr().out


def test_a_quantity_that_is_unknown_is_listed_beside_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    case = returns_case([0.0, 0.0, 0.5, 1.0])
    case["expect"]["mood"] = 3.0
    assert main([str(write(tmp_path, case))]) == 0
    assert "step_discounted_returns (mood): this quantity is not known" in capsys.readouterr().out


def test_an_unknown_peer_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main([str(write(tmp_path, returns_case([0.0] * 4), peer="stranger"))]) == 2
    assert "of peer 'stranger' is not known" in capsys.readouterr().out


def test_an_input_that_cannot_be_used_fails_the_case_and_not_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = write(tmp_path, returns_case([0.0] * 4))
    (folder / "some_steps.json").write_text(json.dumps({"schema": "golden-steps/1", "steps": [{"traj_id": "t"}]}))
    (folder / "broken.json").write_text("{")
    assert main([str(folder)]) == 1
    out = capsys.readouterr().out
    assert "not computed: KeyError" in out and "broken.json" in out


def test_a_missing_input_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = write(tmp_path, returns_case([0.0] * 4))
    (folder / "some_steps.json").unlink()
    assert main([str(folder)]) == 2
    assert "its input some_steps.json is not in the folder" in capsys.readouterr().out


def test_a_folder_that_is_not_there_exits_with_two(tmp_path: Path):
    assert main([str(tmp_path / "nowhere")]) == 2


def test_rows_are_set_aside_only_where_rounding_could_have_done_it():
    rounding = Rounding(np.array([1.0, 1.0, 0.0]), np.array([0.4, 0.0, 0.0]))
    result = compare("a", [0.4, 7.0, 0.4], np.zeros(3), {"rtol": 1e-5, "atol": 1e-6}, rounding)
    assert not result.agrees and result.aside == 1 and result.aside_explained == 1


def test_a_row_that_rounding_could_change_without_limit_must_be_what_the_originals_arithmetic_gives():
    rounding = Rounding(np.full(2, np.inf), np.array([0.4, 0.4]))
    tolerance = {"rtol": 1e-5, "atol": 1e-6}
    assert compare("a", [0.4, 0.0], np.zeros(2), tolerance, rounding).agrees
    assert not compare("a", [0.4, 0.7], np.zeros(2), tolerance, rounding).agrees
