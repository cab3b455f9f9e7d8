"""What a release says of itself agrees, and the skill for coding agents is true."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import envsuite
from docs.build import FENCE, LINK, pages
from trainers.rollout.config import PromptConfig
from trainers.rollout.environments import prompt_file_of
from trainers.settings import ConfigError
from trainers.settings.shipped import located, shipped_configs
from trainers.settings.words import read_file

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
SKILL = (ROOT / "docs/skill/SKILL.md").read_text("utf-8")


def test_one_version_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    images = re.findall(r"\benvsuite(?:-trainer)?:(\d[\w.]*)", "".join(page.read_text("utf-8") for page in pages()))
    assert PROJECT["dynamic"] == ["version"] and len(images) > 1
    assert {envsuite.__version__} == {citation["version"], *images}
    assert PROJECT["license"] == citation["license"] and PROJECT["urls"]["Repository"] == citation["repository-code"]
    assert citation["authors"] and citation["title"] and citation["message"] and citation["cff-version"] == "1.2.0"


def test_one_command_writes_the_address_into_every_file_that_has_it(tmp_path):
    old, new = PROJECT["urls"]["Repository"], "https://example.org/us/envsuite"
    found = subprocess.run(["git", "grep", "-lIF", old], cwd=ROOT, capture_output=True, text=True, check=True)
    names = found.stdout.split()
    assert {"CITATION.cff", "README.md", "pyproject.toml"} <= {*names}
    for name in (*names, "tools/address.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    subprocess.run("git init -q && git add .", shell=True, cwd=tmp_path, check=True)
    subprocess.run([sys.executable, "tools/address.py", f"{new}/", "v9"], cwd=tmp_path, check=True)
    texts = {name: (tmp_path / name).read_text("utf-8") for name in names}
    assert not [name for name, text in texts.items() if old in text or new not in text]
    links = LINK.findall(texts["README.md"])  # an index of packages shows README, and has no other file
    assert not [link for link in links if not link.startswith(("https://", "#"))]
    assert {f"{new}/raw/v9/docs/images/quickstart.png", f"{new}/blob/v9/docs/first-hour.md"} <= {*links}
    assert not [page for page in pages() if "<address" in page.read_text("utf-8")]


def test_workflows_run_targets_of_the_makefile():
    text = "".join(path.read_text("utf-8") for path in (ROOT / ".github/workflows").iterdir())
    targets = set(" ".join(re.findall(r"(?:targets: |make )([a-z][a-z -]*)", text)).split())
    assert {"check", "test", "test-seconds", "docs", "site", "wheel"} == targets
    assert targets <= set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_a_file_of_this_folder_is_taken_before_the_shipped_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert located("configs/textcraft.yaml") == ROOT / "configs/textcraft.yaml"
    assert located("models/craft-1m") == ROOT / "trainers/models/craft-1m"
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/textcraft.yaml").write_text("name: mine\n")
    assert read_file("configs/textcraft.yaml") == {"name": "mine"}
    assert read_file("configs/craft-1m.yaml")["output"] == "models/craft-1m"


def test_every_shipped_configuration_is_read_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    configs = shipped_configs()
    assert {"configs/textcraft.yaml", "configs/accelerate/cpu1.yaml"} <= configs.keys()
    for name in configs:
        settings = read_file(name)
        template = settings.get("prompt", {}).get("template")
        assert template is None or prompt_file_of(PromptConfig(template=template, memory="window(2)"))


def test_only_names_that_are_shipped_are_looked_for_there_and_others_answered_with_the_nearest(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("other/textcraft.yaml", "configs/../pyproject.toml", "quickstart", "", "configs/no"):
        assert located(name) == Path(name)
    with pytest.raises(ConfigError, match=r"Nearest .* configs/textcraft\.yaml.*--list-configs"):
        read_file("configs/textcarft.yaml")


def skill_commands() -> list[list[str]]:
    bodies = [body for language, body in FENCE.findall(SKILL) if language == "bash"]
    return [shlex.split(line, comments=True) for body in bodies for line in body.splitlines() if line]


def test_the_skill_has_the_front_matter_that_agents_read():
    _, front, body = SKILL.split("---\n", 2)
    assert yaml.safe_load(front).keys() == {"name", "description"} and len(yaml.safe_load(front)["description"]) < 1024
    assert body.strip()
    for path in ("docs/architecture.md", "examples/one_file.py", "CONTRIBUTING.md", "docs/environments/"):
        assert f"`{path}`" in body and (ROOT / path).exists()


def test_the_python_of_the_skill_runs(tmp_path):
    (code,) = [body for language, body in FENCE.findall(SKILL) if language == "python"]
    run = subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (0, "Got 2 acacia logs True None\n"), run.stderr


@pytest.mark.slow
@pytest.mark.parametrize("command", skill_commands(), ids=" ".join)
def test_the_commands_of_the_skill_run_from_any_folder(tmp_path, command):
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
