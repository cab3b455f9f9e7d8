"""Games of ALFWorld that are generated: what they hold, and the folders that they are written to."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import until

from envsuite.alfworld.compiled import CompiledGame
from envsuite.alfworld.families import FAMILIES
from envsuite.alfworld.game_writer import display_names
from envsuite.alfworld.generate import MANIFEST, SPLITS, GameFiles, GameSet, ensure, main, make
from envsuite.alfworld.scenes import EDITION, PLANS, UNSEEN, SceneDifficulty, layouts
from envsuite.alfworld.vocabulary import CONTAINS, LAMP, ROOMS
from envsuite.alfworld.world import NativeGame
from envsuite.core.errors import UsageError
from envsuite.data.locks import try_locked

GOLDEN = {3: ["569e55ff", "55e8ad07", "592bd30a"]}
"""By edition: of the usual difficulty, of small bare rooms with decoys, and of large rooms where all is hidden."""

difficulties = st.one_of(
    st.just(SceneDifficulty()),
    st.builds(
        SceneDifficulty,
        st.sampled_from((20, 100, 150)),
        st.integers(20, 200),
        st.none() | st.integers(0, 100),
        st.none() | st.integers(0, 4),
    ),
)


class Game:
    """A written game, read back."""

    def __init__(self, made: GameFiles) -> None:
        self.path = made.path
        self.game = json.loads(made.game)
        self.record = json.loads(made.record)
        self.problem: str = self.game["pddl_problem"]
        self.facts: dict[str, list[Any]] = defaultdict(list)
        start = self.problem.split("(:init", 1)[1].split("(:goal", 1)[0]
        for fact in re.findall(r"\(([^()]+)\)", start):
            predicate, *arguments = fact.split()
            self.facts[predicate].append(tuple(arguments))
        self.kind = {i: t.removesuffix("Type") for i, t in self.facts["objectType"] + self.facts["receptacleType"]}
        self.host = dict(self.facts["inReceptacle"])
        self.thing = self.record["pddl_params"]["object_target"]
        self.target = self.record["pddl_params"]["parent_target"]
        self.of_goal = [i for i, kind in self.kind.items() if kind == self.thing]

    def ids(self, predicate: str) -> set[str]:
        return {fact[0] for fact in self.facts[predicate]}

    def behind_door(self, thing: str) -> bool:
        return self.host[thing] in self.ids("openable")


games = st.builds(
    lambda *arguments: Game(make(*arguments)),
    st.integers(0, 1),
    st.sampled_from(SPLITS),
    st.integers(0, 10_000),
    difficulties,
)


@settings(max_examples=50)
@given(games)
def test_a_game_is_won_by_its_walkthrough_holds_together_and_asks_for_what_its_sentence_says(game):
    its_walkthrough_wins_with_the_last_command(game)
    assert game.game["solvable"] is True
    everything_is_in_one_place_that_may_hold_it(game)
    each_name_is_declared_once_and_all_that_is_used(game)
    the_goal_is_of_its_family_and_can_be_read_in_the_sentence(game)


def its_walkthrough_wins_with_the_last_command(game: Game) -> None:
    world = NativeGame(CompiledGame(game.game["pddl_domain"], game.problem, game.game["grammar"]))
    turn = world.reset()
    for command in game.game["walkthrough"]:
        assert not turn.won and command in turn.commands
        turn = world.step(command)
    assert turn.won


def everything_is_in_one_place_that_may_hold_it(game: Game) -> None:
    things = game.ids("objectType")
    spot = dict(game.facts["receptacleAtLocation"]) | dict(game.facts["objectAtLocation"])
    for predicate, over in (("objectAtLocation", things), ("receptacleAtLocation", game.ids("receptacleType"))):
        assert Counter(fact[0] for fact in game.facts[predicate]) == Counter(over)
    assert max(Counter(fact[0] for fact in game.facts["inReceptacle"]).values()) == 1
    may = set(game.facts["canContain"])
    for thing, receptacle in game.facts["inReceptacle"]:
        assert spot[thing] == spot[receptacle]
        if thing in game.ids("pickupable"):
            assert (f"{game.kind[receptacle]}Type", f"{game.kind[thing]}Type") in may
    ((agent, start),) = game.facts["atLocation"]
    assert agent == "agent1"
    assert start not in set(spot.values())


def each_name_is_declared_once_and_all_that_is_used(game: Game) -> None:
    objects = game.problem.split("(:objects", 1)[1].split("(:init", 1)[0]
    declared = re.findall(r"^\s+(\S+) - \w+\)?$", objects, re.MULTILINE)
    assert len(declared) == len({name.lower() for name in declared})
    assert {i for facts in game.facts.values() for fact in facts for i in fact} <= set(declared)
    named = set(re.findall(r"\b\w+Type\b", game.game["pddl_domain"].split("(:action", 1)[1]))
    assert named - {"receptacleType", "objectType"} <= set(declared)
    assert game.problem.count("(") == game.problem.count(")")


def the_goal_is_of_its_family_and_can_be_read_in_the_sentence(game: Game) -> None:
    family = next(f for f in FAMILIES if f.name == game.record["task_type"])
    assert game.path.split("/")[1].startswith(f"{family.name}-{game.thing}-None-")
    assert len([i for i in game.of_goal if i in game.host]) >= family.needs
    assert game.ids("pickupable") >= set(game.of_goal)
    sentence = game.record["turk_annotations"]["anns"][0]["task_desc"]
    assert f"Your task is to: {sentence[0].lower()}{sentence[1:]}" in game.game["grammar"]
    words = re.findall(r"\w+", sentence.lower())
    assert game.thing.lower() in words
    if family.name == "look_at_obj_in_light":
        assert game.record["pddl_params"]["toggle_target"] == LAMP and LAMP.lower() in words
        assert any(game.kind[lamp] == LAMP and lamp in game.host for lamp in game.ids("toggleable"))
        return
    assert game.target.lower() in words
    assert game.target in game.kind.values()
    assert ("two" in words) == (family.needs == 2)
    assert any(
        verb in words
        for verb in {"clean": ["clean"], "heat": ["hot", "heat"], "cool": ["cool"]}.get(family.verb, words)
    )
    if family.verb:
        assert game.ids(family.able) >= set(game.of_goal)
        assert f"({family.done} ?o)" in game.problem
    else:
        assert all(game.kind[game.host[i]] != game.target for i in game.of_goal)


@settings(max_examples=50)
@given(st.integers(0, 50), st.integers(0, 500), st.integers(0, 4))
def test_nothing_is_hidden_or_all_of_it_as_the_difficulty_says(seed, index, decoys):
    index -= index % len(FAMILIES)  # pick_and_place_simple
    game = Game(make(seed % 2, "train", index, SceneDifficulty(hidden=0, decoys=decoys)))
    assert len(game.of_goal) == 1 + decoys
    usual = {"Fridge", "Microwave", "Cabinet", "Drawer", "Safe"}
    doorless = {game.kind[r] for r in game.ids("receptacleType") - game.ids("openable")} - usual - {game.target}
    if any(game.thing in CONTAINS[kind] for kind in doorless) and all(map(game.behind_door, game.of_goal)):
        room = next(r for r in ROOMS if r.first_plan <= game.record["scene"]["scene_num"] < r.first_plan + PLANS)
        places = next(thing.places for thing in room.things if thing.kind == game.thing)
        assert not doorless & set(places)
    game = Game(make(seed % 2, "train", index, SceneDifficulty(hidden=100, decoys=decoys)))
    doors = {game.kind[r] for r in game.ids("openable")} - {game.target}
    if any(game.thing in CONTAINS[kind] for kind in doors):
        assert all(map(game.behind_door, game.of_goal))


@pytest.mark.parametrize("wrong", [{"receptacles": 0}, {"things": 301}, {"hidden": 101}, {"decoys": -1}])
def test_a_difficulty_out_of_bounds_is_an_error_that_names_them(wrong):
    with pytest.raises(UsageError, match=rf"Difficulty\.{next(iter(wrong))} must be from \d+ to \d+"):
        SceneDifficulty(**wrong)


@settings(max_examples=5)
@given(st.integers(0, 10**9))
def test_unseen_rooms_are_laid_out_as_no_other(seed):
    known, unseen = layouts(seed)
    assert len(known) == len(ROOMS) * (PLANS - UNSEEN) and len(unseen) == len(ROOMS) * UNSEEN
    assert not {layout.signature for layout in known} & {layout.signature for layout in unseen}
    assert not {layout.plan for layout in known} & {layout.plan for layout in unseen}


def test_the_games_of_an_edition_never_change():
    games = [[make(seed, split, index) for seed in (0, 1) for split in SPLITS for index in range(12)]]
    for difficulty in (SceneDifficulty(30, 30, hidden=0, decoys=4), SceneDifficulty(150, 150, hidden=100, decoys=0)):
        games.append([make(0, "train", index, difficulty) for index in range(12)])
    texts = ["".join(game.path + game.game + game.record for game in made) for made in games]
    # Changed on purpose? Raise EDITION: folders of games that exist must not be mistaken for the new ones.
    assert GOLDEN == {EDITION: [hashlib.sha256(text.encode()).hexdigest()[:8] for text in texts]}


def test_the_vocabulary_is_that_of_alfred():
    alfred = pytest.importorskip("alfworld.gen.constants", reason="needs the package alfworld")
    for room in ROOMS:
        for kind, _ in room.receptacles:
            assert kind in alfred.RECEPTACLES
            assert CONTAINS[kind] <= set(alfred.VAL_RECEPTACLE_OBJECTS[kind])
        assert {thing.kind for thing in room.things} <= alfred.OBJECTS_SET


def test_names_count_down_in_the_order_of_ids_folded_to_lower_case():
    names = {
        "Mug_bar__plus_01": "mug 1",
        "Mug_bar__minus_02": "mug 2",
        "mug_bar__minus_01": "mug 3",
        "Sink_bar__plus_01_bar_SinkBasin": "sinkbasin 1",
        "Sink_bar__plus_02": "sink 1",
    }
    assert display_names([*names]) == names


CLI = [sys.executable, "-m", "envsuite.alfworld.generate"]
# The program with two worker processes, each of which stops before its second game.
STOPPING = """
import sys
from envsuite.alfworld import generate

