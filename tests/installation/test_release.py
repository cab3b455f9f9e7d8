"""What a release says of itself agrees, and the skill for coding agents is true."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import envsuite
from docs.build import FENCE
from trainers.rollout.config import PromptConfig
from trainers.rollout.environments import prompt_file_of
from trainers.settings import ConfigError
from trainers.settings.shipped import located, shipped_configs
from trainers.settings.words import read_file

ROOT = Path(__file__).resolve().parents[2]
SKILL = (ROOT / "docs/skill/SKILL.md").read_text("utf-8")


def test_one_version_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert project["version"] == envsuite.__version__ == citation["version"]
    assert project["license"] == citation["license"]
    assert citation["authors"] and citation["title"] and citation["message"] and citation["cff-version"] == "1.2.0"


def test_a_file_of_this_folder_is_taken_before_the_shipped_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert located("configs/quickstart.yaml") == ROOT / "configs/quickstart.yaml"
    assert located("models/craft-1m") == ROOT / "trainers/models/craft-1m"
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/quickstart.yaml").write_text("name: mine\n")
    assert read_file("configs/quickstart.yaml") == {"name": "mine"}
    assert read_file("configs/craft-1m.yaml")["output"] == "models/craft-1m"


def test_every_shipped_configuration_is_read_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    configs = shipped_configs()
    assert {"configs/quickstart.yaml", "configs/accelerate/cpu1.yaml"} <= configs.keys()
    for name in configs:
        settings = read_file(name)
        template = settings.get("prompt", {}).get("template")
        assert template is None or prompt_file_of(PromptConfig(template=template, memory="window(2)"))


def test_only_names_that_are_shipped_are_looked_for_there_and_others_answered_with_the_nearest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("other/quickstart.yaml", "configs/../pyproject.toml", "quickstart", "", "configs/no"):
        assert located(name) == Path(name)
    with pytest.raises(ConfigError, match=r"Nearest .* configs/quickstart\.yaml.*--list-configs"):
        read_file("configs/quickstrat.yaml")


def skill_commands() -> list[list[str]]:
    bodies = [body for language, body in FENCE.findall(SKILL) if language == "bash"]
    return [shlex.split(line, comments=True) for body in bodies for line in body.splitlines() if line]


def test_the_skill_has_the_front_matter_that_agents_read() -> None:
    _, front, body = SKILL.split("---\n", 2)
    assert yaml.safe_load(front).keys() == {"name", "description"} and len(yaml.safe_load(front)["description"]) < 1024
    assert body.strip()
    for path in ("docs/architecture.md", "examples/one_file.py", "CONTRIBUTING.md", "docs/environments/"):
        assert f"`{path}`" in body and (ROOT / path).exists()


def test_the_python_of_the_skill_runs(tmp_path: Path) -> None:
    (code,) = [body for language, body in FENCE.findall(SKILL) if language == "python"]
    run = subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (0, "Got 2 acacia logs True None\n"), run.stderr


@pytest.mark.slow
@pytest.mark.parametrize("command", skill_commands(), ids=" ".join)
def test_the_commands_of_the_skill_run_from_any_folder(tmp_path: Path, command: list[str]) -> None:
    programs = {"envsuite": [sys.executable, "-m", "envsuite.cli"], "python": [sys.executable]}
    run = subprocess.run(
        [*programs[command[0]], *command[1:]],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0 and run.stdout, run.stderr
