"""A run whose episodes outgrow the context: they are trained on, and counted."""

from __future__ import annotations

from pathlib import Path

from tiny_runs import write_settings

from trainers.report.metrics import read_metrics
from trainers.steps import StepTable
from trainers.steps.parquet import read_episodes
from trainers.train import main


def test_episodes_that_outgrow_the_context_are_trained_on_and_counted(place: Path) -> None:
    changes = {"rollout.engine_options": {"max_length": 85}, "evaluation.every": 0, "iterations": 1}
    assert main(["--config", str(write_settings(place, **changes))]) == 0
    before, trained, after = read_metrics(place / "runs/tiny/metrics.jsonl")
    episodes = read_episodes(place / "runs/tiny/episodes/iteration-00001.parquet")
    cut = [episode for episode in episodes if episode.context_truncated]
    assert 0 < len(cut) and all(episode.truncated and episode.steps and episode.error is None for episode in cut)
    assert all(len(step.prompt_ids) + len(step.response_ids) <= 85 for episode in episodes for step in episode.steps)
    sound = [episode for episode in episodes if episode.error is None]
    assert trained["train/failed"] == len(episodes) - len(sound)
    assert trained["train/context_truncated"] == len(cut) / len(sound)
    assert trained["train/horizon"] == sum(e.truncated and not e.context_truncated for e in sound) / len(sound)
    table = StepTable.from_episodes(episodes)
    assert trained["train/steps"] == len(table) and {e.episode_id for e in cut} <= set(table.episode_id.tolist())
    assert set(table.policy_version.values.tolist()) == {0} and trained["train/staleness"] == 0.0
    for record in (before, after):
        played = read_episodes(place / f"runs/tiny/episodes/eval-{record['iteration']:05d}.parquet")
        assert record["eval/context_truncated"] == sum(episode.context_truncated for episode in played)
        assert (record["eval/episodes"], record["eval/tasks"]) == (4, 4)
    assert set(StepTable.from_episodes(played).policy_version.values.tolist()) == {trained["train/optimizer_steps"]}
