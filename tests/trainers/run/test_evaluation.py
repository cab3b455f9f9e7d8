"""Evaluation: which tasks are played how often, how tokens are drawn, and what the result counts."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from accelerate import Accelerator
from rich.console import Console
from tiny_runs import BOOK, model, settings, tokenizer

from envsuite.evaluation.statistics import clustered_wilson
from envsuite.playing.engine import Request, Sampling
from envsuite.playing.loop import step_seed
from envsuite.textcraft.tasks import load
from trainers.rollout.engine import Engine, EngineSetup
from trainers.rollout.engines import make_engine
from trainers.rollout.hf_engine import HFEngine
from trainers.rollout.scripted import ScriptedEngine
from trainers.run.assembly import Run
from trainers.run.config import EvalConfig, TrainConfig
from trainers.run.evaluation import Evaluator, chosen_tasks
from trainers.run.progress import RunProgress
from trainers.settings import ConfigError, checked

_, TASKS = load("generated", BOOK["book_seed"], BOOK["goals"])
ENV = {"id": "TextCraft-v0", "split": "test", "kwargs": dict(BOOK), "max_episode_steps": 2}
SPLIT = TASKS.ids("test")


@dataclass
class Process:
    """Stands for an Accelerator: a rank that asks no other one anything."""

    num_processes: int = 1
    process_index: int = 0


def _evaluator(engine: Engine, process: Process | None = None, **changes: Any) -> Evaluator:
    values = settings(Path("nowhere"), **{"seed": 5, "evaluation.episodes": None})
    values["evaluation"] |= {"envs": [ENV], **changes}
    return Evaluator(checked(TrainConfig, values), process or Process(), engine, tokenizer(), [1, 2])  # type: ignore


class Notes(ScriptedEngine):
    """Notes the requests, and answers nonsense."""

    def __init__(self) -> None:
        self.asked: list[Request] = []
        super().__init__(self._note)

    def _note(self, request: Request) -> Sequence[int]:
        self.asked.append(request)
        return [3, 4, 2]


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("repeats", [1, 3])
def test_every_task_of_the_split_is_played_equally_often_by_default(ranks: int, repeats: int) -> None:
    evaluators = [_evaluator(Notes(), Process(ranks, rank), repeats=repeats) for rank in range(ranks)]
    plans = [plan for evaluator in evaluators for plan in evaluator.plans[0]]
    assert Counter(plan.task_id for plan in plans) == dict.fromkeys(SPLIT, repeats)
    assert len({plan.episode_id for plan in plans}) == len(plans), "each has seeds of its own"
    assert len({(plan.group_id, plan.task_id) for plan in plans}) == len(SPLIT), "the episodes of a task are a group"
    sizes = [len(evaluator.plans[0]) for evaluator in evaluators]
    assert max(sizes) - min(sizes) <= 1


def test_a_process_without_an_episode_plays_none() -> None:
    evaluator = _evaluator(Notes(), Process(6, 5), episodes=4)
    assert evaluator.plans == [[]] and evaluator.play(0) == []


def test_a_sample_has_no_task_twice_and_does_not_depend_on_the_order_of_the_split() -> None:
    sample = chosen_tasks(SPLIT, EvalConfig(episodes=3), "x")
    smallest = sorted(SPLIT, key=lambda task: hashlib.sha256(task.encode()).digest())[:3]
    assert sorted(sample) == sorted(smallest) and len(set(sample)) == 3
    assert sample == [task for task in SPLIT if task in smallest], "in the order of the split"
    assert set(chosen_tasks(SPLIT[::-1], EvalConfig(episodes=3), "x")) == set(sample)
    assert set(sample) < set(chosen_tasks(SPLIT, EvalConfig(episodes=4), "x")), "a part of every larger one"
    assert chosen_tasks(SPLIT, EvalConfig(episodes=6, repeats=2), "x") == sample
    assert chosen_tasks(SPLIT, EvalConfig(episodes=len(SPLIT)), "x") == list(SPLIT)


def test_numbers_of_episodes_that_do_not_fit_are_refused_with_those_that_do() -> None:
    with pytest.raises(ConfigError, match=rf"evaluation.envs\[0\] \(test\) has {len(SPLIT)} tasks; leave it out"):
        _evaluator(Notes(), episodes=len(SPLIT) + 1)
    with pytest.raises(ConfigError, match="a multiple of 2"):
        _evaluator(Notes(), episodes=3, repeats=2)


def test_tokens_are_drawn_with_the_settings_of_the_evaluation() -> None:
    engine = Notes()
    evaluator = _evaluator(engine, sampling={"temperature": 0.4, "top_p": 0.9, "max_tokens": 5})
    assert evaluator.config.rollout.sampling.temperature == 1.0
    episodes = evaluator.play(0)
    assert {request.sampling for request in engine.asked} == {Sampling(0.4, 0.9, 0, 5, (1, 2))}
    seeds = {step_seed(5, episode.episode_id, step.t) for episode in episodes for step in episode.steps}
    assert {request.seed for request in engine.asked} == seeds, "of the run, the episode and the step alone"


def test_all_evaluations_of_a_run_play_the_same_episodes() -> None:
    policy = model("qwen2", len(tokenizer()))
    made = []
    for slots in (2, 5):
        setup = EngineSetup(policy, tokenizer(), checked(TrainConfig, settings(Path("x"))).model, slots)
        engine = make_engine("hf", setup, {})
        for _ in range(2):
            engine.sync(policy.named_parameters(), 0)
            made.append(_evaluator(engine, episodes=4).play(0))
    texts = [[[s.response_ids.tolist() for s in e.steps] for e in episodes] for episodes in made]
    assert texts[0] == texts[1] == texts[2] == texts[3]


def test_the_result_is_over_the_episodes_that_were_played_and_clustered_by_task() -> None:
    evaluator = _evaluator(Notes(), repeats=2, sampling={"temperature": 0.4})
    evaluator.engine.sync([], 3)
    result = evaluator.result("before", 0, evaluator.play(0), 1.5)
    assert (result.name, result.split, result.temperature, result.wall_s) == ("before", "test", 0.4, 1.5)
    assert result.policy_version == 3
    assert (result.all.n, result.all.tasks, result.all.mean_steps) == (2 * len(SPLIT), len(SPLIT), 2.0)
    assert (result.all.low, result.all.high) == clustered_wilson([(0, 2)] * len(SPLIT))
    assert result.manifest_hash == evaluator.tasks[0].hash


def test_episodes_that_outgrow_the_context_are_counted_and_not_solved() -> None:
    policy = model("qwen2", len(tokenizer()))
    setup = EngineSetup(policy, tokenizer(), checked(TrainConfig, settings(Path("x"))).model, 4)
    evaluator = _evaluator(make_engine("hf", setup, {"max_length": 90}), envs=[{**ENV, "max_episode_steps": 9}])
    result = evaluator.result("before", 0, evaluator.play(0), 1.0)
    assert result.context_truncated > 0 == result.all.successes
    assert result.metrics()["eval/context_truncated"] == result.context_truncated <= result.all.n


@pytest.mark.parametrize(("episodes", "rows"), [(4, 6), (8, 8), (30, 16)])
def test_the_engine_of_a_run_has_room_for_the_episodes_that_are_played_at_a_time(
    place: Path, episodes: int, rows: int
) -> None:
    # 2 tasks of 3 episodes
    changes = {"rollout.slots": 16, "evaluation.episodes": episodes, "evaluation.repeats": episodes // 2}
    with RunProgress(1, console=Console(quiet=True)) as progress:
        run = Run(checked(TrainConfig, settings(place, **changes)), Accelerator(cpu=True), progress)
        with closing(run.rollouts), closing(run.engine):
            assert isinstance(run.engine, HFEngine) and run.engine.max_batch == rows
