"""A name of an environment works in every command or in none; nearest names; keys given twice."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import pytest

from envsuite.cli import main
from envsuite.core.errors import EnvsuiteError, UsageError, nearest, unknown
from envsuite.core.naming import resolve_id
from envsuite.core.registration import ENVIRONMENTS, NAMED
from envsuite.core.settings import read_json
from trainers.imitation.config import ImitateConfig
from trainers.run.config import TrainConfig
from trainers.settings.words import merge, over, read_file

FILE = """
from envsuite import Environment
env = Environment({"train": range(4)}, goal="Say.", steps=2)

@env.tool
def say(world, command: str):
    "Says it."
    if command > "m":
        raise KeyError("no such word")
    return command
"""
MODULE = """
import gymnasium
from envsuite import register
from envsuite.core.registration import EnvSpec
if "Own-v0" not in gymnasium.registry:
    register(EnvSpec("Own-v0", "envsuite.textcraft.env:TextCraft", 9))
gymnasium.register("Slippery-v0", entry_point="gymnasium.envs.toy_text.frozen_lake:FrozenLakeEnv", max_episode_steps=9)
"""
NAMES = {
    "TextCraft-v0": "TextCraft-v0",
    "textcraft": "TextCraft-v0",
    "TEXTCRAFT": "TextCraft-v0",
    "envsuite:TextCraft-v0": "TextCraft-v0",
    "lock.py": "lock.py",
    "gymnasium/FrozenLake-v1": "gymnasium/FrozenLake-v1",
    "gymnasium/own_ids:Slippery-v0": "gymnasium/Slippery-v0",
    "own_ids:Own-v0": "Own-v0",
}
"""Name -> id."""


@pytest.fixture(autouse=True)
def forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder with a file and a module; what a test registers is forgotten after it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(NAMED, "")
    Path("lock.py").write_text(FILE)
    Path("own_ids.py").write_text(MODULE)
    before = {*ENVIRONMENTS}
    yield
    for env_id in {*ENVIRONMENTS} - before:
        del ENVIRONMENTS[env_id], gymnasium.registry[env_id]
    gymnasium.registry.pop("Slippery-v0", None)
    sys.modules.pop("own_ids", None)


REFUSALS = ("unknown environment", "no such file in", "cannot be imported")
COMMANDS = {
    "envs tasks": ["envs", "tasks", "NAME"],
    "envs options": ["envs", "options", "NAME"],
    "envs panels": ["envs", "panels", "show", "NAME", "train"],
    "play": ["play", "NAME"],
    "eval run": ["eval", "run", "NAME", "--policy", "random", "--split", "train", "--sample", "2", "--out", "out"],
    "export demos": ["export", "demos", "NAME", "--n", "1", "--player", "nobody", "--out", "demos.jsonl"],
    "export episodes": ["export", "episodes", "nowhere", "--env", "NAME", "--out", "demos.jsonl"],
    "serve http": ["serve", "http", "NAME", "--port", "PORT", "--workers", "0"],
    "serve bridge": ["serve", "bridge", "NAME", "--port", "PORT"],
    "train": ["train", "--print-config", "--envs", "[{id: NAME}]"],
}


@pytest.mark.parametrize("name", [*NAMES, "nothing", "nothing.py", "gymnasium/nothing", "nothing:Id-v0"])
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_takes_a_name_or_none_does(command, name, capsys):
    with socket.socket() as taken:  # no server begins, but what it is to offer is read before
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        try:
            status = main([word.replace("NAME", name).replace("PORT", port) for word in COMMANDS[command]])
        except SystemExit as end:  # train --print-config
            status = end.code
    text = "".join(capsys.readouterr())
    refused = any(words in text for words in REFUSALS)
    if name in NAMES:
        assert not refused and resolve_id(name) == NAMES[name] and "Traceback" not in text, text
    elif (command, name) != ("train", "nothing"):  # a run's configuration may be read where the package is not
        assert refused and status == 2, text


@pytest.mark.parametrize("name", NAMES)
def test_settings_have_the_id_that_a_name_stands_for(name):
    from trainers.rollout.config import EnvConfig

    assert EnvConfig(id=name).id == ImitateConfig(env=name).env == NAMES[name]


def test_an_abbreviation_leads_to_its_setting():
    assert nearest("learning_rate", ["learner", "lr", "rate"])[0] == "lr"
    assert nearest("--optim.learning_rate", ["--optim.learn", "--optim.lr"])[0] == "--optim.lr"
    assert nearest("lr", ["learning_rate", "lx"])[0] == "learning_rate"
    with pytest.raises(EnvsuiteError, match=r"nearest is --optim\.lr"):
        over(TrainConfig, {}, [("--optim.learning_rate", "1")])


def test_a_list_of_names_can_be_taken_apart():
    text = str(unknown("policy", "x", ["a, b", "c", "it's"]))
    assert text.endswith("""Known: 'a, b', c, "it's\"""") and str(unknown("player", "x", [])).endswith("Known: none")


@pytest.mark.parametrize(
    "text",
    ["optim: {lr: 1}\nname: a\noptim: {b: 3}\n", "optim: {lr: 1,\n  b: 2, lr: 2}\n", "envs:\n- id: a\n  id: b\n"],
)
def test_a_key_of_yaml_given_twice_is_refused_with_its_line(text):
    Path("twice.yaml").write_text(text)
    with pytest.raises(EnvsuiteError, match=r"twice\.yaml, line [23]: \w+ is given twice, first in line [12]"):
        read_file("twice.yaml")
    Path("once.yaml").write_text("a: &x {b: 1}\nc:\n  <<: *x\n  b: 2\n")
    assert merge(read_file("once.yaml"), {})["c"] == {"b": 2}
    with pytest.raises(EnvsuiteError, match="--envs, line 1: id is given twice"):
        over(TrainConfig, {}, [("--envs", "[{id: a, id: b}]")])


def test_a_key_of_json_given_twice_is_refused_with_its_line(capsys):
    with pytest.raises(UsageError, match=r"own\.json, line 2: server is given twice"):
        read_json('{"server": "x",\n "server": "y"}', "own.json")
    assert read_json('[{"a": 1}, {"a": 2}]', "own.json") == [{"a": 1}, {"a": 2}]
    Path("x.json").write_text('{"server": "x",\n "server": "y"}')
    assert main(["envs", "tasks", "openenv/x"]) == 2
    assert main(["eval", "run", "textcraft", "--policy", "random", "--option", 'a={"b": 1, "b": 2}']) == 2
    assert capsys.readouterr().err.count("is given twice") == 2


def test_broken_episodes_tell_their_reason(capsys):
    assert main(["eval", "run", "lock.py", "--policy", "random", "--split", "train", "--out", "out"]) == 3
    assert "of them by: KeyError: 'no such word' (in say of lock.py, line " in capsys.readouterr().err
