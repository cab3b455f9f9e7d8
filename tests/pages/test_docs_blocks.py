"""Every block of code in the documentation is tested; ``blocks.py`` and ``command_lines.py`` say how."""

from __future__ import annotations

import ast
import contextlib
import importlib
import json
import re
import subprocess
import textwrap
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from blocks import BY_LANGUAGE, FILE, REASONS, Block, all_blocks, blocks_of, of_kind
from command_lines import Refused, check, kind, lines, reason_elsewhere, typed, variables
from given import METHODS, QWEN3, table, tokenizer_of

from docs.build import LINK, ROOT
from envsuite.cli import main
from envsuite.core.errors import UnknownName
from envsuite.serving.bridges.server import bridging
from envsuite.serving.bridges.settings import BridgeSettings as BridgeSettings
from envsuite.serving.server import serving
from envsuite.serving.settings import ServerSettings
from trainers.credit.estimators import ESTIMATORS
from trainers.imitation.config import ImitateConfig
from trainers.run.config import TrainConfig
from trainers.settings import checked

COMMANDS = [(block, line) for block in of_kind("commands") for line in lines(block.text)]
RUN = list(dict.fromkeys(block.page for block in of_kind("run")))
TRANSFORMERS = "docs/prompting.md"
SLOW_PAGES = (TRANSFORMERS, "docs/engine.md", "docs/interpreter.md")
"""Pages whose Python needs a language model, or waits for a limit."""


def shown(items: list[Block]) -> Any:
    return pytest.mark.parametrize("block", items, ids=str)


def test_every_block_and_every_command_has_a_class(capsys):
    without = [
        f"{block}: language {block.language!r}, one of {sorted(BY_LANGUAGE)}"
        for block in all_blocks()
        if not block.kind
    ]
    without += [f"{block}: {line.program}" for block, line in COMMANDS if not kind(line)]
    assert not without, "\n".join(without)
    with capsys.disabled():
        print("\nblocks:", dict(Counter(block.kind for block in all_blocks())))
        print("commands:", dict(Counter(kind(line) for _, line in COMMANDS)))
        for (page, first), reason in REASONS.items():
            print(f"not executed: {page}, {first}: {reason}")
        for reason, count in Counter(reason_elsewhere(line) for _, line in COMMANDS).items():
            if reason:
                print(f"not executed: {count} commands: {reason}")


def test_no_reason_is_left_over():
    there = {(block.page, block.first) for block in all_blocks()}
    assert set(REASONS) <= there
    assert {f"docs/methods/{name}.md" for name in METHODS} == {block.page for block in of_kind("method")}


def test_blocks_in_lists_and_without_a_fence_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "- item\n\n  ```python\n  1 / 0\n  ```\n\n> ~~~bash\n> make\n> ~~~\n\ntext\n\n    indented\n\n```\nx\n```\n"
    )
    found = [(block.language, block.text, block.kind) for block in blocks_of(page)]
    assert found == [
        ("python", "1 / 0\n", "run"), ("bash", "make\n", "commands"), ("", "indented\n", ""), ("", "x\n", "")
    ]  # fmt: skip


@contextlib.contextmanager
def surroundings(
    page: str, folder: Path, request: pytest.FixtureRequest
) -> Iterator[tuple[dict[str, Any], dict[str, str]]]:
    """Names that the blocks of a page are given, and texts in them that are replaced: addresses of servers."""
    if page == "docs/serving.md":
        with serving(ServerSettings(("TextCraft-v0",), port=0)) as running:
            yield {}, {"http://127.0.0.1:8080": running.url}
    elif page == "docs/bridges.md":
        with bridging(BridgeSettings(("TextCraft-v0",), port=0)) as bridge:
            yield {}, {"http://127.0.0.1:8000": bridge.url}
    elif page == "docs/adapters.md":
        import gymnasium

        episode = type("Episode", (), {"act": lambda self, call: call.name})
        yield {"env": gymnasium.make("TextCraft-v0"), "Episode": episode}, {}
    elif page == TRANSFORMERS:
        smol = request.getfixturevalue("smol")
        smol.save_pretrained(folder / "smollm2")
        tokenizer_of(smol, QWEN3).save_pretrained(folder / "qwen3")
        folders = {"HuggingFaceTB/SmolLM2-135M-Instruct": folder / "smollm2", "Qwen/Qwen3-0.6B": folder / "qwen3"}
        yield {"send": lambda messages, tools: None}, {name: str(place) for name, place in folders.items()}
    elif page == "docs/engine.md":
        yield engines(), {}
    elif page == "docs/evaluation.md":
        main(["eval", "run", "TextCraft-v0", "--policy", "expert", "--sample", "3", "--out", str(folder / "results")])
        yield {}, {}
    else:
        yield {}, {}


def engines() -> dict[str, Any]:
    """Names of docs/engine.md, with a small model."""
    from transformers import AutoModelForCausalLM

    from envsuite.playing.engine import Request, Sampling
    from trainers.rollout.hf_engine import HFEngine
    from trainers.rollout.scripted import ScriptedEngine

    return {
        **{"HFEngine": HFEngine, "Request": Request, "Sampling": Sampling, "ScriptedEngine": ScriptedEngine},
        "model": AutoModelForCausalLM.from_pretrained(ROOT / "trainers/models/craft-1m"),
        "prompt_ids": [3, 4, 5],
        "expert_tokens": lambda prompt_ids: [7],
    }


