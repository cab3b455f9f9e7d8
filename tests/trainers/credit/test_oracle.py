"""Rollouts that branch: values by continuations, and trees of episodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from accelerate import Accelerator
from numpy.testing import assert_allclose
from tiny_runs import BOTH, save_model, train, trained, without_times, write_settings
from walk_world import LIMIT, PLACES, RIGHT, value

from envsuite.playing.dialog import TokenDialogs
from envsuite.playing.engine import Request, Sampling
from envsuite.playing.episode import Branches, EpisodePlan
from envsuite.playing.manager import RolloutManager
from envsuite.playing.step import Episode
from envsuite.prompting import PromptSpec, make_codec, make_memory
from envsuite.vector import EnvFactory, make_vector
from trainers.credit.config import MethodConfig
from trainers.credit.crediting import Crediting
from trainers.credit.estimators.oracle_mc import OracleMC
from trainers.credit.method import Method
from trainers.credit.rows import unshaped_steps
from trainers.imitation.vocabulary import word_tokenizer
from trainers.report.metrics import read_metrics
from trainers.rollout.config import EnvConfig, RolloutConfig, TreeConfig
from trainers.rollout.sampler import TaskPool, TaskSampler
from trainers.rollout.scripted import ScriptedEngine
from trainers.run.config import TrainConfig
from trainers.run.counters import Counters
from trainers.run.features.branching.oracle import Continuations
from trainers.run.rollouts import IterationRollout, SynchronousRollouts
from trainers.settings import checked
from trainers.steps import StepTable
from trainers.steps.columns import MC_VALUE, NEXT_MC_VALUE, TREE
from trainers.steps.parquet import read_episodes, write_episodes
from trainers.train import main

TOKENIZER = word_tokenizer(["Task one two place 0 1 2 3 left right Observation Action : none"], 128)
METHOD = checked(MethodConfig, {"estimator": "oracle_mc"}, "method")


def _answer(request: Request) -> list[int]:
    word = "right" if np.random.default_rng(request.seed).random() < RIGHT else "left"
    return [*TOKENIZER.encode(f"<action>{word}</action>", add_special_tokens=False), TOKENIZER.eos_token_id]


def manager(memory: str, workers: int = 0, written: Counter[str] | None = None) -> RolloutManager:
    """Plays the walk; counts the tokens of all answers."""

    def answer(request: Request) -> list[int]:
        ids = _answer(request)
        if written is not None:
            written["tokens"] += len(ids)
        return ids

    vector = make_vector([EnvFactory("walk_world:Walk-v0")], 16, workers, snapshots=True)
    codec = make_codec("tags", think=False)
    engine = ScriptedEngine(answer)
    prompt = PromptSpec(codec, make_memory(memory), instructions=False)
    return RolloutManager(engine, vector, ["Walk-v0"], TokenDialogs(TOKENIZER, prompt))


def _rolled(
    memory: str, each: int, gamma: float = 1.0, workers: int = 0, members: int = 4, pooled: bool = False
) -> tuple[StepTable, Continuations, list[Episode]]:
    """Steps of two groups of episodes with their values, and the continuations."""
    crediting = Crediting(Method.of(METHOD), Accelerator(cpu=True))
    plans = {i: EpisodePlan(i, i // members, 0, ("one", "two")[i // members]) for i in range(2 * members)}
    branches: Branches = {}
    with (playing := manager(memory, workers)).vector:
        episodes = playing.run(list(plans.values()), Sampling(), 3, branches=branches)
        steps = crediting.shape_rewards(unshaped_steps(episodes, 1))
        found = Continuations.of(steps, each, plans, branches, pooled)
        played = playing.run(found.plans, Sampling(), 4)
    return _valued(steps, found, played, gamma), found, played


def _valued(steps: StepTable, found: Continuations, played: list[Episode], gamma: float = 1.0) -> StepTable:
    continued = found.playouts(played)
    return continued.with_oracle_values(steps, unshaped_steps(continued.episodes, 1), gamma)


@pytest.mark.seconds
@pytest.mark.parametrize("gamma", [0.8, pytest.param(1.0, marks=pytest.mark.slow)])
def test_values_approach_the_exact_ones(gamma):
    steps, _, _ = _rolled("window(0)", 150, gamma)
    place = np.array([int(key) for key in steps.state_key])
    exact = np.array([value(p, t, gamma) for p, t in zip(place.tolist(), steps.t.tolist(), strict=True)])
    # A return lies in [-0.6, 1]: the deviation of a mean of 150 is 0.065 at most, and about 0.035.
    assert np.abs(steps.extra[MC_VALUE] - exact).max() < 0.15
    assert np.abs(steps.extra[MC_VALUE] - exact).mean() < 0.05
    right = np.isclose(steps.reward, 0.0) | np.isclose(steps.reward, 1.0)
    there = np.where(right, place + 1, np.maximum(place - 1, 0))
    later = np.array([value(p, t + 1, gamma) for p, t in zip(there.tolist(), steps.t.tolist(), strict=True)])
    found = OracleMC(gamma)(steps)
    assert found.per_step is not None
    assert np.abs(found.per_step - (steps.reward + gamma * later - exact)).max() < 0.25, "Q - V"
    ends = (steps.t == LIMIT - 1) | (there == PLACES)
    assert (steps.extra[NEXT_MC_VALUE][ends] == 0.0).all() and ends.sum() == 8


def test_pooled_visits_measure_places_whatever_the_time():
    steps, found, played = _rolled("window(0)", 60, members=8, pooled=True)
    exact, _, _ = _rolled("window(0)", 1, members=8)
    place = steps.state_key.astype(int)
    assert len(found.known) == len({(g, p) for g, p in zip(steps.group_id, place, strict=True)})
    assert len(found.plans) == 60 * len(found.known) < 60 * len(exact.t)
    for number, own in enumerate(place.tolist()):
        times = [value(own, t, 1.0) for t in range(LIMIT)]
        assert min(times) - 0.1 < steps.extra[MC_VALUE][number] < max(times) + 0.1
    sums, counts = np.zeros(len(found.known)), np.zeros(len(found.known))
    groups = np.repeat(found.group, found.each)
    numbers = {(g, p): n for g, p, n in zip(steps.group_id, place, found.state, strict=True)}
    for group, episode in zip(groups.tolist(), found.playouts(played).episodes, strict=True):
        rewards = [step.reward for step in episode.steps]
        for i, step in enumerate(episode.steps):
            if (state := numbers.get((group, int(step.state_key)))) is not None:
                sums[state] += sum(rewards[i:])
                counts[state] += 1
    assert counts.min() >= 60
    assert_allclose(steps.extra[MC_VALUE], (sums / counts)[found.state], atol=1e-12)


def test_a_state_is_measured_once_for_a_group_and_never_with_the_sampled_episode():
    steps, found, played = _rolled("window(0)", 2)
    where = [tuple(row) for row in np.stack([steps.group_id, steps.state_key.astype(int), steps.t], 1).tolist()]
    assert len(set(where)) == len(found.plans) // 2 < len(steps), "place, and steps that are left"
    assert len({(w, v) for w, v in zip(where, steps.extra[MC_VALUE].tolist(), strict=True)}) == len(set(where))
    own = {plan.episode_id: len(plan.branch.steps) for plan in found.plans if plan.branch is not None}
    assert all(len(e.steps) > own[e.episode_id] for e in played)
    assert sum(len(e.steps) for e in found.playouts(played).episodes) == sum(
        len(e.steps) - own[e.episode_id] for e in played
    )


def test_a_memory_that_shows_the_past_tells_states_apart_that_have_one_place():
    whole, window = (_rolled(memory, 1, members=10)[1].state.max() for memory in ("full", "window(0)"))
    assert whole > window


def test_workers_measure_the_same():
    here, there = (_rolled("window(1)", 3, workers=workers)[0] for workers in (0, 2))
    assert np.array_equal(here.extra[MC_VALUE], there.extra[MC_VALUE]) and len(here) == len(there)


def test_steps_whose_continuations_all_failed_are_left_out(caplog):
    steps, found, played = _rolled("full", 2)
    lost = {plan.episode_id for plan in found.plans[:2]}
    some = [Episode(**{**vars(e), "error": "down" if e.episode_id in lost else None}) for e in played]
    kept = _valued(steps, found, some)
    assert (found.state == 0).sum() == len(steps) - len(kept) == 4, "the first step of the group, and no other"
    assert "4 steps are left out" in caplog.text
    one = [Episode(**{**vars(e), "error": "down" if e.episode_id == min(lost) else None}) for e in played]
    assert len(_valued(steps, found, one)) == len(steps), "the other one measures it"


def test_an_oracle_that_no_world_allows_is_refused(tmp_path, capsys):
    save_model(tmp_path / "model")
    rigid = [{"id": "walk_world:Rigid-v0"}]
    assert main(["--config", str(write_settings(tmp_path, name="rigid", recipe="oracle_mc", envs=rigid))]) != 0
    assert "envs[0] (walk_world:Rigid-v0) has none: Rigid does not implement" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_plays_continuations_and_trains_on_none(tmp_path):
    save_model(tmp_path / "model")
    changes = {"recipe": "oracle_mc", "iterations": 1, "method": {"options": {"continuations": 3}}}
    changes["evaluation.envs"] = []
    (record,) = trained(tmp_path, **changes)
    assert record["train/episodes"] == 6 and record["train/steps"] == 18
    assert record["oracle/episodes"] == 3 * record["oracle/states"] and record["oracle/failed"] == 0
    assert 2 < record["oracle/states"] <= 14, "six episodes of three steps, of two tasks"
    assert record["oracle/tokens"] > record["train/tokens_total"] > 0
    (line,) = (one for one in read_metrics(tmp_path / "runs/tiny/metrics.jsonl") if "idle/engine" in one)
    assert 0.0 <= line["idle/engine"] <= 1.0, "of the iteration, which has both phases"
    name, program = "both", (*BOTH, "-m", "trainers.train")
    run = train("--config", str(write_settings(tmp_path, **changes, name=name)), program=program, timeout=300)
    assert run.returncode == 0, run.stderr
    (shared,) = without_times(tmp_path / "runs/both")
    for name in ("oracle/states", "oracle/episodes", "oracle/tokens", "diag/value_mean", "train/loss"):
        assert shared[name] == pytest.approx(record[name], rel=1e-4, abs=1e-6), name


# -- Rollouts whose episodes branch from each other


class Phases:
    """Plays each phase to its end."""

    def phase(self, name: str, total: int, part: Any) -> Any:
        return part(None)


def _informative(episodes: Sequence[Episode], iteration: int) -> int:
    raise AssertionError("no group is replaced")


def _steps(rolled: IterationRollout) -> StepTable:
    return unshaped_steps(rolled.episodes, 1)


def _grown(tree: TreeConfig, workers: int = 0, seed: int = 0, **method: Any) -> tuple[IterationRollout, int]:
    """An iteration of two tasks, and the number of tokens that the engine wrote."""
    settings = checked(MethodConfig, {"estimator": "tree_grpo", **method}, "method")
    config = TrainConfig(seed=seed, envs=[EnvConfig("walk_world:Walk-v0")], method=settings,
                         rollout=RolloutConfig(tasks=2, tree=tree))  # fmt: skip
    accelerator = Accelerator(cpu=True)
    written: Counter[str] = Counter()
    with (playing := manager("window(1)", workers, written)).vector:
        common = (config, accelerator, TaskSampler([TaskPool(("one", "two"), 1.0)], 0), _informative, Counters())
        rollouts = SynchronousRollouts(*common, Phases(), playing, Sampling(), lambda: None)  # type: ignore[arg-type]
        return rollouts(1), written["tokens"]


def _paths(episodes: list[Episode]) -> list[list[tuple[str, float]]]:
    return [[(TOKENIZER.decode(s.response_ids), s.reward) for s in e.steps] for e in episodes]


@pytest.mark.parametrize("tree", [TreeConfig(), TreeConfig(3, 2, 3, 4), TreeConfig(1, 3, 1), TreeConfig(2, 1, 2, 1)])
def test_leaves_share_their_first_steps_and_every_token_is_counted_once(tree):
    for seed in range(4):
        rolled, written = _grown(tree, seed=seed)
        episodes = list(rolled.episodes)
        assert Counter(e.group_id for e in episodes) == {0: tree.kept_episodes, 1: tree.kept_episodes}
        assert len({e.episode_id for e in episodes}) == len(episodes)
        assert set(Counter((e.group_id, e.tree) for e in episodes).values()) == {tree.kept_episodes // tree.trees}
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


def test_some_branches_do_share_and_all_keep_at_least_the_first_step():
    rolled, _ = _grown(TreeConfig(2, 2, 4))
    branches = [e for e in rolled.episodes if e.episode_id != e.tree]
    assert branches and all(e.shared >= 1 for e in branches)
    assert len({e.shared for e in branches}) > 1, "steps are drawn from the whole tree"


def test_workers_play_the_same_trees_and_another_seed_others():
    tree = TreeConfig(2, 2, 2, 3)
    here, there, other = (_grown(tree, workers, seed)[0] for workers, seed in ((0, 0), (2, 0), (0, 1)))
    assert list(here.episodes) == list(there.episodes)
    assert _paths(list(here.episodes)) != _paths(list(other.episodes))


def test_the_oracle_measures_the_states_of_a_tree_once():
    oracle = {"estimator": "oracle_mc", "options": {"continuations": 2}}
    rolled, _ = _grown(TreeConfig(2, 2, 2), **oracle)
    shared = sum(episode.shared for episode in rolled.episodes)
    steps = _steps(rolled)
    assert shared > 0 and rolled.metrics["oracle/states"] <= len(steps) - shared
    crediting = Crediting(Method.of(checked(MethodConfig, oracle, "method")), Accelerator(cpu=True))
    assert "mc_value" in crediting(rolled.episodes, 1, rolled.continued).table.extra


def test_a_file_of_episodes_keeps_their_trees(tmp_path):
    rolled, _ = _grown(TreeConfig())
    write_episodes(tmp_path / "iteration-00001.parquet", rolled.episodes)
    assert read_episodes(tmp_path / "iteration-00001.parquet") == list(rolled.episodes)


@pytest.mark.slow
def test_a_run_trains_on_trees_and_counts_shared_tokens_once(tmp_path):
    save_model(tmp_path / "model")
    one, two = trained(tmp_path, recipe="tree_grpo", iterations=2, **{"evaluation.envs": []})
    assert one["train/episodes"] == 12 and one["diag/tree/size_mean"] == 3.0
    assert one["train/sampled_tokens"] < one["train/response_length"] * one["train/episode_length"] * 12
    assert two["train/tokens_total"] == one["train/sampled_tokens"] + two["train/sampled_tokens"]
    episodes = read_episodes(tmp_path / "runs/tiny/episodes/iteration-00001.parquet")
    assert one["train/sampled_tokens"] == sum(len(s.response_ids) for e in episodes for s in e.steps[e.shared :])
    assert replace(episodes[0], shared=0).tree == episodes[0].episode_id
