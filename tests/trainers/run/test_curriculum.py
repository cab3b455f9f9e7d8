"""Curricula: which tasks are drawn, and after how many steps episodes end."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from folders import SUPPORT
from scipy.stats import chi2
from solving_run import finish
from tiny_runs import BOOK, BOTH, tokenizer, train, trained, without_times, write_settings

from envsuite.playing.dialog import TokenDialogs
from envsuite.playing.engine import Sampling
from envsuite.playing.episode import EpisodePlan, RunningEpisode
from envsuite.playing.manager import RolloutManager
from envsuite.playing.step import Episode
from envsuite.prompting import PromptSpec, make_codec, make_memory
from envsuite.textcraft.env import goal_of
from envsuite.textcraft.planning import plan
from envsuite.textcraft.tasks import load
from envsuite.textcraft.world import NAMESPACE
from envsuite.vector import EnvFactory, make_vector
from trainers.rollout.curriculum import HorizonCurriculum, SuccessCurriculum
from trainers.rollout.sampler import TaskPool, TaskSampler
from trainers.rollout.scripted import ScriptedEngine
from trainers.steps.parquet import episode_files, read_episodes

TYPES = {"a": "easy", "b": "easy", "c": "hard", "d": "hard", "new": "unknown"}
SUCCESS = SuccessCurriculum(floor=0.2, decay=0.5)
OUTCOMES = {"a": [1, 1, 1, 1], "b": [1, 0, 1, 1], "c": [0, 0, 0, 0]}
BOTH_KINDS = {"rollout.curriculum": {"success": {"floor": 0.3}, "horizon": {"steps": [1, 2, 3], "every": 2}}}


def _sampler(seed: int, outcomes: dict[str, list[int]], success: SuccessCurriculum | None = SUCCESS) -> TaskSampler:
    """A sampler that knows outcomes of two iterations."""
    sampler = TaskSampler([TaskPool(tuple(TYPES), 1.0, TYPES)], seed, success)
    for _ in range(2 if sampler.rates is not None and outcomes else 0):
        sampler.rates.tasks = {group: (0, task) for group, task in enumerate(outcomes)}
        sampler.rates.learn([(i, bool(s)) for i, all_of in enumerate(outcomes.values()) for s in all_of])
    return sampler


def test_a_rate_is_that_of_the_episodes_so_far_with_the_rate_of_the_type_as_one_more():
    """Counts of an iteration weigh 1, those of the one before 1/2."""
    rates = _sampler(0, OUTCOMES).rates
    easy, hard = (1.5 * 7 + 0.5) / (1.5 * 8 + 1), 0.5 / (1.5 * 4 + 1)
    expected = {"a": (6 + easy) / 7, "b": (4.5 + easy) / 7, "c": hard / 7, "d": hard, "new": 0.5}
    assert {task: rates.rate(0, task) for task in TYPES} == pytest.approx(expected)
    for task, rate in expected.items():
        assert rates.probability(0, task) == pytest.approx(0.2 + 0.8 * 4 * rate * (1 - rate))
    assert rates.probability(0, "new") == 1.0


def test_a_pass_over_the_tasks_draws_each_with_its_probability():
    sampler, passes, statistic = _sampler(3, OUTCOMES), 3000, 0.0
    counts: Counter[str] = Counter()
    while counts["new"] < passes:  # it is drawn in every pass
        counts[sampler.draw(1)[0][1]] += 1
    for task in "abcd":
        chance = sampler.rates.probability(0, task)
        statistic += (counts[task] - passes * chance) ** 2 / (passes * chance * (1 - chance))
        assert counts[task] > 0.2 * passes * 0.9, "the floor"
    assert statistic < chi2.ppf(0.999, 4)


def test_tasks_of_equal_success_are_drawn_alike_and_unknown_ones_as_without_a_curriculum():
    solved = {task: [1, 1, 1, 0] for task in TYPES}
    draws = [_sampler(seed, solved).draw(3) for seed in range(4000)]
    for place in range(3):
        counts = Counter(draw[place][1] for draw in draws)
        assert sum((counts[task] - 800) ** 2 / 800 for task in TYPES) < chi2.ppf(0.999, 4)
    for seed in range(20):
        passes = [task for _ in range(4) for _, task in _sampler(seed, {}).draw(5)]
        assert all(sorted(passes[i : i + 5]) == sorted(TYPES) for i in range(0, 20, 5)), "each once in a pass"


def test_without_a_curriculum_the_draws_are_those_of_before():
    pools = [TaskPool(tuple("abcde"), 3.0, dict.fromkeys("abcde", "x")), TaskPool(tuple("vwxyz"), 1.0)]
    draws = ["".join(task for _, task in TaskSampler(pools, seed).draw(9)) for seed in (0, 5, 77)]
    assert draws == ["acddaewzb", "cxbezwdac", "zcbeaxavd"]
    assert TaskSampler(pools, 0).state().keys() == {"rng", "orders"}


def test_a_sampler_with_rates_goes_on_where_it_was():
    sampler, other = _sampler(1, OUTCOMES), _sampler(2, {})
    open_groups = dict(enumerate(sampler.draw(2, 7), 7))
    other.load(sampler.state())
    assert other.rates.tasks == sampler.rates.tasks == open_groups
    assert other.rates.learn([(7, True), (8, False)]) == sampler.rates.learn([(8, False), (7, True)])
    assert not other.rates.tasks and [sampler.draw(7) for _ in range(5)] == [other.draw(7) for _ in range(5)]


def test_a_stage_lasts_its_iterations_and_the_last_one_to_the_end():
    assert [HorizonCurriculum([2, 3, 5], 2).limit(i) for i in range(1, 9)] == [2, 2, 3, 3, 5, 5, 5, 5]


def _expert(steps: int | None, horizon: int | None) -> list[Episode]:
    """Episodes of an expert, and one that goes on from each of their steps; the plans or the environment end them."""
    book, tasks = load("generated", BOOK["book_seed"], BOOK["goals"])
    ids = tasks.ids("train")[:6]
    lines = [[f"<action>{c}</action>" for c in plan(book, NAMESPACE + goal_of(task))] for task in ids]
    given = {} if horizon is None else {"max_episode_steps": horizon}
    plans = [EpisodePlan(100 * i, i, 0, task, steps=steps) for i, task in enumerate(ids)]
    points: dict[int, Any] = {}

    def answer(request: Any) -> list[int]:
        line = lines[request.session // 100][asked[request.session] + request.session % 100]
        asked[request.session] += 1
        return [*tokenizer().encode(line, add_special_tokens=False), tokenizer().eos_token_id]

    with make_vector([EnvFactory("TextCraft-v0", {**BOOK, **given})], 4, snapshots=True) as vector:
        prompt = PromptSpec(make_codec("tags", think=False), make_memory("full"), instructions=False)
        manager = RolloutManager(ScriptedEngine(answer), vector, ["TextCraft-v0"], TokenDialogs(tokenizer(), prompt))
        asked: Counter[int] = Counter()
        episodes = manager.run(plans, Sampling(max_tokens=64), 0, branches=points)
        asked.clear()
        branches = [
            EpisodePlan(i + t, i, 0, ids[i // 100], branch=point, steps=steps)
            for i, own in points.items()
            for t, point in enumerate(own)
        ]
        return episodes + manager.run(branches, Sampling(max_tokens=64), 0)


@pytest.mark.parametrize("limit", [1, 2, 3, 5])
def test_a_plan_ends_an_episode_as_the_horizon_of_an_environment_does(limit):
    episodes, whole = _expert(limit, None), _expert(None, None)
    assert episodes == _expert(None, limit) and len(episodes) > 6
    solved = [len(episode.steps) <= limit for episode in whole[:6]]
    assert [e.terminated and e.success for e in episodes[:6]] == solved == [not e.truncated for e in episodes[:6]]
    assert all(len(e.steps) == limit for e in episodes if e.truncated)


def _episodes(run: Path) -> list[list[Episode]]:
    return [read_episodes(file) for file in episode_files(run / "episodes", "iteration-*")]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["gigpo", "tree_grpo", "oracle_mc", "remax"])
def test_a_run_of_one_stage_is_the_run_of_a_shorter_environment(place, recipe):
    shorter = [{"id": "TextCraft-v0", "kwargs": dict(BOOK), "max_episode_steps": 2}]
    found = []
    for changes in ({"rollout.curriculum": {"horizon": {"steps": [2]}}}, {"envs": shorter}):
        shutil.rmtree(place / "runs", ignore_errors=True)
        found.append(trained(place, recipe=recipe, iterations=2, **changes))
    assert {line.pop("train/step_limit", None) for line in found[0]} == {None, 2.0}
    assert found[0] == found[1]


@pytest.fixture
def luck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunningEpisode, "finish", finish)


@pytest.mark.slow
def test_a_run_draws_by_the_success_of_its_tasks_and_ends_episodes_at_its_stages(place, luck):
    changes = {"rollout.tasks": 8, "iterations": 6, "checkpoint_every": 6, **BOTH_KINDS}
    lines = [line for line in trained(place, **changes) if "train/success" in line]
    tasks = load("generated", BOOK["book_seed"], BOOK["goals"])[1]
    sampler = TaskSampler([TaskPool(tasks.ids("train"), 1.0, tasks.types)], 0, SuccessCurriculum(floor=0.3))
    for number, episodes in enumerate(_episodes(place / "runs/tiny")):
        drawn = [(0, episode.task_id) for episode in episodes[::3]]
        assert drawn == sampler.draw(8, 8 * number)
        before = [sampler.rates.rate(*task) for task in drawn]
        sampler.rates.learn([(episode.group_id, episode.success) for episode in episodes])
        steps = {len(episode.steps) for episode in episodes}
        assert steps == {number // 2 + 1}, "a random model solves nothing"
        assert lines[number]["train/step_limit"] == number // 2 + 1
        assert lines[number]["train/task_success"] == pytest.approx(np.mean(before))
    assert len({line["train/task_success"] for line in lines}) == 6


@pytest.mark.slow
@pytest.mark.parametrize("staleness", [0, 1])
def test_two_processes_play_the_tasks_of_one(place, staleness):
    changes = {"rollout.tasks": 4, "rollout.staleness": staleness, "iterations": 5, "evaluation.envs": [], **BOTH_KINDS}
    found = []
    for name, program in (("one", (sys.executable,)), ("two", BOTH)):
        config = write_settings(place, name=name, **changes)
        train("--config", str(config), program=(*program, str(SUPPORT / "solving_run.py")), status=0)
        run = place / "runs" / name
        episodes = [sorted((e.episode_id, e.task_id, len(e.steps)) for e in own) for own in _episodes(run)]
        lines = [line for line in without_times(run) if "train/loss" in line]
        found.append((episodes, [(line["train/task_success"], line["train/step_limit"]) for line in lines]))
    assert found[0] == found[1] and len(found[0][1]) == 5
