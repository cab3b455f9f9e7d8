"""Agreement with recordings of the original implementations.

docs/originals.md: each option that it names exists, and has the value that it states in every run that it names.
"""

from __future__ import annotations

import fnmatch
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from gymnasium.envs.registration import load_env_creator

from benchmarks.golden import Report, compare, main, run
from benchmarks.golden_dispatch import Rounding
from benchmarks.papers.plans import config_of
from docs.build import ROOT
from envsuite.core.registration import ENVIRONMENTS
from trainers.papers.index import published_rows

OURS = (
    "grpo rloo gigpo ppo dapo gspo gmpo cispo gpg clip kl agg value trl reinforce remax opo hgpo gae token steppo "
    "bipace bigpo scpo spear"
).split()


@pytest.fixture(scope="module")
def report(shared: Path) -> Report:
    return run(shared / "golden")


def test_every_method_and_loss_that_is_here_agrees_with_the_originals(report):
    assert [f"{result.file} {result.case_id}" for result in report.disagreements] == []
    assert not report.unread
    assert all(result.covered for result in report.results), "every case is compared"
    covered = {result.estimator for result in report.results if result.covered}
    assert set("grpo_paper rloo_paper gigpo_paper gigpo gigpo_traj ppo_dualclip kl agg_loss".split()) <= covered
    for result in report.results:
        if result.estimator.split("_")[0] in OURS:
            said_of_the_recording = {"min_decision_margin", "rows_changed_by_rounding_noise"}
            missing = [key for key, _ in result.not_covered if key not in said_of_the_recording]
            assert not missing, (result.case_id, result.not_covered)


def test_newer_methods_agree_with_the_originals(shared):
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


def test_what_is_set_aside_is_the_originals_rounding_and_nothing_else(report):
    aside = [(r, c) for r in report.results for c in r.comparisons if c.aside]
    assert {result.estimator for result, _ in aside} <= {"gigpo", "gigpo_traj", "hgpo"}
    for result, comparison in aside:
        if result.estimator == "hgpo":  # asks whether a difference is exactly zero, which float64 can get wrong too
            assert comparison.aside == comparison.aside_explained
        else:
            assert "float32" in result.case_id and "zero_variance" in result.file


def write(folder: Path, expect: dict[str, Any], peer: str = "verl-agent", **changes: Any) -> Path:
    steps = [
        {
            "group_id": "g", "traj_id": f"t{episode}", "step_index": t, "observation": "o",
            "step_reward": float(episode and t), "is_action_valid": True,
        }
        for episode in (0, 1) for t in (0, 1)
    ]  # fmt: skip
    (folder / "some_steps.json").write_text(json.dumps({"schema": "golden-steps/1", "steps": steps}))
    full = {
        "id": "c", "dtype": "float64", "tolerance": {"rtol": 1e-7, "atol": 1e-8}, "origin": "peer-code",
        "estimator": "step_discounted_returns", "function": "compute_step_discounted_returns", "params": {"gamma": 0.5},
        "expect": expect, **changes,
    }  # fmt: skip
    document = {"schema": "golden-expected/1", "input": "some_steps", "peer": {"name": peer}, "cases": [full]}
    (folder / "whatever.json").write_text(json.dumps(document))
    return folder


RIGHT = {"per_row": [0.0, 0.0, 0.5, 1.0]}


@pytest.mark.parametrize(
    ("expect", "changes", "status", "said"),
    [
        (RIGHT, {}, 0, "discounted_returns(gamma=0.5)"),
        ({"per_row": [0.0, None, 0.5, 1.0]}, {}, 0, "discounted_returns"),  # null is undefined and matches anything
        ({"per_row": [0.0, 0.0, 0.5, 1.001]}, {}, 1, "whatever.json :: c :: per_row"),
        ({"per_row": [0.0, 0.0, "nan", 1.0]}, {}, 1, "whatever.json :: c :: per_row"),
        ({"per_row": [0.0, 0.0, 0.5]}, {}, 1, "whatever.json :: c :: per_row"),
        (RIGHT, {"params": {"gamma": 0.5, "warp": 9}}, 2, "parameter warp is not known"),
        (RIGHT, {"function": "compute_something"}, 2, "function 'compute_something' is not known"),
        (RIGHT, {"estimator": "hindsight"}, 2, "no such method or loss here yet"),
        ({**RIGHT, "mood": 3.0}, {}, 0, "step_discounted_returns (mood): this quantity is not known"),
        (RIGHT, {"peer": "stranger"}, 2, "of peer 'stranger' is not known"),
    ],
)
def test_a_case_agrees_or_differs_or_is_listed_with_the_reason(tmp_path, capsys, expect, changes, status, said):
    assert main([str(write(tmp_path, expect, **changes)), "--verbose"]) == status
    assert said in capsys.readouterr().out


