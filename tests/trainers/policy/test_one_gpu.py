"""docs/one-gpu.md: its commands, and the settings that it trains with."""

from __future__ import annotations

import json
import math
import shlex
import warnings

import pytest
from small_papers import ANSWERS, WORLDS, save_model

from docs.build import FENCE, ROOT
from envsuite.cli import available, find
from trainers.planning.hardware import machines
from trainers.planning.plan import RunPlanner
from trainers.planning.program import PLAN, check, shape_of
from trainers.report.metrics import read_metrics
from trainers.run.cli import dump, parse
from trainers.train import main

PAGE = ROOT / "docs" / "one-gpu.md"
CONFIG = "configs/one-gpu.yaml"
PAPER = "papers/gigpo/quoted-alfworld-qwen2.5-1.5b-gigpo-std"


def commands(name: str) -> list[list[str]]:
    """The words after each ``envsuite name`` in the page's shell blocks."""
    blocks = [body for language, body in FENCE.findall(PAGE.read_text("utf-8")) if language == "bash"]
    lines = [shlex.split(line, comments=True) for body in blocks for line in body.replace("\\\n", " ").splitlines()]
    typed = [words for words in lines if words and words[0].endswith("envsuite")]
    return [rest for words in typed for found, _, rest in [find(words[1:], available())] if found == name]


def test_the_settings_are_the_papers_but_for_where_they_are_computed_and_what_is_kept():
    ours, papers = (dump(parse(["--config", name], PLAN).config).splitlines() for name in (CONFIG, PAPER))
    differing = {line.split(":")[0].strip() for line in set(ours) ^ set(papers)}
    assert differing == {"name", "output", "shard", "checkpoint_every", "keep_checkpoints", "episodes_every"}


def test_the_smoke_run_of_the_page_trains_with_a_tiny_model_on_built_in_games(tmp_path):
    (words,) = (words for words in commands("train") if "--iterations" in words)
    house = [{"id": "ALFWorld-v0", "kwargs": WORLDS["ALFWorld-v0"], "max_episode_steps": 2}]
    small = {
        "model.path": str(save_model(tmp_path / "model", ANSWERS["ALFWorld-v0"])), "output": str(tmp_path),
        "envs": house, "evaluation.envs": [{**house[0], "split": "valid_seen"}], "evaluation.episodes": 1,
        "prompt.max_tokens": 160, "rollout.sampling.max_tokens": 16, "evaluation.sampling.max_tokens": 16,
        "report": False,
    }  # fmt: skip
    for name, value in small.items():
        words += [f"--{name}", value if isinstance(value, str) else json.dumps(value)]
    assert main(words) == 0
    records = [line for line in read_metrics(tmp_path / "smoke/metrics.jsonl") if "train/success" in line]
    assert [line["iteration"] for line in records] == [1, 2]
    assert all(math.isfinite(line["train/loss"]) and line["train/failed"] == 0 for line in records)
    assert (tmp_path / "smoke/checkpoints/iteration-00002/manifest.json").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("words", commands("plan"), ids=" ".join)
def test_what_the_page_plans_fits_the_gpu_that_it_names(words):
    warnings.simplefilter("ignore")  # of passes on fake tensors
    command = parse(words, PLAN)
    shape, where = shape_of("", command.options["model-shape"]), machines(command.options["gpus"])
    check(command.config, shape, where, "the page's model")
    means = [int(command.options[name]) for name in ("steps", "prompt-tokens", "response-tokens")]
    plan = RunPlanner(shape, where, *means).plan(command.config)
    assert plan.fits, plan.peaks
