"""``envsuite new``: what it writes works, what it prints can be typed, and an agent learns."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from third_party import files_of_new, install

import envsuite
from envsuite.cli import main
from envsuite.core.naming import resolve_id
from envsuite.core.registration import ENVIRONMENTS
from envsuite.remote.making import make_player

FEW = "--rollout.tasks 1 --rollout.group_size 2 --rollout.slots 4 --evaluation.episodes 2".split()
SHORTER: dict[str, Callable[[list[str]], list[str]]] = {
    "envsuite imitate": lambda words: [*words, "--stages", "[{steps: 2, max_steps: 6, games: [{}]}]"],
    "envsuite train": lambda words: [words[0], *words[1:3], "--iterations", "1", *words[3:], *FEW, "--report", "false"],
    "envsuite eval model": lambda words: [*words, *FEW],
    "envsuite eval run": lambda words: [*words, "--seeds", "1"],
    "pytest": lambda words: ["-q", "-p", "no:cacheprovider", *words],
}
"""What makes a command short, by how it begins. Others are not run: pip, and play, which asks a person."""


def command(folder: Path, *words: str) -> str:
    """The output of a command of envsuite in a folder, in a process of its own."""
    return output(folder, "envsuite.cli", *words)


def output(folder: Path, *words: str) -> str:
    """The output of a module in a folder, where the packages of the folder are installed."""
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    run = subprocess.run(
        [sys.executable, "-m", *words], cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@pytest.fixture
def delivery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "delivery"]) == 0
    return tmp_path / "delivery"


@pytest.mark.seconds
def test_the_files_have_the_name_and_keep_the_contract(delivery, capsys):
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
@pytest.mark.parametrize("words", ["courier --package", "agent looper", "method middle", "engine encore"])
def test_every_command_that_is_printed_can_be_typed(words, tmp_path, capsys):
    files, folder = files_of_new(tmp_path, *words.split()), next(tmp_path.iterdir())
    assert not [path for path, text in files.items() if "errand" in f"{path} {text}".lower()]
    if "pyproject.toml" in files:
        install(folder, files)
    printed = capsys.readouterr().out.replace("\\\n    ", "")
    lines = re.findall(r"^  (\S.+)$", printed, re.MULTILINE)
    assert len(lines) >= 2 and "errand" not in printed.lower()
    for line in lines:
        program, *rest = shlex.split(line.removeprefix("python -m "))
        begins = next((begins for begins in SHORTER if line.removeprefix("python -m ").startswith(begins)), None)
        if begins is None:
            assert line.startswith(("pip install", "envsuite play")), line
            continue
        shown = output(folder, {"envsuite": "envsuite.cli"}.get(program, program), *SHORTER[begins](rest))
        assert "skipped" not in shown and "no tests ran" not in shown
        if begins == "envsuite train":
            assert re.search(r"^before: success [\d.]+ \[[\d.]+, [\d.]+\] % on .+, test$", shown, re.MULTILINE), shown
    if "engine" in words:
        (body,) = json.loads(shown)
        assert body["failed"] == 0, "it answers as the episodes that the command before has saved"


@settings(max_examples=20, deadline=None)
@given(number=st.integers(0, 79), seed=st.integers(0, 2**31))
def test_the_class_of_the_package_plays_as_the_functions_of_the_file(number, seed, both):
    first, second = both
    tasks = [env.unwrapped.tasks.ids("test")[number] for env in both]
    begun = [env.reset(options={"task_id": task})[0] for env, task in zip(both, tasks, strict=True)]
    assert [seen["task"] for seen in begun] == [begun[0]["task"]] * 2 and begun[0]["text"] == begun[1]["text"]
    rng, over = np.random.default_rng(seed), False
    experts = [make_player(env.unwrapped.tasks.env_id, "expert") for env in both]
    while not over:
        moves = [expert.act(env) for expert, env in zip(experts, both, strict=True)]
        assert moves[0] == moves[1]
        move = moves[0] if rng.random() < 0.6 else (second.unwrapped._propose(rng),)
        (seen, *end, info), (also_seen, *also_end, also_info) = first.step(move), second.step(move)
        assert (seen["text"], end, info["valid"]) == (also_seen["text"], also_end, also_info["valid"])
        over = end[1] or end[2]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[gymnasium.Env[Any, Any], ...]]:
    """The environment of the file, and that of the package."""
    site, file = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("file")
    install(site, files_of_new(tmp_path_factory.mktemp("new"), "parcels", "--package"))
    files_of_new(file, "courier")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        patch.chdir(file / "courier")
        envsuite.register_envs()
        yield gymnasium.make(resolve_id("courier.py")), gymnasium.make("Parcels-v0")
        del ENVIRONMENTS["Parcels-v0"], gymnasium.registry["Parcels-v0"]


@pytest.mark.seconds
def test_its_expert_plays_evaluations_and_demonstrations(delivery):
    table = command(delivery, "eval", "run", "delivery.py", "--policy", "expert", "--seeds", "1")
    assert re.search(r"expert +80 +100\.0 %", table)
    command(delivery, "export", "demos", "delivery.py", "--n", "4", "--out", "demos.jsonl")
    assert len((delivery / "demos.jsonl").read_text().splitlines()) == 4


@pytest.mark.seconds
def test_a_small_model_imitates_the_expert_and_what_somebody_has_played(delivery):
    tiny = ("imitate", "--config", "imitate.yaml", "--stages", "[{steps: 2, max_steps: 6, games: [{}]}]")
    command(delivery, *tiny)
    shown = command(delivery, "show-prompt", "--config", "train.yaml", "--player", "expert")
    assert re.search(r"<action>take\[(bread|clock|fish|lamp|letter|map|piano|rope)\]</action>", shown)
    command(delivery, "export", "demos", "delivery.py", "--n", "8", "--out", "demos.jsonl")
    file = delivery / "delivery.py"  # nobody knows the best call any more
    file.write_text(file.read_text().partition("\n\n\n@env.expert")[0] + "\n")
    command(delivery, *tiny, "--from", "demos.jsonl")
    command(delivery, "eval", "model", "--config", "train.yaml", "--out", "results", "--rollout.slots", "8")


@pytest.mark.parametrize("name", ["Errand", "my-env", "1st", "", "a/b", "..", "json", "pytest", "there", "method"])
def test_a_name_that_no_file_can_have_or_that_is_taken_is_refused(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    assert main(["new", name]) == 2
    said = capsys.readouterr().err
    assert re.search("another name|is no name for a file of Python|envsuite new method NAME", said)
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_the_page_shows_the_file(root):
    page = (root / "docs/your-environment.md").read_text()
    file = (root / "envsuite/scaffold/environment/errand.py").read_text()
    section = page.partition("## The file\n")[2].partition("\n## ")[0]
    pieces = [
        piece for block in re.findall(r"```python\n(.+?)```", section, re.DOTALL) for piece in block.split("\n\n\n")
    ]
    assert len(pieces) >= 5 and not [piece for piece in pieces if piece.strip() not in file]


def test_the_page_of_agents_shows_the_agent_that_is_written(root):
    page = (root / "docs/your-agent.md").read_text().partition("# my_agent.py\n")[2].partition("```")[0]
    file = (root / "envsuite/scaffold/agent/errand.py").read_text()
    shown, written = (ast.parse(text).body[-1] for text in (page, file))
    assert isinstance(written, ast.FunctionDef) and ast.get_docstring(written)
    written.body = written.body[1:]
    assert ast.dump(shown) == ast.dump(written)


@pytest.mark.slow
def test_an_agent_learns_in_it(delivery):
    command(delivery, "imitate", "--config", "imitate.yaml")
    for recipe in ([], ["--recipe", "rft", "--method", "{filters: {accepted: {}}}", "--name", "rft"]):
        command(delivery, "train", "--config", "train.yaml", *recipe)
    for name in ("delivery", "rft"):
        measured = json.loads((delivery / "runs" / name / "summary.json").read_text())["evaluations"]
        before, after = (evaluation["strata"][0]["success"] for evaluation in measured)
        assert before < 0.5 and after > 0.8, (name, before, after)
