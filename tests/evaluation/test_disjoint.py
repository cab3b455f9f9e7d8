"""No task of training is in a split for evaluation, by id and by content.

What is found in data of others that is not so is stated with its number, here and in ``docs/panels.md``.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Hashable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium
import orjson
import pytest

from envsuite.core import ToolEnv
from envsuite.core.registration import builtin
from envsuite.evaluation.panels import Panel, PanelTask, panel_of, shipped_panel
from envsuite.evaluation.panels.files import shipped_splits
from envsuite.sokoban.level import read_level

Key = Callable[[PanelTask], Hashable]
IDS = [spec.id for spec in builtin()]


def board(pieces: bool) -> Key:
    """The board, or its walls and targets alone, whichever way it is turned or mirrored."""
    return lambda task: read_level(task.identity["board"].split("\n"), task.task_id).canonical(pieces)


def words(task: PanelTask) -> tuple[str, ...]:
    return tuple(re.findall(r"\w+", task.goal.lower()))


def unpriced(task: PanelTask) -> str:
    return task.goal.partition(", and price lower than")[0]


def pair(task: PanelTask) -> tuple[str, str]:
    return task.identity["asin"], task.goal


def lines_of_cars(task: PanelTask) -> tuple[str, ...]:
    """Letter, line and length of every car, wherever on its line it stands."""
    board = task.identity["rows"]
    lines = enumerate([*board, *map("".join, zip(*board, strict=True))])
    return tuple(sorted(f"{number} {run[0]}" for number, line in lines for run in re.finditer(r"(\w)\1+", line)))


CONTENT: Mapping[str, Mapping[str, Key]] = {
    "TextCraft-v0": {
        "goal item": lambda task: task.identity["item"],
        "recipes": lambda task: task.identity["recipes_sha256"],
        "instruction": words,
    },
    "ALFWorld-v0": {
        "game": lambda task: task.identity["game_sha256"],
        "trajectory": lambda task: task.identity["traj_data_sha256"],
    },
    "WebShop-v0": {
        "product": lambda task: task.identity["asin"],
        "product and instruction": pair,
        "instruction": words,
        "instruction without price": unpriced,
    },
    "PaperSearch-v0": {"instruction": words, "gold papers": lambda task: task.identity["gold_sha256"]},
    "PaperSearchTeam-v0": {"instruction": words, "gold papers": lambda task: task.identity["gold_sha256"]},
    "Bifurcation-v0": {"walk": lambda task: tuple(task.identity["places"])},
    "Sokoban-v0": {"board": board(True), "walls and targets": board(False)},
    "PythonMath-v0": {"problem": words, "problem and answer": lambda task: task.identity["sha256"]},
    "SearchQA-v0": {"question": words, "question and answers": lambda task: task.identity["sha256"]},
    "BFCL-v0": {
        "scenario": lambda task: task.identity["number"],
        "requests": lambda task: task.identity["requests_sha256"],
        "answers": lambda task: task.identity["answers_sha256"],
    },
    "TextWorld-v0": {"game": lambda task: task.identity["content_sha256"], "seed": lambda task: task.identity["seed"]},
    "BabyAI-v0": {"world": lambda task: task.identity["world_sha256"], "seed": lambda task: task.identity["seed"]},
    "Wordle-v0": {"word": lambda task: task.identity["word_sha256"]},
    "Countdown-v0": {"target and numbers": lambda task: (task.identity["target"], *task.identity["numbers"])},
    "TextFrozenLake-v0": {"map": lambda task: task.identity["map"]},
    "Game2048-v0": {"tiles": lambda task: tuple(task.identity["tiles"])},
    "RushHour-v0": {"board": lambda task: tuple(task.identity["rows"]), "cars and lines": lines_of_cars},
}
"""What the splits of each built-in source have none in common of."""


def shared_by(panels: Mapping[str, Panel], key: Key) -> dict[str, int]:
    """Number of contents that two splits have in common, for each two that have any."""
    keys = {split: {key(task) for task in panel.tasks} for split, panel in panels.items()}
    counts = {f"{one} & {other}": len(keys[one] & keys[other]) for one, other in itertools.combinations(keys, 2)}
    return {splits: count for splits, count in counts.items() if count}


@cache
def builtin(env_id: str) -> dict[str, Panel]:
    return {split: shipped_panel(env_id, split) for split in shipped_splits()[env_id]}


def played(env_id: str, source: Path, **arguments: Any) -> tuple[ToolEnv, dict[str, Panel]]:
    env = gymnasium.make(env_id, disable_env_checker=True, source=str(source), split=None, **arguments).unwrapped
    assert isinstance(env, ToolEnv)
    return env, {split: panel_of(env, split) for split in env.tasks.splits}


def test_every_environment_says_what_no_two_splits_share():
    assert [*CONTENT.keys() ^ set(IDS)] == [], "enter what its identity() tells apart into CONTENT"


@pytest.mark.parametrize(
    ("env_id", "what"), [(env_id, what) for env_id, content in CONTENT.items() for what in content]
)
def test_no_content_is_in_two_built_in_splits(env_id, what):
    assert shared_by(builtin(env_id), CONTENT[env_id][what]) == {}


def contents(root: Path) -> Key:
    """A game's scene, start and goal: its problem's lines in any order, without the name of the trial."""

    def key(task: PanelTask) -> Hashable:
        problem = orjson.loads((root / task.identity["game"]).read_bytes())["pddl_problem"]
        return frozenset(line.strip() for line in problem.split("\n") if "(problem" not in line)

    return key


def task_and_scene(task: PanelTask) -> str:
    """Folder of the task: family, object, receptacle and scene."""
    return str(task.identity["task"])


def scene(task: PanelTask) -> str:
    return task_and_scene(task).rpartition("-")[2]


def test_no_built_in_game_starts_like_one_of_training():
    env = gymnasium.make("ALFWorld-v0", disable_env_checker=True, source="builtin", split=None).unwrapped
    assert shared_by(builtin("ALFWorld-v0"), contents(env.games.root.parent)) == {}  # type: ignore[attr-defined]


def test_rooms_of_training_are_seen_or_unseen_as_the_splits_say():
    """As in ALFRED: ``valid_seen`` has rooms of training, some with a task of training and other places of objects."""
    panels = builtin("ALFWorld-v0")
    assert shared_by(panels, scene) == {"train & valid_seen": 43}
    assert shared_by(panels, task_and_scene) == {"train & valid_seen": 8}


def test_the_published_recipes_give_disjoint_goals(shared):
    env, panels = played("TextCraft-v0", shared / "data" / "textcraft")
    assert all(shared_by(panels, key) == {} for key in CONTENT["TextCraft-v0"].values())
    needing = {}
    for name, (book, split) in {
        "official": (env.book, panels),  # type: ignore[attr-defined]
        "builtin": (gymnasium.make("TextCraft-v0", split=None).unwrapped.book, builtin("TextCraft-v0")),  # type: ignore[attr-defined]
    }.items():
        train = {task.identity["item"] for task in split["train"].tasks}
        made = [{recipe.output for recipe in book.needed_recipes(t.identity["item"])} for t in split["test"].tasks]
        needing[name] = (sum(bool(items & train) for items in made), len(made))
    assert needing == {"official": (38, 210), "builtin": (40, 211)}, "goals of test whose parts are goals of training"


def test_published_levels_are_disjoint_even_when_turned(shared):
    _, panels = played("Sokoban-v0", shared / "data" / "sokoban")
    assert [len(panels[split].tasks) for split in ("train", "validation", "test")] == [2000, 1000, 0]
    assert all(shared_by(panels, key) == {} for key in CONTENT["Sokoban-v0"].values())


def test_published_problems_are_disjoint_and_repeat_within_training(shared):
    _, panels = played("PythonMath-v0", shared / "data" / "mathematics")
    assert [len(panels[split].tasks) for split in ("train", "validation", "test")] == [1978, 0, 530]
    assert all(shared_by(panels, key) == {} for key in CONTENT["PythonMath-v0"].values())
    assert len({words(task) for task in panels["train"].tasks}) == 1978 - 8, "of DAPO, alike but for marks"


def test_published_games_are_disjoint_and_share_tasks(games_root):
    """Of train, 200 games are there (valid_train), so the numbers are at least these."""
    env, panels = played("ALFWorld-v0", games_root)
    assert {split: len(panel.tasks) for split, panel in panels.items()} == {"valid_seen": 140, "valid_train": 200}
    for key in (*CONTENT["ALFWorld-v0"].values(), contents(games_root)):
        assert shared_by(panels, key) == {}
    assert shared_by(panels, task_and_scene) == {"valid_seen & valid_train": 17}
    for task in panels["valid_seen"].tasks[::14]:
        assert env.reset(options={"task_id": task.task_id})[0]["task"] == task.goal


@pytest.mark.seconds
def test_published_goals_of_the_small_shop_are_not_disjoint(shared):
    """One goal of dev is a goal of training word for word; most products are targets in both."""
    _, panels = played("WebShop-v0", shared / "data" / "webshop", goals="synthetic")
    assert {split: len(panel.tasks) for split, panel in panels.items()} == {"dev": 500, "train": 6410}
    assert shared_by(panels, lambda task: task.task_id) == {}
    found = {what: shared_by(panels, key).get("dev & train", 0) for what, key in CONTENT["WebShop-v0"].items()}
    assert found == {
        "product": 127, "product and instruction": 1, "instruction": 3, "instruction without price": 9,
    }  # fmt: skip
    targets = {task.identity["asin"] for task in panels["train"].tasks}
    assert sum(task.identity["asin"] in targets for task in panels["dev"].tasks) == 481
