"""Other people's packages, as pip installs them, on environments and servers of envsuite: docs/conformance.md.

Each package has an interpreter of its own, named by a variable, since they want versions that exclude each other.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from envsuite.core import ToolCall
from envsuite.textcraft.env import TextCraft

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
PACKAGE = ROOT / "examples/openenv_package"
EPISODE = json.loads((PACKAGE / "validation/runtime.json").read_text())
PLAN = {**EPISODE["reset"]["options"], "actions": EPISODE["actions"]}
LEVELS = ("static", "runtime", "semantic")
IMPLEMENTED = {
    "static.manifest",
    "runtime.startup",
    "runtime.reward_well_formed",
    "runtime.observation_schema",
    "runtime.state_contract",
}
"""Checks of openenv 0.10.0 that need no container; of all others it says that they are not implemented."""
pytestmark = pytest.mark.slow


def interpreter(name: str) -> str:
    found = os.environ.get(name)
    if found is None:
        pytest.skip(f"{name} names no interpreter; docs/conformance.md says how to make one")
    return found


def said(command: Sequence[object], cwd: Path, seconds: float = 400) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    words = [str(word) for word in command]
    run = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, timeout=seconds)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-3000:]
    return run.stdout


@contextmanager
def serving(command: Sequence[object], port: int, cwd: Path, path: str) -> Iterator[str]:
    """A server in a process; yields its address when it answers at ``path``."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    server = subprocess.Popen([str(word) for word in command], cwd=cwd, env=environment)
    try:
        deadline = time.monotonic() + 300
        while True:
            assert server.poll() is None and time.monotonic() < deadline, "the server did not start"
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5).close()
                break
            except urllib.error.HTTPError:
                break
            except OSError:
                time.sleep(0.3)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(30)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def bridge() -> Iterator[str]:
    port = free_port()
    command = (sys.executable, "-m", "envsuite.cli", "serve", "bridge", "TextCraft-v0", "--port", port)
    with serving(command, port, ROOT, "/openenv/TextCraft-v0/health") as url:
        yield f"{url}/openenv/TextCraft-v0"


@contextmanager
def package(python: str, tmp_path: Path) -> Iterator[str]:
    port = free_port()
    copy = shutil.copytree(PACKAGE, tmp_path / "package")
    with serving((python, "-m", "uvicorn", "server.app:app", "--port", port), port, copy, "/health") as url:
        yield url


def played() -> tuple[dict[str, str], list[dict[str, Any]]]:
    """The episode of the package's plan, played here."""
    env = gymnasium.make("TextCraft-v0")
    task = TextCraft(split=None).tasks.ids(PLAN["split"])[PLAN["index"]]
    begun, _ = env.reset(options={"task_id": task})
    steps = []
    for action in PLAN["actions"]:
        call = ToolCall(action["tool_name"], action["arguments"])
        observation, reward, terminated, truncated, _ = env.step([call])
        steps.append({"text": observation["text"], "reward": reward, "done": terminated or truncated})
    assert steps[-1]["done"] and steps[-1]["reward"] == 1.0
    return {"task": begun["task"], "text": begun["text"]}, steps


@pytest.mark.parametrize("kind", ["bridge", "package"])
def test_openenvs_levels_pass_as_far_as_they_are_implemented(kind, tmp_path):
    python = interpreter("ENVSUITE_OPENENV_PYTHON")
    with ExitStack() as stack:
        address = [stack.enter_context(bridge())] if kind == "bridge" else []
        copy = shutil.copytree(PACKAGE, tmp_path / "package")
        out = said([python, HERE / "openenv_validate.py", copy, *address], tmp_path)
    report = json.loads(out.splitlines()[-1])
    by_status: dict[str, set[str]] = {}
    for result in report["results"]:
        by_status.setdefault(result["status"], set()).add(result["check_id"])
    assert by_status.keys() <= {"pass", "skip"}, report["results"]
    assert by_status["pass"] == IMPLEMENTED
    reasons = Counter(" ".join(result["evidence"]) for result in report["results"] if result["status"] == "skip")
    assert reasons == {"grader not implemented in this build": 17, "missing provider capabilities: network_policy": 1}


@pytest.mark.parametrize("level", LEVELS)
def test_openenvs_command_passes_the_bridge(level, tmp_path):
    python = interpreter("ENVSUITE_OPENENV_PYTHON")
    with bridge() as url:
        command = [python, "-m", "openenv.cli", "validate", "--url", url, "--level", level, "--timeout", "60", "--json"]
        report = json.loads(said(command, tmp_path))
    assert report["passed"] and len(report["criteria"]) == 6