STOP = (
    "import os; from envsuite.alfworld import generate; make = generate.make; generate.make = lambda *given: "
    "(os.kill(os.getpid(), 19) if given[1:3] in [('train', 2), ('train', 3)] else None) or make(*given); "
)
generate._cores = lambda: 2
generate._BOOT = generate._BOOT.replace("work(**", STOP + "work(**")
generate.main(sys.argv[1:])
"""


def content(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def receptacles(game: Path) -> tuple[tuple[str, int], ...]:
    problem = json.loads(game.read_bytes())["pddl_problem"]
    return tuple(sorted(Counter(re.findall(r"\(receptacleType \S+ (\w+)\)", problem)).items()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure(tmp_path_factory.mktemp("games"), seed=0, games=60)


def test_splits_are_tenths_and_families_equal(folder):
    for split, number in (("train", 48), ("valid_seen", 6), ("valid_unseen", 6)):
        records = [json.loads(f.read_bytes()) for f in (folder / "json_2.1.1" / split).glob("*/*/traj_data.json")]
        assert len(records) == number
        assert Counter(r["task_type"] for r in records) == {f.name: number // 6 for f in FAMILIES}
        assert all((folder / "json_2.1.1" / split).glob(f"*/{r['task_id']}/game.tw-pddl") for r in records)
    assert len({f.parent.name for f in folder.rglob("game.tw-pddl")}) == 60


def test_unseen_rooms_have_other_receptacles_than_those_of_train_and_valid_seen(folder):
    seen, unseen = (
        {receptacles(game) for split in splits for game in (folder / "json_2.1.1" / split).rglob("game.tw-pddl")}
        for splits in (("train", "valid_seen"), ("valid_unseen",))
    )
    assert unseen and not seen & unseen


@pytest.mark.seconds
def test_several_processes_make_what_one_makes(tmp_path, monkeypatch):
    monkeypatch.setattr("envsuite.alfworld.generate._cores", lambda: 1)
    alone = content(ensure(tmp_path / "alone", 0, 240))
    monkeypatch.setattr("envsuite.alfworld.generate._cores", lambda: 3)
    assert content(ensure(tmp_path / "together", 0, 240)) == alone


def test_more_games_begin_with_those_there_are_of_fewer(folder, tmp_path):
    more = content(ensure(tmp_path, 0, 90))
    fewer = content(folder)
    assert {name: more.get(name) for name in fewer if name != MANIFEST} == {
        name: data for name, data in fewer.items() if name != MANIFEST
    }


def test_seeds_and_difficulties_have_folders_of_their_own(folder, tmp_path):
    other = ensure(tmp_path, 1, 18)
    easy = ensure(tmp_path, 1, 18, SceneDifficulty(hidden=0, decoys=0))
    assert other != easy
    games = [{f.parent.name for f in f.rglob("game.tw-pddl")} for f in (folder, other, easy)]
    assert len(set.union(*games)) == 60 + 18 + 18


def test_games_that_are_there_are_left_as_they_are(folder):
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("*")}
    assert ensure(folder.parent, 0, 60) == folder
    assert {file: file.stat().st_mtime_ns for file in folder.rglob("*")} == before


@pytest.mark.parametrize("harm", ["no manifest", "half a manifest", "a game gone"])
def test_a_folder_that_is_not_whole_is_made_anew(harm, tmp_path):
    folder = ensure(tmp_path, 0, 18)
    whole = content(folder)
    if harm == "a game gone":
        next(folder.rglob("game.tw-pddl")).unlink()
    else:
        manifest = (folder / MANIFEST).read_bytes()
        (folder / MANIFEST).unlink()
        if harm == "half a manifest":
            (folder / MANIFEST).write_bytes(manifest[: len(manifest) // 2])
    assert content(ensure(tmp_path, 0, 18)) == whole


@pytest.mark.seconds
def test_a_run_that_was_killed_leaves_nothing_that_is_used(tmp_path):
    games = 300
    name = GameSet(0, games).name
    run = subprocess.Popen([sys.executable, "-c", STOPPING, "--out", str(tmp_path), "--games", str(games)])
    program = psutil.Process(run.pid)
    until(lambda: [one.status() for one in program.children()] == [psutil.STATUS_STOPPED] * 2 or run.poll() is not None)
    workers = program.children()
    run.kill()
    run.wait()
    free = try_locked(tmp_path / f".{name}.lock")
    left = tmp_path / f".{name}.partial"
    (left / "json_2.1.1" / "train" / "foreign").mkdir(parents=True)
    for worker in workers:
        worker.resume()  # it writes one more game, and ends when it finds that nobody reads what it says
    assert len(workers) == 2 and free is None and len(list(left.rglob("game.tw-pddl"))) < games
    assert not (tmp_path / name).exists()
    folder = ensure(tmp_path, 0, games)
    assert len(list(folder.rglob("game.tw-pddl"))) == games
    assert not (folder / "json_2.1.1" / "train" / "foreign").exists() and not left.exists()


def test_two_programs_at_once_get_the_same_whole_folder(tmp_path):
    runs = [subprocess.Popen([*CLI, "--out", str(tmp_path), "--games", "60"], stdout=subprocess.PIPE) for _ in range(2)]
    said = {run.communicate()[0] for run in runs}
    assert [run.returncode for run in runs] == [0, 0]
    (folder,) = said
    assert len(list(Path(folder.decode().strip()).rglob("game.tw-pddl"))) == 60


def test_too_few_games_are_an_error(tmp_path):
    with pytest.raises(UsageError, match="at least 18 games"):
        ensure(tmp_path, 0, 17)


def test_a_folder_that_cannot_be_written_to_is_an_error_that_names_it(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main(["--out", str(tmp_path / "file" / "below"), "--games", "18"]) == 2
    assert f"can't write ALFWorld games to {tmp_path / 'file' / 'below'}" in capsys.readouterr().err


def test_the_help_has_examples_that_run(tmp_path, capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    examples = re.findall(r"python -m envsuite.alfworld.generate --out (\w+)(.*)", capsys.readouterr().out)
    assert len(examples) == 4
    for name, options in examples:
        small = [word for word in re.sub(r"--games \d+", "", options).split()]
        assert main(["--out", str(tmp_path / name), *small, "--games", "18"]) == 0
        assert Path(capsys.readouterr().out.strip()).parent == tmp_path / name
