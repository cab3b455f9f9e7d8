"""Every run of the papers' tables trains: two iterations with a tiny model on built-in tasks."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from small_papers import ANSWERS, arguments, save_model

from benchmarks.papers.plans import config_of
from trainers.papers.index import PaperRun, published_rows
from trainers.report.metrics import read_metrics
from trainers.run.cli import parse
from trainers.train import main


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny model for each environment."""
    return {env: save_model(tmp_path_factory.mktemp("models") / env, actions) for env, actions in ANSWERS.items()}


@pytest.mark.slow
@pytest.mark.parametrize("run", published_rows(), ids=lambda run: run.name)
def test_a_published_setting_runs(run: PaperRun, models: dict[str, Path], tmp_path: Path) -> None:
    published = config_of(run)
    words = arguments(run, models[published.envs[0].id], tmp_path)
    small = parse(words).config
    assert small.method.estimator == published.method.estimator and small.method.options == published.method.options
    assert small.method.objective == published.method.objective and small.method.filters == published.method.filters
    assert list(small.method.shapers) == list(published.method.shapers) and small.optim.lr == published.optim.lr
    assert main(words) == 0
    records = read_metrics(tmp_path / published.name / "metrics.jsonl")
    trained = [record for record in records if "train/success" in record]
    assert [record["iteration"] for record in trained] == [1, 2]
    episodes = small.rollout.tasks * small.rollout.group_size
    assert all(record["train/episodes"] == episodes and record["train/failed"] == 0 for record in trained)
    for record in trained:
        assert all(math.isfinite(value) for value in record.values() if isinstance(value, float))
    assert sum(record["train/valid_actions"] for record in trained) > 0.0, "the tiny model acts"
    assert any("eval/success" in record for record in records)
    assert (tmp_path / published.name / "checkpoints/iteration-00002/manifest.json").is_file()