@pytest.mark.parametrize("page", [pytest.param(page, marks=[pytest.mark.slow] * (page in SLOW_PAGES)) for page in RUN])
def test_the_python_of_a_page_runs(page, tmp_path, monkeypatch, request):
    monkeypatch.chdir(tmp_path)
    for folder in ("configs", "docs", "envsuite", "examples", "trainers"):  # a reader stands in the repository
        (tmp_path / folder).symlink_to(ROOT / folder)
    with surroundings(page, tmp_path, request) as (names, texts):
        for block in of_kind("run"):
            if block.page == page:
                text = block.text
                for old, new in texts.items():
                    text = text.replace(old, new)
                code = "\n" * block.line + text
                exec(compile(code, str(ROOT / page), "exec"), names)


@shown(of_kind("method"))
def test_the_lines_below_an_equation_give_the_advantages_of_the_method(block):
    name = Path(block.page).stem
    settings = {"weight": "score"} if name == "rft" else {}  # by default every episode weighs alike
    method, steps = ESTIMATORS[name](**settings), table()
    names = dict(vars(importlib.import_module(type(method).__module__)), steps=steps, method=method)
    names |= {field.name: getattr(method, field.name) for field in fields(method)}
    exec(textwrap.dedent(METHODS[name]), names)
    exec(block.text, names)
    result = method(steps)
    found = named(names, method, steps)
    wanted = result.per_step if result.per_step is not None else result.per_token
    assert np.ptp(wanted) > 0
    np.testing.assert_allclose(found, wanted, atol=1e-7)


def named(names: dict[str, Any], method: Any, steps: Any) -> Any:
    """What a block has computed, a number for each step or token, in the order of the table."""
    if "step" in names and "advantage" not in names:  # one term of two
        return method.compare.episodes(steps)[0] + method.step_weight * names["step"]
    found = np.asarray(names["advantage"])
    if "order" in names and method.per == "step" and "delta" in names:
        back = np.empty(len(found))
        back[names["order"]] = found
        return back
    if "sequences" in names and method.per == "token":
        return names["sequences"].in_rows(found)
    return names["units"].rows(found) if "units" in names and len(found) != len(steps) else found


@shown(of_kind("excerpt"))
def test_an_excerpt_stands_so_in_a_file_that_the_page_links_to(block):
    page = ROOT / block.page
    linked = [page.parent / link for link in LINK.findall(page.read_text("utf-8")) if link.endswith(".py")]
    there = {line.strip() for path in linked for line in path.read_text("utf-8").splitlines()}
    assert [line for line in block.text.splitlines() if line.strip() not in there] == []


@shown(of_kind("file"))
def test_a_file_of_an_example_package_is_whole_and_installed_by_a_test(block):
    (tomllib.loads if block.language == "toml" else ast.parse)(block.text)
    head = (ROOT / block.page).read_text("utf-8").splitlines()[: block.line]
    heading = next(line.removeprefix("## ") for line in reversed(head) if line.startswith("## "))
    tests = (path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    assert any(f'"{heading}"' in text and ("files_of" in text or "SECTION =" in text) for text in tests), (
        f"no test installs the package of {heading}"
    )
    assert FILE.match(block.text)


@shown(of_kind("named"))
def test_what_a_block_imports_exists_where_it_is_not_executed(block):
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith(("envsuite", "trainers")):
            module = importlib.import_module(str(node.module))
            assert all(alias.name in vars(module) for alias in node.names)


@shown(of_kind("settings"))
def test_settings_are_accepted(block):
    settings = yaml.safe_load(block.text)
    if block.page.startswith("docs/methods/"):
        settings = {"method": settings}
    if " --from " in block.first:
        settings["demonstrations"] = block.first.split(" --from ")[1].split()[0]
    checked(ImitateConfig if "envsuite imitate" in block.first else TrainConfig, settings)


@shown(of_kind("data"))
def test_json_and_toml_can_be_read(block):
    (tomllib.loads if block.language == "toml" else json.loads)(block.text)


@shown(of_kind("commands"))
def test_commands_are_accepted_by_their_programs(block, tmp_path, monkeypatch):
    text = re.sub(r"<[a-z ]+>", "PLACEHOLDER", re.sub(r"\[(?=--)|(?<=[A-Z])\]", "", typed(block.text)))
    syntax = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
    assert syntax.returncode == 0, syntax.stderr
    for name, value in variables(block.text).items():
        monkeypatch.setenv(name, value)
    for line in lines(block.text):
        if kind(line) != "run":
            check(line, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("line", list(dict.fromkeys(line for _, line in COMMANDS if kind(line) == "run")), ids=str)
def test_quick_commands_run(line, tmp_path):
    check(line, tmp_path)


@pytest.mark.parametrize(
    "command",
    [
        "envsuite nothing",
        "envsuite envs tasks --splitt test",
        "make nothing",
        "pip install 'envsuite[nothing]'",
        "python -m trainers.nothing",
        "python -m trainers.train --config configs/nothing.yaml",
        "python -m trainers.train --config configs/textcraft.yaml --optim.rate 1",
        "accelerate launch --nothing 1 -m trainers.train",
        "python -m benchmarks.recipes --nothing",
        "python examples/nothing.py",
        "frobnicate --all",
    ],
)
def test_a_command_that_its_program_refuses_is_found(command, tmp_path):
    (line,) = lines(command)
    with pytest.raises((Refused, SystemExit, UnknownName)):
        check(line, tmp_path)


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ("$ envsuite eval table results \\\n    --wide\npolicy (all)  100\n…\n$ make help\n",
         ["envsuite eval table results --wide", "make help"]),
        ("export A=1\nA=1 envsuite envs list | head > out  # it's all\n",
         ["export A=1", "envsuite envs list", "head"]),
        ('for s in 1 2; do\n    make "x y" \\\n      z\ndone\n', ["for s in 1 2", "make 'x y' z", "done"]),
    ],
)  # fmt: skip
def test_what_was_typed_is_taken_apart_as_a_shell_does(block, words):
    assert list(map(str, lines(block))) == words