def test_openenvs_command_passes_the_package_statically(tmp_path):
    python = interpreter("ENVSUITE_OPENENV_PYTHON")
    copy = shutil.copytree(PACKAGE, tmp_path / "package")
    report = json.loads(said([python, "-m", "openenv.cli", "validate", copy, "--skip-build", "--json"], tmp_path))
    assert {one["check_id"] for one in report["results"] if one["status"] == "pass"} == {"static.manifest"}
    assert not [one for one in report["results"] if one["status"] in ("fail", "error")]


@pytest.mark.parametrize("kind", ["bridge", "package"])
def test_openenvs_clients_play_the_local_episode_by_its_task_api(kind, tmp_path):
    python = interpreter("ENVSUITE_OPENENV_PYTHON")
    with bridge() if kind == "bridge" else package(python, tmp_path) as url:
        command = [python, HERE / "openenv_client.py", url, "TextCraft-v0", json.dumps(PLAN)]
        told = json.loads(said(command, tmp_path).splitlines()[-1])
    tasks = TextCraft(split=None).tasks
    ids = tasks.ids(PLAN["split"])
    begun, steps = played()
    assert told["environments"] == ["TextCraft-v0"] and told["splits"] == list(tasks.splits)
    assert told["count"] == len(ids) and [task["id"] for task in told["tasks"]] == list(ids)
    assert told["task"] == told["tasks"][PLAN["index"]] and told["range"] == told["tasks"][1:3]
    assert told["begun"] == begun and told["steps"] == steps
    assert told["state"] == {"episode_id": "conformance", "step_count": len(steps)}


def test_openenvs_client_of_tools_plays_the_local_episode_on_the_bridge(tmp_path):
    python = interpreter("ENVSUITE_OPENENV_PYTHON")
    with bridge() as url:
        command = [python, HERE / "openenv_tools_client.py", url, json.dumps(PLAN)]
        told = json.loads(said(command, tmp_path).splitlines()[-1])
    begun, steps = played()
    assert told["tools"] == [{"name": tool.name, "schema": dict(tool.parameters)} for tool in TextCraft.tools]
    assert told["begun"] == f"{begun['task']}\n\n{begun['text']}" and told["steps"] == steps
    assert told["state"] == {"episode_id": "conformance", "step_count": len(steps)}


def test_the_packages_manifest_counts_the_tasks_that_there_are(tmp_path):
    import yaml

    capabilities = yaml.safe_load((PACKAGE / "openenv.yaml").read_text())["validation"]["capabilities"]
    env = TextCraft(split=None)
    assert capabilities["declared_task_count"] == {split: len(ids) for split, ids in env.tasks.splits.items()}
    assert capabilities["declared_tools"] == [tool.name for tool in env.tools]


def test_openrewards_client_plays_the_local_episode(tmp_path):
    python = interpreter("ENVSUITE_OPENREWARD_PYTHON")
    port = free_port()
    with serving((python, ROOT / "examples/openreward_server.py", port), port, tmp_path, "/health") as url:
        command = [python, HERE / "openreward_client.py", url, "textcraft-v0", json.dumps(PLAN)]
        told = json.loads(said(command, tmp_path).splitlines()[-1])
    tasks = TextCraft(split=None).tasks
    task = tasks.ids(PLAN["split"])[PLAN["index"]]
    begun, steps = played()
    assert told["splits"] == list(tasks.splits) and told["tools"] == ["env_step"]
    assert told["count"] == len(tasks.ids(PLAN["split"]))
    assert told["task"] == {"id": task, "type": tasks.types[task]}
    assert told["prompt"] == f"{begun['task']}\n\n{begun['text']}"
    assert [{"text": s["text"], "reward": s["reward"], "done": s["finished"]} for s in told["steps"]] == steps


@pytest.mark.parametrize(
    ("variable", "file"),
    [("ENVSUITE_VERIFIERS_PYTHON", "test_verifiers.py"), ("ENVSUITE_TRL_PYTHON", "test_trl.py")],
    ids=["verifiers", "trl"],
)
def test_the_example_passes_its_tests_where_the_package_is_installed(variable, file, tmp_path):
    python = interpreter(variable)
    command = [python, "-m", "pytest", ROOT / "tests/examples" / file, "-p", "no:cacheprovider", "-rs"]
    out = said([*command, "--rootdir", ROOT, "-c", ROOT / "pyproject.toml"], ROOT, 3600)
    assert " passed" in out and "skipped" not in out, out
