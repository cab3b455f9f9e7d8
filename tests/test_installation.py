"""What an installation finds, wherever Python is started."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

BUILD = "import sys; from setuptools.build_meta import build_editable; build_editable(sys.argv[1])"
PLAY = """
import site, sys
sys.path = [folder for folder in sys.path if folder != sys.argv[2]]  # this repository, if it is installed, too
site.addsitedir(sys.argv[1])  # what Python does with an installation's folder when it starts
import gymnasium
import envsuite, trainers
print(envsuite.__file__, trainers.__file__)
print(gymnasium.make("TextCraft-v0").reset(seed=0)[1]["task_id"])
"""


def test_an_editable_clone_named_envsuite_is_found_from_the_folder_above_it(root, tmp_path):
    clone, installed = tmp_path / "envsuite", tmp_path / "site-packages"
    for package in ("envsuite", "trainers"):
        shutil.copytree(root / package, clone / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(root / name, clone)
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    subprocess.run([sys.executable, "-c", BUILD, str(wheels)], cwd=clone, capture_output=True, check=True)
    with zipfile.ZipFile(next(wheels.glob("*.whl"))) as wheel:
        wheel.extractall(installed)
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", PLAY, str(installed), str(root)]
    run = subprocess.run(command, cwd=tmp_path, env=plain, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    files, task = run.stdout.splitlines()
    assert files.split() == [str(clone / package / "__init__.py") for package in ("envsuite", "trainers")]
    assert task


def test_a_wheel_has_the_model_that_is_taken_by_default(root, tmp_path):
    shutil.copytree(root / "trainers", tmp_path / "trainers", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "envsuite").mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "envsuite/__init__.py"):  # the last has the version
        shutil.copy(root / name, tmp_path / name)
    command = [sys.executable, "-c", BUILD.replace("editable", "wheel"), str(tmp_path)]
    subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        names = {Path(name).name for name in wheel.namelist() if name.startswith("trainers/models/craft-1m/")}
    assert names == {file.name for file in (root / "trainers/models/craft-1m").iterdir()}


@pytest.mark.slow
def test_a_program_outside_of_the_repository_says_which_configurations_there_are(root, tmp_path):
    run = subprocess.run(
        [sys.executable, "-m", "trainers.train", "--config", "configs/text-craft.yaml"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 2
    assert f"--config configs/text-craft.yaml: there is no such file in {tmp_path}" in run.stderr
    assert "Nearest of those that are installed: configs/textcraft.yaml" in run.stderr
