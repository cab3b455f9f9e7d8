"""Runs that train on episodes which older weights have begun."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from accelerate import Accelerator
from folders import SUPPORT
from policies import logprobs
from safetensors.torch import load_file
from tiny_runs import BOTH, train, weights, without_times, write_settings
from transformers import AutoModelForCausalLM

from envsuite.playing.manager import RolloutManager
from envsuite.playing.step import Episode
from trainers.policy.config import OptimConfig
from trainers.report.metrics import read_metrics
from trainers.run import assembly
from trainers.run.features.staleness.groups import GroupPool
from trainers.run.features.staleness.rollouts import AsynchronousRollouts
from trainers.run.rollouts import RolloutSource, SynchronousRollouts
from trainers.run.sources import make_rollouts
from trainers.run.tensors import with_tensors
from trainers.steps.parquet import episode_files, read_episodes
from trainers.train import main

KILLED = (sys.executable, str(SUPPORT / "killed_run.py"))


def trained(run: Path) -> list[list[Any]]:
    """The episodes of each iteration."""
    return [read_episodes(file) for file in episode_files(run / "episodes", "iteration-*")]


def check(run: Path, staleness: int, iterations: int = 4, tasks: int = 2, size: int = 3) -> None:
    """Every iteration trained on the groups of the synchronous loop, none of them too old."""
    lines = [line for line in read_metrics(run / "metrics.jsonl") if "train/success" in line]
    assert [line["iteration"] for line in lines] == list(range(1, iterations + 1))
    assert all(line["async/staleness_max"] <= staleness for line in lines)
    assert all(0.0 <= line["idle/engine"] <= 1.0 for line in lines)
    starts = [0, *(line["train/optimizer_steps"] for line in lines)]
    for number, (line, episodes) in enumerate(zip(lines, trained(run), strict=True)):
        groups = Counter(episode.group_id for episode in episodes)
        assert groups == dict.fromkeys(range(number * tasks, (number + 1) * tasks), size), "each once, in order"
        oldest = starts[max(0, number - staleness)]
        for episode in episodes:
            assert episode.versions is None or oldest <= episode.versions[0] <= episode.versions[1] <= starts[number]
        assert line["train/failed"] == 0 == line["async/dropped_groups"]


def _asynchronous(run: assembly.Run, ends: Sequence[int]) -> RolloutSource:
    """The rollouts of an asynchronous run, with a staleness of 0."""
    found = make_rollouts(run, ends)
    assert isinstance(found, SynchronousRollouts) and isinstance(found.manager, RolloutManager)
    pool = GroupPool(run.accelerator, run.config.rollout.tasks, 0)
    turns = found.manager.open(found.sampling, run.config.seed + 1, lambda _, episode, __: pool.enter(episode))
    common = (run.config, run.accelerator, run.sampler, run.crediting.informative, run.counters, run.stop)
    return AsynchronousRollouts(*common, pool, turns, run.sync, lambda: run.updater.steps)


def _both(place: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> tuple[Path, Path]:
    """A synchronous run, and one that takes its groups from a pool, with a staleness of 0."""
    assert main(["--config", str(write_settings(place, name="one", **changes))]) == 0
    monkeypatch.setattr(assembly, "make_rollouts", _asynchronous)
    assert main(["--config", str(write_settings(place, name="two", **changes))]) == 0
    return place / "runs/one", place / "runs/two"


def _metrics(run: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if not k.startswith("async/")} for line in without_times(run)]


@pytest.mark.slow
def test_with_a_staleness_of_0_the_pool_gives_the_synchronous_run_bit_for_bit(place, monkeypatch):
    one, two = _both(place, monkeypatch, iterations=3, checkpoint_every=3, **{"evaluation.every": 0})
    assert _metrics(two) == _metrics(one)
    checkpoints = [weights(run / "checkpoints" / "iteration-00003") for run in (one, two)]
    assert checkpoints[0] == checkpoints[1]
    assert trained(one) == trained(two)


@pytest.mark.slow
def test_groups_without_a_signal_are_replaced_by_those_of_the_synchronous_run(place, monkeypatch):
    """Its engine forgets keys and values before each round: log-probabilities round otherwise, prompts cost more."""
    one, two = _both(place, monkeypatch, **{"method.filters": {"zero_variance": {"refill_rounds": 2}}})
    tokens = [
        [[step.response_ids.tolist() for step in e.steps] for episodes in trained(run) for e in episodes]
        for run in (one, two)
    ]
    assert tokens[0] == tokens[1] and len(tokens[0]) > 4 * 6
    rounded = ("tokens/prefill", "train/entropy")
    found = [[{k: v for k, v in line.items() if k not in rounded} for line in _metrics(run)] for run in (one, two)]
    assert found[0] == found[1]
    entropies = [[line["train/entropy"] for line in _metrics(run) if "train/entropy" in line] for run in (one, two)]
    assert entropies[0] == pytest.approx(entropies[1], rel=1e-7)


@pytest.mark.parametrize("staleness", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_run_trains_on_the_tasks_of_the_synchronous_one_within_its_staleness(place, staleness):
    assert main(["--config", str(write_settings(place, name="sync"))]) == 0
    assert main(["--config", str(write_settings(place, name="late", **{"rollout.staleness": staleness}))]) == 0
    check(place / "runs/late", staleness)
    tasks = [
        [[(e.episode_id, e.task_id) for e in episodes] for episodes in trained(place / "runs" / name)]
        for name in ("sync", "late")
    ]
    assert tasks[0] == tasks[1]
    lines = [line for line in read_metrics(place / "runs/late/metrics.jsonl") if "train/success" in line]
    assert max(line["train/staleness"] for line in lines) > 0, "the overlap is real"
    assert all("train/engine_weight_mean" in line for line in lines), "the proximal policy is the trainer's"
    assert lines[-1]["async/open_groups"] == lines[-1]["async/whole_groups"] == 0, "nothing is played for no update"
    names = [[line["iteration"] for line in without_times(place / "runs" / name)] for name in ("sync", "late")]
    assert names[0] == names[1], "the same evaluations"


def test_old_logprobs_are_the_trainers_where_the_sampling_weights_may_be_older():
    assert not OptimConfig().recomputes("float32", "hf")
    assert OptimConfig().recomputes("float32", "hf", 1)
    assert not OptimConfig(old_logprobs="engine").recomputes("float32", "hf", 1)


def _strike_after(count: int, patched: pytest.MonkeyPatch) -> None:
    """Sends this process a signal when so many episodes have ended."""
    enter = GroupPool.enter

    def entering(self: GroupPool, episode: Episode) -> None:
        enter(self, episode)
        if self.ended == count:
            os.kill(os.getpid(), signal.SIGTERM)

    patched.setattr(GroupPool, "enter", entering)


def test_finished_episodes_of_a_checkpoint_are_those_that_the_resumed_run_trains_on(place, monkeypatch):
    """A signal comes in the second iteration, when two of its episodes have ended."""
    config = write_settings(place, iterations=3, **{"rollout.staleness": 1, "evaluation.every": 0})
    with monkeypatch.context() as patched:
        _strike_after(6 + 2, patched)
        assert main(["--config", str(config)]) == 128 + signal.SIGTERM
    run = place / "runs/tiny"
    (folder,) = (run / "checkpoints").glob("iteration-*")
    state = orjson.loads((folder / "state.json").read_bytes())["parts"]["pool"]
    pool = GroupPool(Accelerator(cpu=True), 2, 1)
    pool.load(with_tensors(state, load_file(folder / "pool.safetensors")))
    lacking = {plan.episode_id for plan in pool.open_plans()}
    finished = [episode for episode in pool.take(pool.first(len(pool))) if episode.episode_id not in lacking]
    assert len(finished) >= 2
    assert main(["--config", str(config), "--resume"]) == 0
    check(run, 1, iterations=3)
    found = {episode.episode_id: episode for episodes in trained(run) for episode in episodes}
    kept = [
        [replace(step, prompt_text=None, response_text=None) for step in found[episode.episode_id].steps]
        for episode in finished
    ]
    assert kept == [[*episode.steps] for episode in finished]


def test_groups_of_an_iteration_that_is_stopped_while_others_are_replaced_are_not_lost(place, monkeypatch):
    refilling = {"method.filters": {"zero_variance": {"refill_rounds": 1}}, "rollout.staleness": 1}
    config = write_settings(place, iterations=2, **refilling, **{"evaluation.every": 0})
    with monkeypatch.context() as patched:
        _strike_after(6 + 3, patched)  # the groups of the first round have been taken: none has a signal
        assert main(["--config", str(config)]) == 128 + signal.SIGTERM
    assert main(["--config", str(config), "--resume"]) == 0
    groups = [Counter(e.group_id for e in episodes) for episodes in trained(place / "runs/tiny")]
    assert groups == [dict.fromkeys(range(4), 3), dict.fromkeys(range(4, 8), 3)]


@pytest.mark.slow
def test_a_run_that_goes_on_with_less_staleness_drops_and_replaces_what_is_too_old(place):
    settings = {"rollout.staleness": 3, "rollout.slots": 24, "evaluation.every": 0}
    config = write_settings(place, **settings, iterations=6)
    program = (*KILLED, "checkpoint", "2", str(int(signal.SIGTERM)))
    train("--config", str(config), program=program, status=128 + signal.SIGTERM)
    assert main(["--config", str(config), "--resume", "--rollout.staleness", "1"]) == 0
    lines = [line for line in read_metrics(place / "runs/tiny/metrics.jsonl") if "train/success" in line]
    dropped = [line["async/dropped_groups"] for line in lines]
    assert dropped[:2] == [0, 0] and sum(dropped) > 0
    assert all(line["async/staleness_max"] <= 1 and line["train/groups"] == 2 for line in lines[2:])
    ids = Counter(episode.group_id for episodes in trained(place / "runs/tiny") for episode in episodes)
    assert set(ids.values()) == {3} and len(ids) == 12, "as many groups as without, each once"


@pytest.mark.slow
def test_two_processes_train_on_the_groups_of_one(place):
    config = write_settings(place, **{"rollout.staleness": 1})
    train("--config", str(config), program=(*BOTH, "-m", "trainers.train"), timeout=400, status=0)
    check(place / "runs/tiny", 1)


@pytest.mark.slow
def test_each_token_has_the_log_probability_of_the_weights_of_its_version(place):
    settings = {"rollout.staleness": 2, "optim.minibatches": 1, "evaluation.every": 0}
    config = write_settings(place, iterations=5, checkpoint_every=1, keep_checkpoints=9, **settings)
    assert main(["--config", str(config)]) == 0
    run = place / "runs/tiny"
    folders = [place / "model", *sorted((run / "checkpoints").glob("iteration-*"))]
    models = [AutoModelForCausalLM.from_pretrained(folder).eval() for folder in folders]
    versions = set()
    for step in (step for episodes in trained(run) for episode in episodes for step in episode.steps):
        for version in set(step.policy_version.tolist()):
            sampled = step.policy_version == version
            own = logprobs(models[version], step.prompt_ids.tolist(), step.response_ids.tolist())
            np.testing.assert_allclose(step.response_logprobs[sampled], own[sampled], atol=1e-4)
            versions.add(version)
    assert len(versions) >= 3, "weights arrived while episodes were played"
