"""Generated games on the engines, and next to the benchmark's own."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from envsuite.alfworld.engine import GameEngine
from envsuite.alfworld.families import FAMILIES
from envsuite.alfworld.game_writer import template
from envsuite.alfworld.generate import DEFAULT, SPLITS, ensure, make
from envsuite.alfworld.pool import ReferencePool
from envsuite.alfworld.reference import TextWorldEngine
from envsuite.alfworld.scenes import SceneDifficulty
from envsuite.alfworld.vocabulary import FIXED
from envsuite.alfworld.world import NativeEngine

SMALL = SceneDifficulty(receptacles=30, things=40)
needs_reference = pytest.mark.skipif(not find_spec("jericho"), reason='needs "envsuite[alfworld-reference]"')


@pytest.fixture(scope="module")
def reference() -> Iterator[TextWorldEngine]:
    pool = ReferencePool(workers=2)
    yield TextWorldEngine(pool)
    pool.close()


def written(folder: Path, index: int, difficulty: SceneDifficulty = DEFAULT) -> Path:
    made = make(0, SPLITS[index // len(FAMILIES) % len(SPLITS)], index, difficulty)
    target = folder / made.path
    target.mkdir(parents=True)
    (target / "traj_data.json").write_text(made.record)
    (target / "game.tw-pddl").write_text(made.game)
    return target / "game.tw-pddl"


def same_play(engines: tuple[GameEngine, GameEngine], paths: tuple[Path, Path], seed: int, steps: int) -> None:
    """Play the same random commands on both, with a taste for those that change something."""
    draw = random.Random(seed)
    games = [engine.open(path) for engine, path in zip(engines, paths, strict=True)]
    turns = [game.reset() for game in games]
    for _ in range(steps):
        assert turns[0] == turns[1]
        commands = [c for c in turns[0].commands if not c.startswith("go to")] if draw.random() < 0.6 else []
        command = "open the door" if draw.random() < 0.05 else draw.choice(commands or turns[0].commands)
        turns = [game.step(command) for game in games]
    for game in games:
        game.close()


@needs_reference
@pytest.mark.parametrize(
    ("index", "difficulty"),
    [(1, SMALL), (3, SMALL), (5, SMALL), *(pytest.param(one, DEFAULT, marks=pytest.mark.slow) for one in range(60))],
)
def test_walkthroughs_win_on_the_reference_engine(reference, index, difficulty, tmp_path):
    path = written(tmp_path, index, difficulty)
    game = reference.open(path)
    turn = game.reset()
    for command in json.loads(path.read_bytes())["walkthrough"]:
        assert not turn.won and command in turn.commands
        turn = game.step(command)
    game.close()
    assert turn.won


@pytest.mark.slow
@needs_reference
@pytest.mark.parametrize("index", range(12))
def test_both_engines_play_a_generated_game_alike(reference, index, tmp_path):
    path = written(tmp_path, index, SMALL)
    same_play((reference, NativeEngine()), (path, path), index, 60)


def rewritten(path: Path, folder: Path) -> Path:
    """A game of the benchmark's with our domain and grammar."""
    game = json.loads(path.read_bytes())
    task = game["grammar"].split("Your task is to: ", 1)[1].split('"', 1)[0]
    game["pddl_domain"] = template("domain.pddl")
    game["grammar"] = template("grammar.twl2").replace("THE TASK", task)
    (folder / "game.tw-pddl").write_text(json.dumps(game))
    return folder / "game.tw-pddl"


def real_games(root: Path, number: int) -> list[Path]:
    return random.Random(0).sample(sorted(root.glob("json_2.1.1/*/*/*/game.tw-pddl")), number)


def test_our_domain_and_grammar_play_the_benchmarks_games_as_its_own_do(games_root, tmp_path):
    engine = NativeEngine()
    for seed, path in enumerate(real_games(games_root, 6)):
        same_play((engine, NativeEngine()), (path, rewritten(path, tmp_path)), seed, 200)


@pytest.mark.slow
@needs_reference
def test_they_do_so_on_the_reference_engine(games_root, tmp_path, reference):
    for seed, path in enumerate(real_games(games_root, 6)):
        same_play((reference, reference), (path, rewritten(path, tmp_path)), seed, 60)


