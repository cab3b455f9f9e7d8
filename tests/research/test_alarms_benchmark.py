"""How the bounds of the alarms are fitted, and what the induced collapses change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_runs import model, step_table

from benchmarks.alarms import (
    Length,
    OneBehind,
    PenaltyAlone,
    Seen,
    collapses,
    jobs,
    raised,
    seen,
    tightest,
    with_margin,
)
from trainers.credit.estimators.groups import episode_codes
from trainers.run.alarm_rules import RULES
from trainers.run.config import AlarmConfig, AlarmRuleConfig


def lines(name: str, values: list[float]) -> list[dict[str, Any]]:
    return [{"iteration": i, name: value} for i, value in enumerate(values, start=1)]


@pytest.mark.parametrize(
    "name, values, least",
    [
        ("long_responses", [10.0, 10.0, 10.0, 25.0, 21.0, 22.0, 10.0], 2.1),
        ("short_responses", [10.0, 10.0, 10.0, 4.0, 5.0, 3.0, 10.0], 0.5),
        ("repeated_actions", [0.1, 0.1, 0.1, 0.5, 0.4, 0.5], 0.3),
        ("invalid_actions", [0.8, 0.8, 0.8, 0.4, 0.5, 0.3], -0.3),
        ("ratio", [1.0, 8.0, 6.0, 1.0], 6.0),
        ("no_valid_actions", [0.5, 0.2, 0.3, 0.5], 0.3),
    ],
)
def test_the_tightest_bound_is_silent_and_a_tighter_one_is_not(name: str, values: list[float], least: float) -> None:
    rule = RULES[name]
    bound = tightest(name, [lines(rule.metric, values)])
    assert bound == pytest.approx(least, rel=0.08)
    for factor, silent in ((1.0, True), (1.1, False)):
        tighter = bound / factor if rule.beyond == "above" or least < 0.0 else bound * factor
        rules = {name: AlarmRuleConfig(bound=tighter)}
        config = AlarmConfig(silent=[other for other in RULES if other != name], rules=rules)
        assert (raised(lines(rule.metric, values), config) == []) == silent
    margin = with_margin(rule, bound)
    assert margin > bound if rule.beyond == "above" else margin < bound


def test_a_floor_that_is_silent_alone_needs_no_bound() -> None:
    assert tightest("high_entropy", [lines("train/entropy", [0.01, 0.02, 0.2, 0.2, 0.2])]) is None


def test_shapers_of_the_collapses_leave_the_tasks_reward_out() -> None:
    steps = step_table(np.random.default_rng(0), 50)
    paid = Length(coef=0.5)(steps).reward
    episode = episode_codes(steps)
    for number in range(int(episode.max()) + 1):
        mine = episode == number
        assert paid[mine].sum() == pytest.approx(0.5 * steps.response.lengths[mine].mean())
    assert PenaltyAlone(coef=0.1)(steps).reward.tolist() == [0.0 if valid else -0.1 for valid in steps.valid]


def test_the_late_engine_samples_from_the_weights_of_the_call_before_under_the_present_version() -> None:
    copy = model("qwen2", 60)
    engine = OneBehind(copy, max_batch=1)
    engine.late = {}
    given = [{name: torch.full_like(tensor, value) for name, tensor in copy.named_parameters()} for value in (1.0, 2.0)]
    for version, weights in enumerate([*given, given[1]]):
        engine.sync(weights.items(), version)
        assert engine.policy_version == version
        assert {float(tensor.mean()) for tensor in copy.parameters()} == {max(1.0, float(version))}


def test_every_second_of_further_healthy_runs_is_for_the_test(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_bytes(b'{"iteration":1,"train/success":0.5}\n')
    found = seen([], [tmp_path / "one", tmp_path / "two"])
    assert [(run.name, run.part) for run in found] == [("one", "fit"), ("two", "test")]
    assert isinstance(found[0], Seen)


@pytest.mark.seconds
def test_each_collapse_is_induced_on_both_sources_with_every_seed(tmp_path: Path) -> None:
    every = {(job.kind, job.source, job.seed) for job in jobs(tmp_path, (0, 1))}
    for kind in collapses(tmp_path):
        assert {(kind, source, seed) for source in ("sokoban", "quickstart") for seed in (0, 1)} <= every
