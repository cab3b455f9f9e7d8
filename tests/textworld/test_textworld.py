"""TextWorld-v0 plays as the package does, says what its compiled games say, and makes each game everywhere alike."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("textworld") is None:
    pytest.skip("needs textworld: pip install --no-deps textworld==1.7.0", allow_module_level=True)

from envsuite import testing
from envsuite.core import ToolCall, UsageError
from envsuite.testing import Check
from envsuite.textworld import package
from envsuite.textworld.env import TextWorld
from envsuite.textworld.expert import TextWorldExpert
from envsuite.textworld.package import make_game, textworld
from envsuite.textworld.tasks import find_game
from envsuite.textworld.world import TextGame

QUICK = ("custom/w2-o3-q4", "coin/5", "treasure/5", "cooking/recipe1+take1+cook+cut+open+go6")
LEVELS = (
    *QUICK, "custom/w4-o6-q8", "custom/w6-o12-q6", "coin/103", "treasure/12",
    "cooking/recipe2+take1+go1", "cooking/recipe3+take3+cook+cut+open+go9",
)  # fmt: skip
has_jericho = pytest.mark.skipif(
    importlib.util.find_spec("jericho") is None,
    reason="needs jericho, which is compiled: pip install --no-deps jericho",
)


def act(command: str) -> tuple[ToolCall, ...]:
    return (ToolCall("act", {"command": command}),)


def begun(level: str, number: int, **options: Any) -> TextWorld:
    env = TextWorld(level=level, **options)
    env.reset(options={"task_id": f"{level}/{number}"})
    return env


def command_of(game: TextGame, draw: random.Random) -> str:
    """Two of five commands lead to the end, the others are random ones, and some no commands."""
    return game.advise()[0] if draw.random() < 0.4 else draw.choice([*game.commands, "dance with fridge"])


def plays_as_the_package(level: str, number: int, folder: Path) -> int:
    """Plays up to 50 steps beside the package's own environment of a saved game; returns the steps."""
    env, draw, steps = begun(level, number, reward="intermediate"), random.Random(number), 0
    env.game.game.save(str(folder / "game.json"))
    wanted = textworld.EnvInfos(policy_commands=True, intermediate_reward=True, admissible_commands=True)
    plain = textworld.envs.tw.TextWorldEnv(wanted)
    plain.load(str(folder / "game.json"))
    state, text = plain.reset(), env.observation["text"]
    assert state["objective"] == env.observation["task"]
    while steps < 50 and not env.done:
        assert tuple(state["admissible_commands"]) == env.game.commands
        assert state["policy_commands"] == env.game.advise()
        command, steps = command_of(env.game, draw), steps + 1
        state, points, done = plain.step(command)
        seen, reward, terminated, _, info = env.step(act(command))
        assert info["score"] == points / state["max_score"] and terminated == done
        assert info["success"] == state["won"] and info["valid"] == (command != "dance with fridge")
        assert reward == (state["intermediate_reward"] if info["valid"] else 0)
        text = seen["text"] if info["valid"] else text
        assert (state["feedback"] == "Invalid command.") == (not info["valid"]) and text
    return steps


