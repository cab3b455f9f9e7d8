"""Environments of other packages keep the contract, and are what the packages themselves play."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from adapted import called, made
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Text, Tuple
from hypothesis import given
from hypothesis import strategies as st

import envsuite
from envsuite.adapters.gymnasium import schema_of, value_of, written_of
from envsuite.cli import main
from envsuite.core import DataError, MissingExtra, Tool, ToolCall, UnknownName, UsageError
from envsuite.core.functions import draw_value
from envsuite.core.naming import spec_of
from envsuite.core.registration import EnvSpec
from envsuite.core.schemas import object_schema
from envsuite.remote.making import make_player, unknown_player
from envsuite.testing import checks


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("package", "env_id"),
    [
        ("gymnasium", "gymnasium/FrozenLake-v1"),
        ("gymnasium", "gymnasium/Blackjack-v1"),
        ("gymnasium", "gymnasium/Pendulum-v1"),
        *(("gymnasium", f"gymnasium/shelf:Shelf-{kind}-v0") for kind in ("dict", "tuple", "vector")),
        ("reasoning_gym", "reasoning_gym/chain_sum"),
        ("reasoning_gym", "reasoning_gym/ransom_note"),  # its questions depend on the seed of Python's hashes
        ("textarena", "textarena/GuessTheNumber-v0"),
        ("textarena", "textarena/TowerOfHanoi-v0"),
        ("textarena", "textarena/Countdown-v0"),
        ("gem", "gem/game.GuessTheNumber-v0-easy"),
        ("pettingzoo", "pettingzoo/nim"),
    ],
)
def test_they_keep_the_contract(package, env_id, monkeypatch):
    monkeypatch.chdir(Path(__file__).parent)  # where shelf.py is
    pytest.importorskip(package, reason=f"needs the package: pip install 'envsuite[{package.replace('_', '-')}]'")
    for check in checks(env_id):
        check()


def test_frozen_lake_is_gymnasiums():
    names = ["left", "down", "right", "up"]
    env = made("gymnasium/FrozenLake-v1", actions=names, settings={"is_slippery": False}, goal="Reach G.")
    own = gymnasium.make("FrozenLake-v1", is_slippery=False)
    assert env.spec.max_episode_steps == own.spec.max_episode_steps == 100  # type: ignore[union-attr]
    seen, _ = env.reset(options={"task_id": "seed-3"})
    own.reset(seed=3)
    assert (seen["task"], seen["text"].splitlines()[-4:]) == ("Reach G.", ["[S]FFF", "FHFH", "FFFH", "HFFG"])
    for name in ["down", "down", "right", "right", "down", "right"]:
        seen, *result, info = env.step([ToolCall("act", {"action": name})])
        place, *wanted, _ = own.step(names.index(name))
        assert result == wanted
        board = "".join(seen["text"].splitlines()[-4:])
        assert board.replace("]", "").index("[") == place
    assert result == [1.0, True, False] and info["success"] and seen["text"].endswith("HFF[G]")


def test_values_are_shown_where_there_is_no_text():
    env, own = made("gymnasium/Blackjack-v1"), gymnasium.make("Blackjack-v1")
    seen, _ = env.reset(options={"task_id": "seed-7"})
    assert seen["text"] == str([int(value) for value in own.reset(seed=7)[0]])
    assert seen["task"].startswith("Blackjack is a card game")


def test_parts_of_actions_are_arguments_and_parts_of_observations_are_lines():
    env = made("gymnasium/shelf:Shelf-dict-v0")
    seen, _ = env.reset(options={"task_id": "seed-5"})
    place = np.random.Generator(np.random.PCG64(np.random.SeedSequence(5))).integers([3, 4]).tolist()
    assert seen["text"] == f"place: {place}\nlight: [0.1]\npair: [1, 2]"
    arguments = {"place": place, "lamp": [0, 1], "force": [0.5, 1], "book": 5}
    for wrong in ({"book": 6}, {"place": [3, 0]}, {"place": [0]}, {"lamp": [0, 2]}, {"force": [0.5, 1.1]}, {"lid": 1}):
        assert not called(env, "act", **{**arguments, **wrong})[-1]["valid"]
    seen, *result, info = called(env, "act", **arguments)
    assert result == [1.0, True, False] and info["success"]


@pytest.mark.parametrize(
    ("env_id", "how"),
    [
        ("lock.py", "write @env.expert above a function"),
        ("gymnasium/CartPole-v1", r"write a method expert\(self\) into its class"),
        (
            "textarena/Wordle-v0",
            r"play it yourself \(envsuite play textarena/Wordle-v0 --save mine.jsonl\), or let",
        ),
        ("Bare-v0", r"write players=\{'expert': 'module:Class'\} in its EnvSpec"),
    ],
)
def test_where_there_is_no_expert_it_is_said_what_to_do_instead(env_id, how):
    assert re.search(f"^{env_id} has no expert; {how}", str(unknown_player(EnvSpec(env_id, "a:B", 5), "expert", ())))


def test_the_version_of_tasks_of_ones_own_class_is_that_of_its_file(monkeypatch):
    own, packaged = (made(name).unwrapped.tasks for name in ("gymnasium/shelf:Shelf-dict-v0", "gymnasium/Blackjack-v1"))
    monkeypatch.setattr(Path, "read_bytes", lambda path: b"other rules")
    other = made("gymnasium/shelf:Shelf-dict-v0").unwrapped.tasks
    assert own.version != other.version and own.hash != other.hash
    assert packaged.version == f"gymnasium-{gymnasium.__version__}"


def spaces_of() -> st.SearchStrategy[Space[Any]]:
    """Spaces of actions that JSON can write, one inside another."""
    counts, starts = st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(-5, 5)
    plain = st.one_of(
        st.builds(lambda n, start: Discrete(n, start=start), st.integers(1, 9), starts),
        st.builds(MultiDiscrete, counts),
        st.builds(MultiBinary, st.integers(1, 5)),
        st.builds(lambda low, n: Box(low, low + 2.5, (n,), np.float32), starts, st.integers(1, 3)),
    )
    return st.recursive(
        plain,
        lambda inner: st.one_of(
            st.lists(inner, min_size=1, max_size=3).map(Tuple),
            st.dictionaries(st.text("abc", min_size=1, max_size=3), inner, min_size=1, max_size=3).map(Dict),
        ),
        max_leaves=6,
    )


@given(spaces_of(), st.integers(0, 2**31))
def test_a_value_that_fits_the_schema_is_an_action_of_the_space(space, seed):
    form = schema_of(space)
    written = json.loads(json.dumps(draw_value(form, np.random.default_rng(seed))))
    assert Tool("act", "Acts.", object_schema({"action": form})).problem({"action": written}) is None
    assert space.contains(value_of(space, written))
    space.seed(seed)
    sample = written_of(space, space.sample())
    assert Tool("act", "Acts.", object_schema({"action": form})).problem({"action": sample}) is None
    assert written_of(space, value_of(space, json.loads(json.dumps(sample)))) == sample


@pytest.mark.parametrize("kind", ["dict", "tuple", "vector"])
def test_the_method_expert_of_a_class_is_the_player_of_that_name(kind, monkeypatch):
    monkeypatch.chdir(Path(__file__).parent)
    env_id = envsuite.register(f"gymnasium/shelf:Shelf-{kind}-v0")
    env, expert = gymnasium.make(env_id), make_player(env_id, "expert")
    for seed in range(5):
        env.reset(seed=seed)
        _, reward, *_ = env.step(expert.act(env))
        assert reward == 1.0


@pytest.mark.parametrize(
    "space", [Box(0, 1, (2, 2)), Box(-np.inf, 1, (2,)), MultiDiscrete([[2, 2]]), Text(3), Dict(a=Text(3))]
)
def test_a_space_that_json_cannot_write_has_no_schema(space):
    assert schema_of(space) == {}


@pytest.mark.parametrize(
    ("env_id", "options", "problem"),
    [
        ("gymnasium/FrozenLke-v1", {}, "unknown environment of gymnasium 'FrozenLke-v1'. Nearest: 'FrozenLake-v1'"),
        (
            "gymnasium/Pendulum-v1",
            {"actions": ["a"]},
            "actions names discrete ones; those of gymnasium/Pendulum-v1 are Box",
        ),
        ("gymnasium/FrozenLake-v1", {"actions": ["a", "b"]}, "has 4 actions; actions names 2 of them"),
        ("gymnasium/FrozenLake-v1", {"train": 0}, "train=0: expected whole number from 1"),
        ("gymnasium/FrozenLake-v1", {"sed": 0}, "unknown argument of gymnasium/FrozenLake-v1 'sed'"),
        ("gymnasium/", {}, "unknown environment 'gymnasium/'"),
        ("another/thing", {}, "unknown environment 'another/thing'"),
    ],
)
def test_what_is_wrong_is_told(env_id, options, problem):
    with pytest.raises((UnknownName, UsageError)) as told:
        made(env_id, **options)
    assert problem in str(told.value)


def test_a_package_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "textarena.envs.registration", None)
    with pytest.raises(MissingExtra, match="pip install textarena"):
        spec_of("textarena/Chess-v0")


@pytest.mark.seconds
def test_commands_and_processes_take_the_name(capsys, tmp_path):
    command = ["eval", "run", "gymnasium/CliffWalking-v1", "--policy", "random", "--seeds", "1", "--sample", "3"]
    assert main([*command, "--workers", "2", "--steps", "9", "--out", str(tmp_path)]) == 0
    assert "3 of 3 episodes" in capsys.readouterr().err


def test_a_question_of_reasoning_gym_is_the_packages():
    package: Any = pytest.importorskip("reasoning_gym", reason="needs: pip install 'envsuite[reasoning-gym]'")
    questions = package.create_dataset("chain_sum", size=12, seed=5, min_terms=3)
    env = made("reasoning_gym/chain_sum", train=10, test=2, seed=5, settings={"min_terms": 3})
    for number in (0, 11):
        entry = questions[number]
        for text, score in ((entry["answer"], 1.0), ("none", questions.score_answer("none", entry))):
            seen, info = env.reset(options={"task_id": f"seed-{number}"})
            assert seen["task"] == entry["question"] and info["split"] == ("train" if number < 10 else "test")
            _, reward, ended, _, info = env.step([ToolCall("answer", {"text": text})])
            assert (reward, ended, info["success"]) == (score, True, score >= 1)


def test_a_game_of_textarena_is_the_packages():
    arena: Any = pytest.importorskip("textarena", reason="needs: pip install 'envsuite[textarena]'")
    random.seed(4)
    own = arena.make("GuessTheNumber-v0-raw")
    own.reset(num_players=1, seed=4)
    _, ((_, goal, _),) = own.get_observation()
    env = made("textarena/GuessTheNumber-v0")
    seen, _ = env.reset(options={"task_id": "seed-4"})
    assert seen["task"] == goal and seen["text"] == ""
    for guess in range(1, 21):
        seen, reward, ended, _, info = env.step([ToolCall("say", {"text": f"[{guess}]"})])
        done, _ = own.step(f"[{guess}]")
        if done:
            rewards, _ = own.close()
            break
        assert seen["text"] == [text for speaker, text, *_ in own.get_observation()[1] if speaker < 0][-1]
    assert (reward, ended, info["success"]) == (rewards[0], True, rewards[0] > 0)


def test_a_game_for_several_is_refused():
    pytest.importorskip("textarena", reason="needs: pip install 'envsuite[textarena]'")
    env = made("textarena/TicTacToe-v0")
    with pytest.raises((UsageError, DataError), match="textarena/TicTacToe-v0 is not a game for one player"):
        env.reset(seed=0)