@needs_reference
def test_alfworld_itself_finds_every_game(tmp_path):
    from alfworld.agents.environment.alfred_tw_env import AlfredTWEnv

    folder = ensure(tmp_path, 0, 18) / "json_2.1.1"
    data = {"data_path": "train", "eval_id_data_path": "valid_seen", "eval_ood_data_path": "valid_unseen"}
    config = {
        "env": {"goal_desc_human_anns_prob": 0, "task_types": [1, 2, 3, 4, 5, 6]},
        "dataset": {"num_train_games": -1, "num_eval_games": -1} | {key: str(folder / s) for key, s in data.items()},
    }
    for part in ("train", "eval_in_distribution", "eval_out_of_distribution"):
        assert AlfredTWEnv(config, train_eval=part).num_games == 6


ROOMS = {"kitchen": 0, "living room": 2, "bedroom": 3, "bathroom": 4}
REAL_ROOMS = {
    "kitchen": {"receptacles": 34.0, "things": 53.8, "portable": 44.4, "behind doors": 28.8},
    "living room": {"receptacles": 16.3, "things": 33.7, "portable": 21.2, "behind doors": 3.9},
    "bedroom": {"receptacles": 14.7, "things": 32.5, "portable": 23.7, "behind doors": 11.9},
    "bathroom": {"receptacles": 13.9, "things": 24.3, "portable": 17.8, "behind doors": 17.3},
}
REAL_FAMILIES = {
    "pick_and_place_simple": {"walkthrough": 4.2, "goal things": 2.2, "behind doors": 13.1},
    "look_at_obj_in_light": {"walkthrough": 3.5, "goal things": 2.4, "behind doors": 6.5},
    "pick_clean_then_place_in_recep": {"walkthrough": 6.3, "goal things": 2.4, "behind doors": 19.3},
    "pick_heat_then_place_in_recep": {"walkthrough": 6.4, "goal things": 2.4, "behind doors": 38.2},
    "pick_cool_then_place_in_recep": {"walkthrough": 6.2, "goal things": 1.6, "behind doors": 13.5},
    "pick_two_obj_and_place": {"walkthrough": 8.1, "goal things": 2.9, "behind doors": 4.7},
}
"""Means over the 340 games of the benchmark that were looked at; things behind doors in percent."""


def measured(index: int) -> Iterator[tuple[str, dict[str, float]]]:
    """What is compared, of one game: for its kind of room, and for its family."""
    made = make(index // 6 % 6, "train", index)  # the family comes from what is left of the index
    game, record = json.loads(made.game), json.loads(made.record)
    of: dict[str, list[Any]] = defaultdict(list)
    for line in game["pddl_problem"].split("(:init")[1].split("(:goal")[0].split("\n"):
        predicate, *ids = line.strip(" ()").split() or [""]
        of[predicate].append(ids)
    kinds = {i: kind.removesuffix("Type") for i, kind in of["objectType"]}
    doors = {i for (i,) in of["openable"]}
    hidden = {i for i, host in of["inReceptacle"] if host in doors}
    portable = [i for i, kind in kinds.items() if kind not in FIXED]
    goal = [i for i, kind in kinds.items() if kind == record["pddl_params"]["object_target"]]
    room = next(name for name, number in ROOMS.items() if number == record["scene"]["scene_num"] // 100)
    figures: dict[str, float] = {"receptacles": len(of["receptacleType"]), "things": len(kinds)}
    yield room, {**figures, "portable": len(portable), "behind doors": 100 * mean(i in hidden for i in portable)}
    figures = {"walkthrough": len(game["walkthrough"]), "goal things": len(goal)}
    yield record["task_type"], {**figures, "behind doors": 100 * mean(i in hidden for i in goal)}


@pytest.mark.seconds
def test_rooms_and_tasks_are_in_numbers_like_the_benchmarks():
    samples: dict[str, list[dict[str, float]]] = defaultdict(list)
    for index in range(360):
        for name, figures in measured(index):
            samples[name].append(figures)
    for name, figures in (REAL_ROOMS | REAL_FAMILIES).items():
        for what, real in figures.items():
            ours = mean(sample[what] for sample in samples[name])
            near = pytest.approx(real, abs=7) if what == "behind doors" else pytest.approx(real, rel=0.15)
            assert ours == near, (name, what, ours)