def test_an_input_that_cannot_be_used_fails_the_case_and_not_the_run(tmp_path, capsys):
    folder = write(tmp_path, RIGHT)
    (folder / "some_steps.json").write_text(json.dumps({"schema": "golden-steps/1", "steps": [{"traj_id": "t"}]}))
    (folder / "broken.json").write_text("{")
    assert main([str(folder)]) == 1
    out = capsys.readouterr().out
    assert "not computed: KeyError" in out and "broken.json" in out
    (folder / "broken.json").unlink()
    (folder / "some_steps.json").unlink()
    assert main([str(folder)]) == 2 == main([str(tmp_path / "nowhere")])
    assert "its input some_steps.json is not in the folder" in capsys.readouterr().out


def test_rows_are_set_aside_only_where_rounding_could_have_done_it():
    rounding = Rounding(np.array([1.0, 1.0, 0.0]), np.array([0.4, 0.0, 0.0]))
    result = compare("a", [0.4, 7.0, 0.4], np.zeros(3), {"rtol": 1e-5, "atol": 1e-6}, rounding)
    assert not result.agrees and result.aside == 1 and result.aside_explained == 1


def test_a_row_that_rounding_could_change_without_limit_must_be_what_the_originals_arithmetic_gives():
    rounding = Rounding(np.full(2, np.inf), np.array([0.4, 0.4]))
    tolerance = {"rtol": 1e-5, "atol": 1e-6}
    assert compare("a", [0.4, 0.0], np.zeros(2), tolerance, rounding).agrees
    assert not compare("a", [0.4, 0.7], np.zeros(2), tolerance, rounding).agrees


# -- Recordings with observation tokens between response tokens, made here by the recursions of verl and verl-agent


MASK = np.array([[1, 1, 0, 0, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0], [1, 0, 1, 0, 1, 0, 0]], bool)


def whitened(values: np.ndarray) -> np.ndarray:
    kept = values[MASK]
    return np.where(MASK, (values - kept.mean()) / np.sqrt(kept.var(ddof=1) + 1e-8), 0.0)


def recorded(peer: str, estimator: str) -> tuple[dict[str, Any], dict[str, Any]]:
    rng = np.random.default_rng(3)
    rewards, values = rng.normal(size=MASK.shape) * MASK, rng.normal(size=MASK.shape)
    values *= np.cumsum(MASK[:, ::-1], axis=1)[:, ::-1] > 0  # nothing after the last token
    gamma, lam = 0.9, 0.8
    advantages, returns = np.zeros(MASK.shape), np.zeros(MASK.shape)
    running, following, carried = np.zeros(3), np.zeros(3), np.zeros(3)
    skips = peer == "verl"
    for t in reversed(range(MASK.shape[1])):
        here = MASK[:, t]
        if estimator == "gae_token":
            new = rewards[:, t] + gamma * following - values[:, t] + gamma * lam * carried
            carried = np.where(here, new, carried) if skips else new
            following = np.where(here, values[:, t], following) if skips else values[:, t]
            advantages[:, t], returns[:, t] = carried, carried + values[:, t]
        else:
            new = rewards[:, t] + gamma * running
            returns[:, t] = advantages[:, t] = new
            running = np.where(here, new, running) if skips else new * here
    data = {
        "schema": "golden-tokens/1", "group_id": ["a", "a", "b"], "response_mask": MASK.astype(int).tolist(),
        "token_level_rewards_dense": rewards.tolist(), "values": values.tolist(),
    }  # fmt: skip
    lambdas = {"lam": lam} if estimator == "gae_token" else {}
    case = {
        "id": "holes", "estimator": estimator, "dtype": "float64", "tolerance": {"rtol": 1e-7, "atol": 1e-8},
        "function": "compute_gae_advantage_return" if lambdas else "compute_reinforce_plus_plus_outcome_advantage",
        "params": {"gamma": gamma, **lambdas, **({"rewards": "token_level_rewards_dense"} if skips else {})},
        "expect": {"advantage": whitened(advantages).tolist(), "returns": returns.tolist()},
    }  # fmt: skip
    return data, case


