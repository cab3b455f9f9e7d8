"""Runs on images: a tiny vision-language model plays and is trained; and settings under which it could not be."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_runs
import vision_models
from safetensors.numpy import load_file

from envsuite.core.errors import DataError
from envsuite.prompting.images import images_of
from trainers.policy.config import ModelConfig
from trainers.policy.loading import load_tokenizer
from trainers.report.metrics import read_metrics
from trainers.rollout.limits import check_images
from trainers.run.cli import parse
from trainers.settings import ConfigError
from trainers.steps.parquet import read_episodes

ENV: dict[str, Any] = {"id": "Sokoban-v0", "kwargs": {"observation": "image"}, "max_episode_steps": 3}


def settings(folder: Path, **changes: Any) -> Path:
    """A run of two iterations on images."""
    return tiny_runs.write_settings(folder, **{
        "iterations": 2,
        "envs": [ENV],
        "evaluation.envs": [{**ENV, "split": "test"}],
        "prompt": {"codec": "brackets", "think": False, "instructions": False, "memory": "window(2)"},
        "method": {"filters": [], "objective": {"entropy_coef": 0.05}},
        "optim.tokens_per_microbatch": 700,
        **changes,
    })  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "images"), [("smolvlm", "auto"), ("qwen3_vl", "train-projector"), ("qwen3_5", "frozen")]
)
def test_two_iterations_on_images_train_the_text_and_leave_the_tower(tmp_path, name, images):
    vision_models.save(name, tmp_path / "model")
    tiny_runs.train("--config", str(settings(tmp_path)), "--model.images", images, status=0)
    run = tmp_path / "runs/tiny"
    records = [record for record in read_metrics(run / "metrics.jsonl") if "train/logprob_gap" in record]
    assert len(records) == 2 and all(record["train/logprob_gap"] < 1e-5 for record in records), "engine and trainer"
    before, after = (load_file(next(folder.glob("model*.safetensors"))) for folder in (
        tmp_path / "model", max((run / "checkpoints").glob("iteration-*"))))  # fmt: skip
    moved = {name for name in before if not np.array_equal(before[name], after[name])}
    parts = {part for part in ("vision_model", "blocks", "connector", "merger") if any(part in name for name in moved)}
    assert parts == ({"merger"} if images == "train-projector" else set())
    assert any("embed_tokens" in name for name in moved) and any("lm_head" in name for name in moved)
    steps = [step for episode in read_episodes(run / "episodes/iteration-00002.parquet") for step in episode.steps]
    assert [step.shown for step in steps] == [1] * len(steps) and {len(step.images) for step in steps} == {1, 2, 3}
    assert all(images_of(step.prompt_ids).max() == len(step.images) - 1 for step in steps)
    checkpoint = max((run / "checkpoints").glob("iteration-*"))
    tiny_runs.train(
        "--config", str(tmp_path / "config.yaml"), "--model.path", str(checkpoint), "--name", "again",
        "--iterations", "1", "--model.adapter", "{rank: 4}", "--prompt.memory", "full", status=0,
    )  # fmt: skip
    assert (checkpoint / "processor_config.json").is_file(), "a checkpoint is a model for the next run"
    assert (tmp_path / "runs/again/checkpoints/iteration-00001/adapter_model.safetensors").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["head", "model"])
def test_a_critic_learns_from_steps_with_images(tmp_path, kind):
    vision_models.save("smolvlm", tmp_path / "model")
    method = {"critic": {"kind": kind}, "filters": [], "objective": {"kl": "none"}}
    file = settings(tmp_path, **{"iterations": 1, "evaluation.every": 0, "method": method})
    tiny_runs.train("--config", str(file), "--recipe", "ppo", status=0)
    (record,) = [one for one in read_metrics(tmp_path / "runs/tiny/metrics.jsonl") if "train/grad_norm" in one]
    assert record["train/grad_norm"] > 0.0


@pytest.mark.slow
@pytest.mark.parametrize(("name", "images"), [("smolvlm", "auto"), ("qwen3_vl", "train-projector")])
def test_two_processes_compute_what_one_does_and_a_resumed_run_what_a_whole_one_does(tmp_path, name, images):
    vision_models.save(name, tmp_path / "model")
    runs = {"one": ("1", ()), "two": ("2", ()), "cut": ("1", ("--iterations", "1")), "cut on": ("1", ("--resume",))}
    for label, (processes, more) in runs.items():
        config = str(settings(tmp_path, checkpoint_every=1, name=label.split()[0]))
        launch = (sys.executable, "-m", "accelerate.commands.launch", "--config_file")
        program = (*launch, f"configs/accelerate/cpu{processes}.yaml", "-m", "trainers.train")
        more = (*more, "--model.images", images)
        tiny_runs.train("--config", config, *more, program=program, status=0)
    one, two, cut = (
        load_file(tmp_path / f"runs/{run}/checkpoints/iteration-00002/model.safetensors")
        for run in ("one", "two", "cut")
    )
    apart = {key: np.abs(one[key] - two[key]) for key in one}
    # AdamW moves a weight whose gradient is rounding alone by up to the learning rate: a few rows of the output layer.
    assert max(each.max() for each in apart.values()) < 5e-4 and max(each.mean() for each in apart.values()) < 1e-6
    assert all(np.array_equal(one[key], cut[key]) for key in one)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"rollout.engine": "vllm", "rollout.engine_options": {"urls": ["http://127.0.0.1:9"]}},
            "shows images, but rollout.engine is 'vllm', which takes none",
        ),
        ({"prompt.truncate": "left", "prompt.max_tokens": 200}, "shows images, but prompt.truncate is left"),
        ({"method.replay": {"size": 8}}, "shows images, but method.replay keeps steps without them"),
    ],
)
def test_settings_under_which_images_would_not_reach_the_model_are_refused(tmp_path, changes, told):
    vision_models.save("smolvlm", tmp_path / "model")
    with pytest.raises(ConfigError, match=re.escape(told)):
        refused(settings(tmp_path, **changes))


def refused(path: Path) -> None:
    """Checks the settings of a file as a run does, before it loads anything."""
    config = parse(["--config", str(path)]).config
    check_images(
        {"envs[0]": config.envs[0]}, config.model, config.prompt, config.rollout, config.method.replay is not None
    )


def test_a_text_model_is_refused_where_the_environment_shows_images(tmp_path):
    tiny_runs.save_model(tmp_path / "model")
    with pytest.raises(ConfigError, match=r"envs\[0\] \(Sokoban-v0\) shows images.*takes none; take a model such as"):
        refused(settings(tmp_path))


def test_a_folder_without_a_processor_is_refused(tmp_path):
    vision_models.save("smolvlm", tmp_path)
    (tmp_path / "processor_config.json").unlink()
    with pytest.raises(DataError, match="cannot be loaded"):
        load_tokenizer(ModelConfig(path=str(tmp_path)))
