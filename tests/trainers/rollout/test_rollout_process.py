"""The process that plays beside the update: what it samples with, and what stops it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hanging_world import TASKS
from policies import logprobs
from tiny_runs import write_settings
from transformers import AutoModelForCausalLM

from trainers.report.metrics import read_metrics
from trainers.run.asynchronous import process
from trainers.run.asynchronous.weights import SharedWeights
from trainers.steps.parquet import episode_files, read_episodes
from trainers.train import main

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("overlap", ["turns", "process"])
def test_each_token_has_the_log_probability_of_the_weights_of_its_version(place: Path, overlap: str) -> None:
    settings = {"rollout.staleness": 2, "rollout.overlap": overlap, "optim.minibatches": 1, "evaluation.every": 0}
    config = write_settings(place, iterations=5, checkpoint_every=1, keep_checkpoints=9, **settings)
    assert main(["--config", str(config)]) == 0
    run = place / "runs/tiny"
    folders = [place / "model", *sorted((run / "checkpoints").glob("iteration-*"))]
    models = [AutoModelForCausalLM.from_pretrained(folder).eval() for folder in folders]
    seen = set()
    for file in episode_files(run / "episodes", "iteration-*"):
        for step in [step for episode in read_episodes(file) for step in episode.steps]:
            for version in set(step.policy_version.tolist()):
                of_it = step.policy_version == version
                own = logprobs(models[version], step.prompt_ids.tolist(), step.response_ids.tolist())
                np.testing.assert_allclose(step.response_logprobs[of_it], own[of_it], atol=1e-4)
                seen.add(version)
    assert len(seen) >= 3, "weights arrived while episodes were played"


@pytest.mark.parametrize("changed, said", [({"version": 99}, "are stale"), ({"checksum": 0}, "are torn")])
def test_weights_that_do_not_arrive_as_they_were_sent_stop_the_run(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], changed: dict[str, int], said: str
) -> None:
    class Changed(SharedWeights):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            if self.note.version >= 4:
                self.note = replace(self.note, **changed)

    monkeypatch.setattr(process, "SharedWeights", Changed)
    config = write_settings(place, **{"rollout.staleness": 1, "rollout.overlap": "process", "evaluation.every": 0})
    assert main(["--config", str(config)]) == 1
    message = capsys.readouterr().err
    assert said in message and "--resume" in message and "Traceback" not in message
    monkeypatch.undo()
    assert main(["--config", str(config), "--resume"]) == 0


def test_a_call_that_no_signal_ends_costs_the_process_and_in_the_end_the_run(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"rollout.staleness": 1, "rollout.overlap": "process", "rollout.deadline": 1.0, "rollout.slots": 1}
    config = write_settings(
        place, iterations=1, recipe="grpo", envs=[{"id": "hanging_world:Deaf-v0"}], **settings,
        **{"rollout.tasks": 8, "rollout.group_size": 2, "evaluation.envs": [], "evaluation.episodes": None},
    )  # fmt: skip
    assert main(["--config", str(config)]) == 1
    error = next(line for line in capsys.readouterr().err.splitlines() if line.startswith("error: "))
    assert "rollout.deadline has passed" in error and "6 times without an episode in between" in error


def test_an_environment_that_hangs_in_the_rollout_process_fails_its_own_episodes(place: Path) -> None:
    """Without workers an alarm ends its call, again and again, until the episode is given up."""
    settings = {"rollout.staleness": 1, "rollout.overlap": "process", "rollout.deadline": 1.0, "rollout.slots": 2}
    envs = [{"id": "hanging_world:Hanging-v0"}]
    config = write_settings(
        place, iterations=2, recipe="grpo", envs=envs, **settings,
        **{"rollout.tasks": 4, "rollout.group_size": 2, "evaluation.envs": [], "evaluation.episodes": None},
    )  # fmt: skip
    assert main(["--config", str(config)]) == 0
    run = place / "runs/tiny"
    played = [e for file in episode_files(run / "episodes", "iteration-*") for e in read_episodes(file)]
    assert {episode.task_id for episode in played} == set(TASKS) and len(played) == 16
    failed = [episode for episode in played if episode.error is not None]
    assert {episode.task_id for episode in failed} == {TASKS[0]}
    assert all("DeadlineExceeded: reset of slot" in str(episode.error) for episode in failed)
    lines = read_metrics(run / "metrics.jsonl")
    assert sum(line["train/failed"] for line in lines) == len(failed) and not sum(
        line["async/restarts"] for line in lines
    )
