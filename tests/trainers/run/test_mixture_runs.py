"""Runs that train a mixture of experts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny_runs import BOTH, save_model, train, trained, without_times, write_settings

from trainers.policy.config import ModelConfig
from trainers.rollout.config import RolloutConfig
from trainers.run.config import TrainConfig
from trainers.settings import ConfigError

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
