"""Every command takes every kind of id, or says by name what is missing."""

from __future__ import annotations

import importlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import pytest
import yaml
from textual.pilot import Pilot
from third_party import files_of_new, install
from tiny_runs import save_model, settings

import envsuite
from envsuite.core.naming import resolve_id
from envsuite.core.registration import ENVIRONMENTS, NAMED
from envsuite.play.app import Play
from envsuite.serving.bridges.server import bridging
from envsuite.serving.bridges.settings import BridgeSettings
from envsuite.serving.server import serving
from envsuite.serving.settings import ServerSettings

KINDS = {
    "built-in, short": "sokoban",
    "package": "Parcels-v0",
    "file": "courier.py",
    "adapter": "gymnasium/FrozenLake-v1",
    "adapter, module:Id": "gymnasium/shelf:Shelf-dict-v0",
    "module:Id of Gymnasium": "shelf:Shelf-vector-v0",
}
COMMANDS = {
    "envs options": "envs options {id}",
    "envs tasks": "envs tasks {id} --split test",
    "envs panels": "envs panels export {id} test --for json --out panel.json",
    "eval run": "eval run {id} --policy random --seeds 1 --sample 2 --out results",
    "export demos": "export demos {id} --n 1 --out demos.jsonl",
    "play": "play {id}",
    "diagnose": "diagnose {id} --config run.yaml",
    "show-prompt": "show-prompt --config run.yaml --player nothing",
    "show-prompt --player expert": "show-prompt --config run.yaml --player expert",
    "train": "train --config run.yaml",
    "eval model": "eval model --config run.yaml",
    "plan": "plan --config run.yaml --gpus H100",
    "imitate": "imitate --config imitate.yaml",
}
EXPERT = ("export demos", "show-prompt --player expert", "imitate")
NO_EXPERT = r"has no expert; write a method expert\(self\) into its class, which returns the best action"
REFUSED = {("adapter", command): NO_EXPERT for command in EXPERT}
"""What of the table is refused, and what is then said."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a file of functions, a module and an installed package; their names are forgotten afterwards."""
    folder = tmp_path_factory.mktemp("own")
    shutil.copy(Path(__file__).parents[1] / "adapters" / "shelf.py", folder)
    save_model(folder / "model")
    install(folder / "site", files_of_new(tmp_path_factory.mktemp("package"), "parcels", "--package"))
    place = tmp_path_factory.mktemp("file")
    (folder / "courier.py").write_text(files_of_new(place, "courier")["courier.py"])
    before = set(ENVIRONMENTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv(NAMED, os.environ.get(NAMED, ""))  # what tests before have named stays named
        patch.syspath_prepend(folder / "site")
        importlib.invalidate_caches()
        envsuite.register_envs()
        yield folder
    for env_id in set(ENVIRONMENTS) - before:
        del ENVIRONMENTS[env_id], gymnasium.registry[env_id]


async def quitting(pilot: Pilot[None]) -> None:
    await pilot.exit(None)


@pytest.mark.seconds
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_command_takes_every_kind_of_id(kind, command, folder, console, monkeypatch):
    env_id = KINDS[kind]
    for name in ("runs", "results", "base"):
        shutil.rmtree(folder / name, ignore_errors=True)
    for file in (*folder.glob("demos.*"), *folder.glob("panel.*")):
        file.unlink()
    run = settings(folder, **{
        "iterations": 1, "checkpoint_every": 1, "prompt.codec": "tools", "prompt.memory": "window(1)",
        "envs": [{"id": env_id, "split": "train", "max_episode_steps": 2}], "evaluation.episodes": 2,
        "evaluation.envs": [{"id": env_id, "split": "test", "max_episode_steps": 2}],
    })  # fmt: skip
    (folder / "run.yaml").write_text(yaml.safe_dump(run))
    stages = [{"steps": 1, "max_steps": 2, "games": [{}]}]
    imitation = {"output": "base", "env": env_id, "stages": stages, "batch": 1, "prompt": {"codec": "brackets"}}
    (folder / "imitate.yaml").write_text(yaml.safe_dump(imitation))
    shown = Play.run
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setattr(Play, "run", lambda app: shown(app, headless=True, auto_pilot=quitting))
    refusal = REFUSED.get((kind, command))
    _, err = console(COMMANDS[command].format(id=env_id), status=2 if refusal else 0)
    if refusal:
        assert re.search(refusal, err), err


@pytest.mark.seconds
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_id_is_served(kind, folder):
    env_id = resolve_id(KINDS[kind])  # as the commands `serve http` and `serve bridge` do
    with serving(ServerSettings((env_id,), port=0)) as running, bridging(BridgeSettings((env_id,), port=0)) as bridge:
        env = gymnasium.make(env_id, url=running.url)
        assert env.reset(seed=0)[0] == gymnasium.make(env_id).reset(seed=0)[0]
        assert bridge.url
