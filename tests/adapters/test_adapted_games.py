"""Games of PettingZoo and GEM are what the packages play."""

import random
from typing import Any

import pytest
from adapted import called, made

from envsuite.adapters.base import words_missing
from envsuite.core import MissingExtra, UnknownName, UsageError


def test_agents_take_turns_and_each_earns_its_own():
    env = made("pettingzoo/nim", goal="Take the last stick.")
    assert env.unwrapped.agents == {"first": ("act",), "second": ("act",)}
    seen, info = env.reset(options={"task_id": "seed-1"})
    assert (seen["task"], seen["text"], seen["commands"]) == (
        "Take the last stick.", "You are first.\nsticks 5", ("1", "2", "3")
    )  # fmt: skip
    assert (info["agent"], info["rewards"]) == ("first", {"first": 0.0, "second": 0.0})
    seen, _, _, _, info = called(env, "act", action=3)
    assert (seen["text"], seen["commands"], info["agent"]) == ("You are second.\nsticks 2", ("1", "2"), "second")
    refused, reward, ended, _, info = called(env, "act", action=3)
    assert (reward, ended, info["agent"]) == (0.0, False, "second")
    assert refused["commands"] == ("1", "2") and info["error"] == "the action 3 is not possible now"
    _, reward, ended, cut, info = called(env, "act", action=2)
    assert (reward, ended, cut, info["success"]) == (0.0, True, False, False)
    assert info["rewards"] == {"first": -1.0, "second": 1.0}


def test_the_first_agent_solves_the_task_and_an_end_by_patience_is_truncated():
    env = made("pettingzoo/nim", settings={"words": True, "patience": 2})
    assert env.unwrapped.tools[0].parameters["properties"]["action"] == {
        "type": "string", "minLength": 1, "maxLength": 3
    }  # fmt: skip
    env.reset(options={"task_id": "seed-0"})
    assert called(env, "act", action="xx")[4]["error"] == "the action 'xx' is not possible now"
    called(env, "act", action="I")
    *_, ended, cut, info = called(env, "act", action="I")
    assert (ended, cut, info["success"]) == (False, True, False)
    won = made("pettingzoo/nim")
    won.reset(options={"task_id": "seed-0"})
    for number in (1, 1, 2):
        *_, info = called(won, "act", action=number)
    assert info["success"] and info["score"] == 1.0


def test_a_board_of_pettingzoo_is_shown_from_the_side_of_the_agent():
    pytest.importorskip("pygame", reason="needs: pip install 'pettingzoo[classic]'")
    env = made("pettingzoo/classic.tictactoe_v3")
    env.reset(seed=0)
    called(env, "act", action=4)
    seen, *_ = called(env, "act", action=0)
    assert seen["text"] == "You are player_1.\n2..\n.1.\n..." and seen["commands"] == tuple("1235678")


@pytest.mark.parametrize(
    ("env_id", "options", "problem"),
    [
        ("pettingzoo/classic.tictactoe", {}, "Nearest: 'classic.tictactoe_v3'"),
        ("pettingzoo/no_such_module", {}, "unknown environment of pettingzoo 'no_such_module'"),
        ("pettingzoo/nim", {"settings": {"sticks": 3}}, "cannot be made with {'sticks': 3}"),
        ("pettingzoo/classic.hanabi_v5", {}, "Hanabi depends on OpenSpiel"),
    ],
)
def test_what_is_wrong_with_a_game_is_told(env_id, options, problem):
    with pytest.raises((UnknownName, UsageError, MissingExtra)) as told:
        made(env_id, **options)
    assert problem in str(told.value)


def test_a_game_of_gem_is_the_packages():
    gem: Any = pytest.importorskip("gem", reason="needs the package: pip install gem-llm")
    random.seed(4)
    own = gem.make("game:GuessTheNumber-v0-random")
    goal, about = own.reset(seed=4)
    env, ended = made("gem/game.GuessTheNumber-v0-random"), False
    seen, _ = env.reset(options={"task_id": "seed-4"})
    assert (seen["task"], seen["text"]) == (goal, about["suffix"])
    guess = 0
    while not ended:
        guess += 1
        text, reward, *_ = own.step(rf"\boxed{{{guess}}}")
        seen, earned, ended, _, info = called(env, "say", text=rf"\boxed{{{guess}}}")
        assert seen["text"].startswith(text) and earned == reward
    assert info["success"] == (reward >= 1)


def test_words_that_a_game_does_not_find_are_told_as_a_command():
    told = LookupError("\n***\n  Resource \x1b[93mwords\x1b[0m not found.\n  >>> nltk.download('words')\n")
    assert str(words_missing("gem/x", told)) == "gem/x reads words of NLTK: python -m nltk.downloader words"
    assert words_missing("gem/x", other := KeyError("y")) is other
