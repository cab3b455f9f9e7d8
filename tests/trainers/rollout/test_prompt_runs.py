"""Runs with a prompt file, which go on with the same text only, and with episodes that outgrow the context."""

from __future__ import annotations

import pytest
from tiny_runs import tokenizer, write_settings

from trainers.report.metrics import read_metrics
from trainers.rollout.config import PromptConfig
from trainers.run.origin import differing, origin_of
from trainers.steps import StepTable
from trainers.steps.parquet import read_episodes
from trainers.train import main


@pytest.mark.slow
def test_a_run_keeps_its_prompt_file_and_resumes_with_the_same_text_only(place, capfd):
    file = place / "mine.jinja"
    file.write_text("{{ current_step }} {{ observation }}\n")
    changes = {"prompt.template": str(file), "prompt.memory": "summary(1)", "evaluation.envs": [], "iterations": 1}
    config = str(write_settings(place, **changes))
    assert main(["--config", config]) == 0
    run = place / "runs" / "tiny"
    assert (run / "prompt.jinja").read_text() == file.read_text()
    for episode in read_episodes(run / "episodes" / "iteration-00001.parquet"):
        for number, step in enumerate(episode.steps, 1):
            assert tokenizer().decode(step.prompt_ids.tolist()).startswith(f"<|user|> {number} ")
    file.write_text("{{ observation }}\n")
    capfd.readouterr()
    assert main(["--config", config, "--resume"]) == 1
    said = capfd.readouterr().err
    assert "was written with prompt.template = 'a file with SHA-256 " in said and "set it back" in said
    kept = place / "elsewhere.jinja"
    kept.write_bytes((run / "prompt.jinja").read_bytes())
    assert main(["--config", config, "--resume", "--iterations", "2", "--prompt.template", str(kept)]) == 0
    capfd.readouterr()
    origin = origin_of(str(run / "checkpoints" / "iteration-00002"))
    assert origin is not None
    assert differing(origin, PromptConfig(**{**origin.prompt, "template": str(kept)})) is None
    assert "prompt.template was 'a file with SHA-256 " in str(differing(origin, PromptConfig(template=str(file))))
    more = ["--resume", "--prompt.template", "null"]
    assert main(["--config", config, *more]) == 1
    assert "this run has None" in capfd.readouterr().err


def test_episodes_that_outgrow_the_context_are_trained_on_and_counted(place):
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
