"""The wheel, installed in an environment of its own, in an empty folder."""

from __future__ import annotations

import json
import os
import shutil
import site
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from trainers.settings.shipped import shipped_configs

ROOT = Path(__file__).resolve().parents[2]
LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv", "runs", "build", "dist", "*.egg-info", "__pycache__", ".*_cache", ".hypothesis"
)
LARGEST = 10 << 20
"""Bytes that a wheel stays below."""
SHORT = ["--iterations", "1", "--rollout.tasks", "2", "--rollout.group_size", "2", "--evaluation.episodes", "4"]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the source distribution and the wheel made from it: ENVSUITE_DIST names what is built already."""
    if "ENVSUITE_DIST" in os.environ:
        return ROOT / os.environ["ENVSUITE_DIST"]
    folder = tmp_path_factory.mktemp("built")
    shutil.copytree(ROOT, folder / "clone", ignore=LEFT_OUT)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder / "dist"), str(folder / "clone")]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]
    return folder / "dist"


@pytest.fixture(scope="module")
def clean(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs of an environment with the wheel; what the wheel depends on is that of the running environment."""
    folder = tmp_path_factory.mktemp("clean")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin/python"
    (wheel,) = built.glob("*.whl")
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", wheel], env=plain(), check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()))
    return folder / "bin"


def plain() -> dict[str, str]:
    """The variables of this process without the folder of the sources."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def said(program: Path, *words: str, cwd: Path, code: int = 0) -> str:
    run = subprocess.run([program, *words], cwd=cwd, env=plain(), capture_output=True, text=True, timeout=1500)
    assert run.returncode == code, run.stdout[-2000:] + run.stderr[-2000:]
    return run.stdout + run.stderr


def test_both_distributions_have_configurations_and_model_and_no_tests(built):
    configs = {file.relative_to(ROOT).as_posix() for file in (ROOT / "configs").rglob("*") if file.is_file()}
    (source,), (wheel,) = built.glob("*.tar.gz"), built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    packed = {name.removeprefix("trainers/") for name in names if name.startswith("trainers/configs/")}
    assert packed == {name for name in configs if not name.endswith(".yaml")} | set(shipped_configs())
    assert "trainers/examples/agents.py" in names
    assert {"trainers/papers/index.yaml", "trainers/papers/settings.yaml"} <= names
    read = [
        (ROOT / package).rglob(f"*.{kind}") for package in ("envsuite", "trainers") for kind in ("toml", "json", "txt")
    ]
    tables = {file.relative_to(ROOT).as_posix() for files in read for file in files}
    assert len(tables) > 10 and tables <= names
    assert "trainers/models/craft-1m/model.safetensors" in names
    panels = {file.relative_to(ROOT).as_posix() for file in (ROOT / "envsuite/evaluation/panels").rglob("*.json.gz")}
    assert len(panels) > 10 and panels <= names
    files = [
        file for file in (ROOT / "envsuite").glob("*/page/**/*.*") if file.is_file() and "__pycache__" not in file.parts
    ]
    pages = {file.relative_to(ROOT).as_posix() for file in files}
    assert len(pages) > 10 and pages <= names
    assert not [
        name for name in names if "__pycache__" in name or "/." in name or name.endswith(("~", ".pyc", ".orig"))
    ]
    assert wheel.stat().st_size < LARGEST
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"envsuite", "trainers"}
    with tarfile.open(source) as archive:
        members = {name.partition("/")[2] for name in archive.getnames()}
    assert configs <= members
    assert "CITATION.cff" in members and not [name for name in members if name.startswith("tests/")]


def test_the_wheel_runs_the_quick_start_from_an_empty_folder(clean, tmp_path):
    where = said(clean / "python", "-c", "import envsuite, trainers; print(envsuite.__file__)", cwd=tmp_path)
    assert str(clean.parent) in where
    assert "TextCraft-v0" in said(clean / "envsuite", "envs", "list", cwd=tmp_path)
    assert "chest" in said(clean / "envsuite", "envs", "tasks", "TextCraft-v0", "--split", "test", cwd=tmp_path)
    assert json.loads(said(clean / "envsuite", "doctor", "--json", cwd=tmp_path))["quickstart"]
    listed = said(clean / "python", "-m", "trainers.train", "--list-configs", cwd=tmp_path).splitlines()
    assert {line.split("\t")[0] for line in listed} == set(shipped_configs())
    assert all(Path(line.split("\t")[2]).is_relative_to(clean.parent) for line in listed)
    assert "# SCPO" in said(
        clean / "envsuite", "papers", "show", "papers/scpo/table1-webshop-qwen2.5-7b-scpo", cwd=tmp_path
    )
    refused = said(clean / "envsuite", "quickstart", "--optim.lrr", "1", cwd=tmp_path, code=2)
    assert "optim.lr" in refused and not (tmp_path / "errand").exists()
    said(clean / "envsuite", "quickstart", *SHORT, cwd=tmp_path)
    assert "<html" in (tmp_path / "errand/runs/errand/report.html").read_text()[:500].lower()
    told = said(clean / "envsuite", "quickstart", *SHORT, cwd=tmp_path)  # again: it goes on, and there is nothing to do
    assert "holds a run already" not in told


def test_without_the_extra_the_quick_start_says_what_to_install(built, tmp_path):
    (wheel,) = built.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "bare"], check=True)
    python = tmp_path / "bare/bin/python"
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", wheel], env=plain(), check=True)
    (packages,) = (tmp_path / "bare").glob("lib/python*/site-packages")
    for folder in map(Path, site.getsitepackages()):
        for name in ("gymnasium", "numpy", "numpy.libs", "orjson", "jsonschema_rs", "packaging",
                     "farama_notifications", "cloudpickle", "typing_extensions.py"):  # fmt: skip
            if (folder / name).exists():
                (packages / name).symlink_to(folder / name)
    told = said(tmp_path / "bare/bin/envsuite", "quickstart", cwd=tmp_path, code=2)
    assert "trainers needs torch" in told and "pip install 'envsuite[train]'" in told
    doctor = said(tmp_path / "bare/bin/envsuite", "doctor", cwd=tmp_path, code=1)
    assert "cannot run" in doctor and "pip install 'envsuite[train]'" in doctor
