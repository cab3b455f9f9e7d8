"""A run trains one policy for both agents of a team, on one process or several.

Runs that train a mixture of experts.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from small_papers import save_taught
from tiny_runs import BOTH, save_model, train, trained, without_times, write_settings
from tokenizers import AddedToken

from envsuite.papersearch.team import SEARCHER, SELECTOR
from envsuite.playing.step import Episode
from envsuite.retrieval.corpus_build import build
from envsuite.retrieval.documents import Document, InMemory
from trainers.credit.estimators import ESTIMATORS
from trainers.credit.recipes import recipe
from trainers.credit.rows import unshaped_steps
from trainers.imitation.vocabulary import word_tokenizer
from trainers.policy.config import ModelConfig
from trainers.report.methods import step_means
from trainers.rollout.config import RolloutConfig
from trainers.run.config import TrainConfig
from trainers.settings import ConfigError, checked
from trainers.steps.columns import AGENT
from trainers.steps.parquet import read_episodes

PAPERS = (
    Document("g1", "walking robots", "robots walk", 20100101),
    Document("g2", "legged machines", "on legs", 20120101, links=("g1",)),
    Document("x1", "sitting dogs", "dogs sit while others are walking", 20080101, links=("g1",)),
)
CALLS = (
    '{"name": "search", "arguments": {"query": "walking robots"}}',
    '{"name": "search", "arguments": {"query": "sitting"}}',
    '{"name": "expand", "arguments": {"paper_id": "g1"}}',
    '{"name": "keep", "arguments": {"paper_ids": ["g1"]}}',
    '{"name": "keep", "arguments": {"paper_ids": ["x1"]}}',
)
OWN = ("train/computed_tokens", "train/idle_rows", "train/live_tokens", "train/logprob_gap")
"""Metrics of how the work is laid out, which differs with the number of processes."""
ANSWERS = [f"<action>{call}</action>" for call in CALLS]


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus, and a tiny model whose every answer is a call of one of the agents, in one token."""
    folder = tmp_path_factory.mktemp("team")
    tasks = [
        {"id": f"{split}-{key}", "text": "walking robots", "gold": [key], "date": 0, "kind": "x", "split": split}
        for split in ("train", "validation", "test")
        for key in ("g1", "x1")
    ]
    build(InMemory("team", PAPERS, tasks), folder / "team.corpus")
    tokenizer = word_tokenizer([paper.title for paper in PAPERS], 512)
    tokenizer.add_tokens([AddedToken(answer, special=False, normalized=False) for answer in ANSWERS])
    save_taught(folder / "model", ANSWERS, tokenizer)
    return folder


def _trained(team: Path, folder: Path, name: str, program: tuple[str, ...]) -> Path:
    folder.mkdir()
    env: dict[str, Any] = {"id": "PaperSearchTeam-v0", "kwargs": {"source": str(team / "team.corpus")}}
    changes: dict[str, Any] = {"recipe": name, "iterations": 2, "checkpoint_every": 1, "optim.lr": 1e-3}
    changes |= {"rollout.group_size": 8, "envs": [{**env, "max_episode_steps": 6}], "model.path": str(team / "model")}
    changes |= {"evaluation.envs": [{**env, "max_episode_steps": 6, "split": "test"}], "evaluation.episodes": 2}
    train("--config", str(write_settings(folder, **changes)), program=program, status=0)
    return folder / "runs" / "tiny"


def _flat(file: Path) -> torch.Tensor:
    return torch.cat([weight.flatten() for _, weight in sorted(load_file(file).items())])


def _steps(episode: Episode) -> list[tuple[Any, ...]]:
    return [(step.agent, step.response_ids.tolist(), step.reward, step.info["rewards"]) for step in episode.steps]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gigpo", "graphgpo", "steppo"])
