"""``envsuite new``: what it writes works, and an agent learns in it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from envsuite.cli import main


def command(folder: Path, *words: str) -> str:
    """The output of a command of envsuite in a folder, in a process of its own."""
    run = subprocess.run(
        [sys.executable, "-m", "envsuite.cli", *words], cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.fixture
def delivery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "delivery"]) == 0
    return tmp_path / "delivery"


@pytest.mark.seconds
def test_the_files_have_the_name_and_keep_the_contract(delivery: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sorted(path.name for path in delivery.iterdir()) == [
        "delivery.py", "imitate.yaml", "test_delivery.py", "train.yaml",
    ]  # fmt: skip
    assert not any("errand.py" in path.read_text() for path in delivery.iterdir())
    for line in re.findall(r"^  (.+)$", capsys.readouterr().out, re.MULTILINE):
        assert all((delivery / word).exists() for word in line.split() if word.endswith((".py", ".yaml"))), line
    checks = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_delivery.py"]
    run = subprocess.run(checks, cwd=delivery, capture_output=True, text=True, check=False)
    assert run.returncode == 0 and "skipped" not in run.stdout, run.stdout


@pytest.mark.seconds
def test_its_expert_plays_evaluations_and_demonstrations(delivery: Path) -> None:
    table = command(delivery, "eval", "run", "delivery.py", "--policy", "expert", "--seeds", "1")
    assert re.search(r"expert +80 +100\.0 %", table)
    command(delivery, "export", "demos", "delivery.py", "--n", "4", "--out", "demos.jsonl")
    assert len((delivery / "demos.jsonl").read_text().splitlines()) == 4


@pytest.mark.seconds
def test_a_small_model_imitates_the_expert_and_what_somebody_has_played(delivery: Path) -> None:
    tiny = ("imitate", "--config", "imitate.yaml", "--stages", "[{steps: 2, max_steps: 6, games: [{}]}]")
    command(delivery, *tiny)
    shown = command(delivery, "show-prompt", "--config", "train.yaml", "--player", "expert")
    assert re.search(r"<action>take\[(bread|clock|fish|lamp|letter|map|piano|rope)\]</action>", shown)
    command(delivery, "export", "demos", "delivery.py", "--n", "8", "--out", "demos.jsonl")
    file = delivery / "delivery.py"  # nobody knows the best call any more
    file.write_text(file.read_text().partition("\n\n\n@env.expert")[0] + "\n")
    command(delivery, *tiny, "--from", "demos.jsonl")
    command(delivery, "eval", "model", "--config", "train.yaml", "--out", "results", "--rollout.slots", "8")


@pytest.mark.parametrize("name", ["Errand", "my-env", "1st", "", "a/b", "..", "json", "pytest", "there"])
def test_a_name_that_no_file_can_have_or_that_is_taken_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    assert main(["new", name]) == 2
    assert "another name" in (said := capsys.readouterr().err) or "is no name for a file of Python" in said
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_the_page_shows_the_file(root: Path) -> None:
    page = (root / "docs/your-environment.md").read_text()
    file = (root / "envsuite/scaffold/files/errand.py").read_text()
    section = page.partition("## The file\n")[2].partition("\n## ")[0]
    pieces = [
        piece for block in re.findall(r"```python\n(.+?)```", section, re.DOTALL) for piece in block.split("\n\n\n")
    ]
    assert len(pieces) >= 5 and not [piece for piece in pieces if piece.strip() not in file]


@pytest.mark.slow
def test_an_agent_learns_in_it(delivery: Path) -> None:
    command(delivery, "imitate", "--config", "imitate.yaml")
    for recipe in ([], ["--recipe", "rft", "--method", "{filters: {accepted: {}}}", "--name", "rft"]):
        command(delivery, "train", "--config", "train.yaml", *recipe)
    for name in ("delivery", "rft"):
        measured = json.loads((delivery / "runs" / name / "summary.json").read_text())["evaluations"]
        before, after = (evaluation["strata"][0]["success"] for evaluation in measured)
        assert before < 0.5 and after > 0.8, (name, before, after)