@pytest.mark.seconds
@pytest.mark.parametrize("level", QUICK)
def test_commands_scores_ends_and_rewards_are_those_of_the_package(level, tmp_path):
    assert plays_as_the_package(level, 0, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_20_games_of_50_steps_are_those_of_the_package(level, tmp_path):
    assert sum(plays_as_the_package(level, number, tmp_path) for number in range(20)) > 60


def said(feedback: str) -> str:
    """What a compiled game says: no banner, no status line, no note which of two things was meant, one empty line."""
    text = re.sub(r"\n>\s+-= [^\n]* =-[^\n]*\Z", "", feedback).split("\n\nWould you like to RESTART")[0]
    text = "\n".join(line.strip() for line in text.strip().split("\n"))
    text = re.sub(r"\n\n+", "\n\n", re.sub(r"\A\(the [^)]*\)\n", "", text))
    return re.sub(r"(\*\*\* (?:The End|You lost!) \*\*\*).*", r"\1", text, flags=re.DOTALL)


@has_jericho
@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_texts_are_those_of_compiled_games(level, tmp_path):
    """Until the package says that a game cannot be won, which the compiled one does not tell."""
    for seed in range(3):
        game, draw = make_game(level, seed, "train"), random.Random(seed)
        options = textworld.GameOptions()
        options.path = str(tmp_path / f"{seed}.z8")
        compiled = textworld.start(textworld.generator.compile_game(game, options))
        played, text = TextGame(game), said(compiled.reset().feedback)
        assert text.endswith(played.scene.room())
        for _ in range(50):
            command = played.advise()[0] if draw.random() < 0.4 else draw.choice(played.commands)
            ours, theirs = played.do(command), said(compiled.step(command)[0].feedback)
            if played.progress.failed and not theirs.endswith("*** You lost! ***"):
                break
            assert ours == theirs
            if played.progress.done:
                break


MADE_BY_THE_PACKAGE = """
import json, sys, textworld
from textworld.challenges import CHALLENGES
for name, settings in json.loads(sys.argv[1]):
    options = textworld.GameOptions()
    options.seeds = 7
    game = CHALLENGES[name][1]({"recipe_seed": 0, "split": "train", **settings}, options)
    print(json.dumps(game.serialize(), sort_keys=True))
"""


@has_jericho
@pytest.mark.slow
def test_games_with_a_walkthrough_are_those_that_the_package_makes_by_playing_compiled_ones():
    levels = [level for level in LEVELS if level.startswith(("coin", "cooking"))]
    command = [sys.executable, "-c", MADE_BY_THE_PACKAGE, json.dumps([package.read_level(level) for level in levels])]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    ours = [json.dumps(make_game(level, 7, "train").serialize(), sort_keys=True) for level in levels]
    assert [json.loads(line) for line in lines] == [json.loads(line) for line in ours]


DIGESTS = """
import sys
from envsuite.textworld.tasks import find_game
from envsuite.textworld.world import TextGame
for level in sys.argv[1:]:
    found = find_game(f"{level}/3", "train")
    game = TextGame(found.game)
    print(found.seed, found.content, found.game.objective, game.key(), game.advise(), game.scene.room(), game.commands)
    print([game.do(command) for command in game.advise()], game.key())
"""


@pytest.mark.seconds
def test_games_do_not_depend_on_the_hash_seed_of_the_process():
    runs = [
        subprocess.run(
            [sys.executable, "-c", DIGESTS, *QUICK], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True,
            text=True, check=True,
        ).stdout
        for seed in ("1", "2")
    ]  # fmt: skip
    assert runs[0] == runs[1] and len(runs[0]) > 3_000


@pytest.mark.seconds
@pytest.mark.parametrize("level", QUICK)
def test_the_expert_wins_and_goes_on_from_wherever_other_commands_have_led(level):
    for number in range(3):
        for stray in (0.0, 0.4):
            env, draw, steps = begun(level, number), random.Random(number), 0
            while not env.done and steps < 60:
                steps += 1
                harmless = [
                    command for command in env.game.commands if command.split()[0] in ("go", "look", "open", "drop")
                ]
                env.step(act(draw.choice(harmless)) if draw.random() < stray else TextWorldExpert().act(env))
            assert env.game.progress.completed, (level, number, stray)


def test_rewards_are_paid_at_the_end_or_for_points_or_for_each_step_on_the_way():
    paid = {}
    for reward in ("won", "score", "intermediate"):
        env, expert = begun("cooking/recipe1+take1+go1", 0, reward=reward), TextWorldExpert()
        paid[reward] = []
        while not env.done:
            paid[reward].append(env.step(expert.act(env))[1])
    assert paid["won"] == [*[0.0] * (len(paid["won"]) - 1), 1.0]
    assert sum(paid["score"]) == pytest.approx(1.0) and len([share for share in paid["score"] if share]) == 3
    assert paid["intermediate"][-1] == 1.0 and set(paid["intermediate"]) <= {0.0, 1.0}


def test_a_lost_game_ends_without_reward():
    env = begun("treasure/5", 0, reward="intermediate")
    quest = env.game.game.quests[0]
    wrong = next(fact.arguments[0].name for event in quest.fail_events for fact in event.condition.preconditions)
    name, draw, last = env.game.game.infos[wrong].name, random.Random(0), (0.0, {})
    for _ in range(500):
        take = [command for command in env.game.commands if command.startswith(f"take {name}")]
        walk = [command for command in env.game.commands if command.startswith("go")]
        seen, reward, terminated, _, info = env.step(act(draw.choice(take or walk)))
        last = (reward, info)
        if terminated:
            break
    assert last[0] == -1.0 and not last[1]["success"] and seen["text"].endswith("*** You lost! ***")


def test_a_command_that_is_not_admissible_changes_nothing_and_the_error_names_others():
    env = begun("custom/w2-o3-q4", 0)
    before = env.game.key()
    seen, _, _, _, info = env.step(act("looks"))
    assert seen["text"] == "Invalid command." and env.game.key() == before and not info["valid"]
    assert "nearest: 'look'" in info["error"]


@pytest.mark.parametrize("level", ["dungeon/3", "custom/w0-o3-q4", "custom/w2-o3", "coin/160", "treasure/30",
    "w2-o3-q4", "cooking/recipe1+take2+go1", "cooking/recipe2+drop+go1", "cooking/recipe1+go2"])  # fmt: skip
def test_a_level_that_does_not_exist_is_refused_in_one_line_with_those_that_do(level):
    with pytest.raises(UsageError, match=r"is no level of TextWorld-v0; there are: custom/w2-o3-q4") as caught:
        TextWorld(level=level)
    assert "\n" not in str(caught.value)


def test_a_level_whose_games_the_package_does_not_make_is_refused_in_one_line(monkeypatch):
    def fail(*_: Any) -> Any:
        raise package.QuestGenerationError("no quest of this length")

    monkeypatch.setattr("envsuite.textworld.tasks.make_game", fail)
    with pytest.raises(UsageError, match=r"makes no game of custom/w1-o1-q9/1 from 60 seeds .*no quest of this length"):
        find_game("custom/w1-o1-q9/1", "train")


@pytest.mark.seconds
def test_no_two_splits_of_a_level_of_few_games_share_one():
    level, contents = "coin/1", dict[str, set[str]]()
    for split, first in (("train", 0), ("validation", 400), ("test", 450)):
        contents[split] = {find_game(f"{level}/{first + number}", split).content for number in range(12)}
    assert not contents["train"] & contents["test"] and not contents["validation"] & (
        contents["train"] | contents["test"]
    )


def test_without_the_package_the_error_says_what_to_type_and_no_stand_in_stays():
    code = "import sys; sys.modules['textworld'] = None\nimport gymnasium, envsuite; gymnasium.make('TextWorld-v0')"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install --no-deps textworld==1.7.0" in run.stderr and "pip install 'envsuite[textworld]'" in run.stderr
    assert sys.modules.get("jericho") is not package.jericho


@pytest.mark.slow
def test_none_of_100_000_actions_raises():
    testing.any_actions(Check("TextWorld-v0", testing.any_actions), 100_000)