@pytest.mark.parametrize("estimator", ["gae_token", "reinforce_plus_plus"])
@pytest.mark.parametrize("peer", ["verl", "verl-agent"])
def test_observation_tokens_inside_a_row_are_treated_as_each_original_does(tmp_path, peer, estimator):
    data, case = recorded(peer, estimator)
    (tmp_path / "holes.json").write_text(json.dumps(data))
    document = {"schema": "golden-expected/1", "input": "holes", "peer": {"name": peer}, "cases": [case]}
    (tmp_path / "expected_holes.json").write_text(json.dumps(document))
    (result,) = run(tmp_path).results
    assert [c.key for c in result.comparisons] == ["advantage", "returns"], result.not_covered
    assert result.agrees, result.comparisons


RUNS = {run.name.removeprefix("papers/"): run for run in published_rows()}
CODE = re.compile(r"`([^`]+)`")


@dataclass(frozen=True)
class Row:
    """A row of a table of the page."""

    section: str
    setting: str
    ours: str
    runs: tuple[str, ...]
    """Patterns of the names of runs after ``papers/``, or ids of environments."""
    verdict: str


def rows() -> Iterator[Row]:
    """The rows of the page; the runs of ``all`` are those that the section names before its table."""
    for section in (ROOT / "docs" / "originals.md").read_text(encoding="utf-8").split("\n## ")[1:]:
        title, _, body = section.partition("\n")
        named = tuple(CODE.findall(body.partition("\n|")[0]))
        for line in body.splitlines():
            if line.startswith("| ") and not line.startswith("| setting |"):
                setting, _, ours, runs, verdict = line.strip("| ").split(" | ")
                yield Row(title, setting, ours, named if runs == "all" else tuple(CODE.findall(runs)), verdict)


ROWS = list(rows())


def matched(row: Row) -> list[str]:
    """The names of a row's runs."""
    return [name for pattern in row.runs for name in fnmatch.filter(RUNS, pattern)]


@cache
def settings(name: str) -> dict[str, Any]:
    """The settings of a run, resolved."""
    return asdict(config_of(RUNS[name]))


def defaults(env_id: str) -> dict[str, Any]:
    """The defaults of an environment's arguments, and its horizon."""
    kind: Any = load_env_creator(ENVIRONMENTS[env_id].entry_point)
    return {one.name: one.default for one in fields(kind.takes)} | {
        "max_episode_steps": ENVIRONMENTS[env_id].max_episode_steps
    }


def value(found: Any, key: str) -> Any:
    """The value of a dotted key; of a list the values of its items, as one where they are equal."""
    for name in key.split("."):
        found = [one[name] for one in found] if isinstance(found, list) else found[name]
    if isinstance(found, list) and found and all(one == found[0] for one in found):
        return found[0]
    return found


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.section}: {row.setting}")
def test_every_option_on_the_page_exists_and_has_the_stated_value(row):
    stated = [text for text in CODE.findall(row.ours) if re.match(r"[a-z_.]+: ", text)]
    environments = [name for name in row.runs if name in ENVIRONMENTS]
    names = matched(row)
    assert environments or names, row.runs
    for text in stated:
        ((key, wanted),) = yaml.safe_load(text).items()
        for where in (*environments, *names):
            found = value(defaults(where) if where in environments else settings(where), key)
            assert found == wanted, f"{where}: {key} is {found!r}, not {wanted!r}"
    assert row.ours and row.verdict.partition(":")[0] in ("same", "differs")


def test_every_run_and_every_pattern_is_on_the_page():
    assert not RUNS.keys() - {name for row in ROWS for name in matched(row)}
    for row in ROWS:
        for pattern in row.runs:
            assert pattern in ENVIRONMENTS or fnmatch.filter(RUNS, pattern), f"{row.setting}: {pattern}"
