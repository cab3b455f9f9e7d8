"""Rollouts whose episodes branch from each other: what is played, kept, shared and counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from accelerate import Accelerator
from test_oracle import TOKENIZER
from test_oracle import manager as walking
from tiny_runs import save_model, without_times, write_settings

from trainers.credit.config import MethodConfig
from trainers.credit.crediting import Crediting
from trainers.credit.estimators import ESTIMATORS
from trainers.credit.method import Method
from trainers.credit.rows import unshaped
from trainers.rollout.config import EnvConfig, RolloutConfig, TreeConfig
from trainers.rollout.engine import Sampling
from trainers.rollout.sampler import TaskPool, TaskSampler
from trainers.run.config import TrainConfig
from trainers.run.counters import Counters
from trainers.run.rollouts import Rolled, SynchronousRollouts
from trainers.settings import make
from trainers.steps import Episode, StepTable
from trainers.steps.columns import TREE
from trainers.steps.parquet import read_episodes, write_episodes
from trainers.train import main

METHOD: dict[str, Any] = {"estimator": "tree_grpo"}


class Phases:
    """Plays each phase to its end."""

    def phase(self, name: str, total: int, part: Any) -> Any:
        return part(None)


def _informative(episodes: Sequence[Episode], iteration: int) -> int:
    raise AssertionError("no group is replaced")


def _steps(rolled: Rolled) -> StepTable:
    return unshaped(rolled.episodes, 1)


def _rolled(tree: TreeConfig, workers: int = 0, seed: int = 0, **method: Any) -> tuple[Rolled, int]:
    """An iteration of two tasks, and the number of tokens that the engine wrote."""
    settings = make(MethodConfig, {**METHOD, **method}, "method")
    config = TrainConfig(seed=seed, envs=[EnvConfig("walk_world:Walk-v0")], method=settings,
                         rollout=RolloutConfig(tasks=2, tree=tree))  # fmt: skip
    accelerator = Accelerator(cpu=True)
    written: Counter[str] = Counter()
    with (playing := walking("window(1)", workers, written)).vector:
        common = (config, accelerator, TaskSampler([TaskPool(("one", "two"), 1.0)], 0), _informative, Counters())
        rollouts = SynchronousRollouts(*common, Phases(), playing, Sampling(), lambda: None)  # type: ignore[arg-type]
        return rollouts(1), written["tokens"]


def _paths(episodes: list[Episode]) -> list[list[tuple[str, float]]]:
    return [[(TOKENIZER.decode(s.response_ids), s.reward) for s in e.steps] for e in episodes]


@pytest.mark.parametrize("tree", [TreeConfig(), TreeConfig(3, 2, 3, 4), TreeConfig(1, 3, 1), TreeConfig(2, 1, 2, 1)])
def test_leaves_share_their_first_steps_and_every_token_is_counted_once(tree: TreeConfig) -> None:
    for seed in range(4):
        rolled, written = _rolled(tree, seed=seed)
        episodes = list(rolled.episodes)
        assert Counter(e.group_id for e in episodes) == {0: tree.kept, 1: tree.kept}
        assert len({e.episode_id for e in episodes}) == len(episodes)
        assert set(Counter((e.group_id, e.tree) for e in episodes).values()) == {tree.kept // tree.trees}
        own = sum(len(s.response_ids) for e in episodes for s in e.steps[e.shared :])
        assert own + rolled.pruned_tokens == written
        for episode in episodes:
            others = [e for e in episodes if e.tree == episode.tree and e.episode_id < episode.episode_id]
            shared = episode.steps[: episode.shared]
            same = [[a is b for a, b in zip(shared, e.steps, strict=False)] for e in others]
            assert not shared or [True] * len(shared) in same
            assert [step.t for step in episode.steps] == list(range(len(episode.steps)))
            assert episode.terminated or len(episode.steps) == 6, "the time limit counts the steps before a branch"
        table = _steps(rolled)
        assert set(table.extra[TREE].tolist()) == {e.tree for e in episodes}


def test_some_branches_do_share_and_all_keep_at_least_the_first_step() -> None:
    rolled, _ = _rolled(TreeConfig(2, 2, 4))
    branches = [e for e in rolled.episodes if e.episode_id != e.tree]
    assert branches and all(e.shared >= 1 for e in branches)
    assert len({e.shared for e in branches}) > 1, "steps are drawn from the whole tree"


def test_workers_play_the_same_trees_and_another_seed_others() -> None:
    tree = TreeConfig(2, 2, 2, 3)
    here, there, other = (_rolled(tree, workers, seed)[0] for workers, seed in ((0, 0), (2, 0), (0, 1)))
    assert list(here.episodes) == list(there.episodes)
    assert _paths(list(here.episodes)) != _paths(list(other.episodes))


def test_every_method_that_compares_steps_runs_on_trees() -> None:
    rolled, _ = _rolled(TreeConfig(2, 1, 3))
    steps = _steps(rolled)
    assert np.bincount(steps.group_id).min() > len(set(zip(steps.group_id, steps.state_key, strict=True)))
    for name in ("grpo", "gigpo", "hgpo", "graphgpo", "g2po", "pgpo", "gagpo", "rewardflow", "tree_grpo"):
        found = ESTIMATORS[name]()(steps).per_step
        assert found is not None and np.isfinite(found).all() and np.abs(found).max() > 0.0, name


def test_the_oracle_measures_the_states_of_a_tree_once() -> None:
    oracle = {"estimator": "oracle_mc", "oracle": {"continuations": 2}}
    rolled, _ = _rolled(TreeConfig(2, 2, 2), **oracle)
    shared = sum(episode.shared for episode in rolled.episodes)
    steps = _steps(rolled)
    assert shared > 0 and rolled.metrics["oracle/states"] <= len(steps) - shared
    crediting = Crediting(Method.of(make(MethodConfig, {**METHOD, **oracle}, "method")), Accelerator(cpu=True))
    assert "mc_value" in crediting(rolled.episodes, 1, rolled.continued).table.extra


def test_a_file_of_episodes_keeps_their_trees(tmp_path: Path) -> None:
    rolled, _ = _rolled(TreeConfig())
    write_episodes(tmp_path / "iteration-00001.parquet", rolled.episodes)
    assert read_episodes(tmp_path / "iteration-00001.parquet") == list(rolled.episodes)


@pytest.mark.slow
def test_a_run_trains_on_trees_and_counts_shared_tokens_once(tmp_path: Path) -> None:
    save_model(tmp_path / "model")
    changes = {"recipe": "tree_grpo", "iterations": 2, "evaluation.envs": []}
    assert main(["--config", str(write_settings(tmp_path, **changes))]) == 0
    one, two = without_times(tmp_path / "runs/tiny")
    assert one["train/episodes"] == 12 and one["diag/tree/size_mean"] == 3.0
    assert one["train/sampled_tokens"] < one["train/response_length"] * one["train/episode_length"] * 12
    assert two["train/tokens_total"] == one["train/sampled_tokens"] + two["train/sampled_tokens"]
    episodes = read_episodes(tmp_path / "runs/tiny/episodes/iteration-00001.parquet")
    assert one["train/sampled_tokens"] == sum(len(s.response_ids) for e in episodes for s in e.steps[e.shared :])
    assert replace(episodes[0], shared=0).tree == episodes[0].episode_id