def test_a_team_is_trained_and_the_number_of_processes_changes_no_number(name, team, tmp_path):
    alone = _trained(team, tmp_path / "one", name, (sys.executable, "-m", "trainers.train"))
    records = without_times(alone)
    assert [record["iteration"] for record in records] == [0, 1, 2, 2]
    for record in records[1:3]:
        assert record["train/failed"] == 0 and record["train/grad_norm"] > 0
        inert = [key for key, value in record.items() if key.startswith("term/") and "/touched" in key and value == 0]
        assert not inert, inert
    episodes = read_episodes(alone / "episodes" / "iteration-00001.parquet")
    assert {step.agent for episode in episodes for step in episode.steps} == {SEARCHER, SELECTOR}
    if name != "steppo":  # whose critic is not there any more
        method = recipe(name).method
        table = unshaped_steps(episodes, 1)
        advantages = step_means(table, checked(ESTIMATORS[method["estimator"]], method["options"], "option")(table))
        own = [advantages[table.extra[AGENT] == agent] for agent in (SEARCHER, SELECTOR)]
        assert all(np.ptp(some) > 0 for some in own), "each agent's own steps differ in their credit"

    both = _trained(team, tmp_path / "two", name, (*BOTH, "-m", "trainers.train"))
    assert (both / "run.rank1.log").is_file()
    together = read_episodes(both / "episodes" / "iteration-00001.parquet")
    assert [*map(_steps, together)] == [*map(_steps, episodes)]
    others = without_times(both)
    assert others[1].keys() == records[1].keys()
    for key, value in records[1].items():
        if key.startswith(("term/", "train/", "diag/")) and key not in OWN:
            assert others[1][key] == pytest.approx(value, rel=1e-4, abs=1e-6), key
    files = team / "model", *(run / "checkpoints" / "iteration-00001" for run in (alone, both))
    before, one, two = (_flat(file / "model.safetensors") for file in files)
    assert (two - one).norm() < 1e-3 * (one - before).norm(), "but for rounding, the update is the same"


SHORT = {"iterations": 2, "evaluation.every": 0, "optim.minibatches": 1}
BF16 = {**SHORT, "model.compute_dtype": "bfloat16"}


def _lines(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [record for record in records if "train/loss" in record]


def _second(folder: Path, **changes: Any) -> list[dict[str, Any]]:
    """The metrics of a run in a process of its own that follows the engine, and leaves the first one's folder alone."""
    train("--config", str(write_settings(folder, **{"name": "second", "model.routing": "replay", **changes})), status=0)
    return list(without_times(folder / "runs" / "second"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_model(tmp_path / "model", "qwen3_moe")
    return tmp_path


@pytest.mark.seconds
def test_in_float32_following_the_engine_changes_nothing(folder):
    changes: dict[str, Any] = {**SHORT, "model.gradient_checkpointing": True}
    own = trained(folder, **changes)
    assert _second(folder, **changes) == own
    assert all(line["train/rerouted_tokens"] == line["train/rerouted_choices"] == 0.0 for line in _lines(own))


@pytest.mark.seconds
def test_in_bfloat16_some_tokens_go_elsewhere(folder):
    own, replayed = _lines(trained(folder, **BF16))[0], _lines(_second(folder, **BF16))[0]
    assert 0.0 < own["train/rerouted_choices"] < own["train/rerouted_tokens"] < 0.5
    assert replayed["train/rerouted_tokens"] > 0.0 and replayed["train/loss"] != own["train/loss"]


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"rollout.staleness": 1}])
def test_two_processes_tell_experts_too(folder, changes):
    settings = write_settings(folder, **BF16, **changes, **{"model.routing": "replay", "model.balance_coef": 0.01})
    train("--config", str(settings), program=(*BOTH, "-m", "trainers.train"), status=0)
    for line in _lines(without_times(folder / "runs" / "tiny")):
        assert 0.0 < line["train/rerouted_tokens"] < 1.0, "also those that older weights sent elsewhere"
        assert 0.01 < line["train/balance_loss"] < 0.1


def test_engines_that_tell_no_experts_are_refused():
    with pytest.raises(ConfigError, match=r"model\.routing is replay, .* but rollout\.engine is vllm"):
        TrainConfig(model=ModelConfig(routing="replay"), rollout=RolloutConfig(engine="vllm"))
