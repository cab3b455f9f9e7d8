from __future__ import annotations

import gc
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import orjson
import psutil
import pytest

from envsuite.alfworld import reference
from envsuite.alfworld.game_file import GAME
from envsuite.alfworld.pool import ReferencePool
from envsuite.alfworld.reference import TextWorldEngine
from envsuite.alfworld.reference_worker import ParseCache, ReferencePlayer
from envsuite.core import DataError, MissingExtra, UsageError, WorkerLost

try:
    version("textworld"), version("alfworld")
except PackageNotFoundError as missing:
    pytest.skip(f'needs {missing.name}: pip install "envsuite[alfworld-reference]"', allow_module_level=True)

SMALL = "valid_seen/look_at_obj_in_light-Laptop-None-DeskLamp-328/trial_T20190908_201550_622420"


@pytest.fixture(scope="module")
def small(games_root: Path) -> Path:
    return games_root / "json_2.1.1" / SMALL / GAME


@pytest.fixture(scope="module")
def pool() -> Iterator[ReferencePool]:
    pool = ReferencePool(workers=2)
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def engine(pool: ReferencePool) -> TextWorldEngine:
    return TextWorldEngine(pool)


@pytest.mark.parametrize("name", [SMALL, pytest.param("", marks=pytest.mark.slow)], ids=["one", "every"])
def test_recorded_episodes_are_played_as_they_were(name, engine, games_root, shared):
    lines = (shared / "data" / "alfworld" / "transcripts.jsonl").read_bytes().splitlines()
    episodes = [episode for episode in map(orjson.loads, lines) if episode["gamefile"].startswith(name)]
    assert episodes
    for episode in episodes:
        game = engine.open(games_root / "json_2.1.1" / episode["gamefile"])
        for step in (episode["reset"], *episode["steps"]):
            turn = game.step(step["command"]) if "command" in step else game.reset()
            wanted = (step["feedback"], tuple(step["admissible_commands"]), step.get("won", False))
            assert (turn.feedback, turn.commands, turn.won) == wanted
        game.close()


def test_a_text_parsed_before_is_what_the_parser_made_of_it_whatever_was_written_into_it():
    from textworld.envs.pddl.textgen import _parse_and_convert as parse

    remembered = ParseCache(parse)
    text = "You see {o.name | on(o, r)} and #list#."
    for _ in range(3):
        symbols = remembered(text, rule_name="symbols")
        assert repr(symbols) == repr(parse(text, rule_name="symbols")) and not any(one.context for one in symbols)
        symbols[0].context = {"state": 1}


def test_remembering_what_was_parsed_changes_no_answer(small, monkeypatch):
    from textworld import logic
    from textworld.envs.pddl import textgen

    def played() -> list[Any]:
        player, rng = ReferencePlayer(), random.Random(0)
        answers = [player.answer("reset", 0, str(small))]
        for _ in range(20):
            answers.append(player.answer("step", 0, rng.choice([*answers[-1][1][1], "help", "take nothing"])))
        return answers

    for module in (textgen, logic):
        monkeypatch.setattr(module, "_parse_and_convert", module._parse_and_convert)
    remembered = played()
    assert isinstance(textgen._parse_and_convert, ParseCache) and isinstance(logic._parse_and_convert, ParseCache)
    monkeypatch.undo()
    monkeypatch.setattr("envsuite.alfworld.reference_worker._remember_parses", lambda: None)
    assert not isinstance(textgen._parse_and_convert, ParseCache)
    assert played() == remembered


@pytest.mark.slow
def test_a_game_continues_from_a_snapshot_in_another_process(small, engine):
    game = engine.open(small)
    game.reset()
    game.step("go to desk 1")
    turn = game.step("dance")
    token = pickle.loads(pickle.dumps(game.snapshot()))
    other = ReferencePool(workers=1)
    again = TextWorldEngine(other).open(small)
    assert again.restore(token) == turn
    assert again.step("use desklamp 1") == game.step("use desklamp 1")
    other.close()


@pytest.mark.slow
def test_a_token_that_is_not_of_this_game_is_refused(small, engine):
    game = engine.open(small)
    with pytest.raises(UsageError, match=r"snapshot of a game that is not in play; call reset\(\) first"):
        game.snapshot()
    with pytest.raises(UsageError, match=r"step of a game that is not in play; call reset\(\) first"):
        game.step("look")
    for token in (None, {"game": "other"}, {"game": "other/trial", "commands": (), "feedback": "", "valid": True}):
        with pytest.raises(UsageError, match="restore takes what snapshot"):
            game.restore(token)
    own = {"game": "/".join(small.parts[-3:-1]), "commands": ("fly",), "feedback": "", "valid": True}
    with pytest.raises(DataError, match="'fly' was admissible and is no longer"):
        game.restore(own)
    game.close()
    with pytest.raises(UsageError, match="closed"):
        game.reset()


@pytest.mark.slow
def test_only_the_episodes_of_a_killed_worker_are_lost_and_the_next_reset_replaces_it(small):
    pool = ReferencePool(workers=2)
    games = [TextWorldEngine(pool).open(small) for _ in range(3)]
    firsts = [game.reset() for game in games]
    victim = pool.workers[0]
    held = len(victim.seats)
    os.kill(victim.child.process.pid, signal.SIGKILL)
    outcomes = []
    for game in games:
        try:
            outcomes.append(game.step("look").valid)
        except WorkerLost as lost:
            outcomes.append(str(lost))
    lost = [outcome for outcome in outcomes if outcome is not True]
    assert len(lost) == held and all(str(small) in text and "was killed by SIGKILL" in text for text in lost)
    assert all("reset() starts it anew" in text for text in lost)
    with pytest.raises(UsageError, match="call reset"):
        games[outcomes.index(lost[0])].step("look")
    assert [game.reset() for game in games] == firsts
    assert len(pool.workers) == 2 and victim not in pool.workers
    pool.close()


def test_a_worker_that_hangs_is_killed_when_the_deadline_is_over(small):
    pool = ReferencePool(workers=1, deadline=30.0)
    game = TextWorldEngine(pool).open(small)
    waiting = TextWorldEngine(pool).open(small)
    first = game.reset()
    waiting.reset()
    worker = psutil.Process(pool.workers[0].child.process.pid)
    worker.suspend()
    pool.deadline = 0.3
    start = time.monotonic()
    with pytest.raises(WorkerLost, match=r"took more than 0.3 s during the command 'look' and was killed"):
        game.step("look")
    assert time.monotonic() - start < 10
    with pytest.raises(WorkerLost, match="over another game"):
        waiting.step("look")
    assert not psutil.pid_exists(worker.pid)
    pool.deadline = 60.0
    assert game.reset() == first
    pool.close()


@pytest.mark.slow
def test_a_worker_that_died_over_nothing_is_replaced_by_a_reset_and_missed_by_a_step(small):
    pool = ReferencePool(workers=1)
    game = TextWorldEngine(pool).open(small)
    first = game.reset()
    pool.workers[0].child.process.kill()
    pool.workers[0].child.process.wait()
    assert game.reset() == first
    pool.workers[0].child.process.kill()
    with pytest.raises(WorkerLost, match="was killed by SIGKILL"):
        game.step("look")
    pool.close()


@pytest.mark.slow
def test_workers_are_started_as_games_need_them_and_games_left_behind_give_their_place_back(small):
    pool = ReferencePool(workers=2)
    engine = TextWorldEngine(pool)
    assert pool.workers == []
    game = engine.open(small)
    game.reset()
    assert len(pool.workers) == 1
    game.close()
    left = engine.open(small)
    left.reset()
    assert [len(worker.seats) for worker in pool.workers] == [1]
    del left
    gc.collect()
    assert [len(worker.seats) for worker in pool.workers] == [0]
    process = pool.workers[0].child.process
    pool.close()
    assert process.poll() is not None
    with pytest.raises(UsageError, match="closed"):
        engine.open(small).reset()


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        lambda game: game | {"pddl_problem": "(define (problem x"},
        lambda game: game | {"pddl_domain": "nonsense"},
        lambda game: game | {"grammar": "{"},
    ],
    ids=["problem", "domain", "grammar"],
)
def test_a_game_that_textworld_cannot_load_is_named_and_the_worker_goes_on(engine, small, tmp_path, change):
    bad = tmp_path / GAME
    bad.write_bytes(orjson.dumps(change(orjson.loads(small.read_bytes()))))
    game = engine.open(bad)
    with pytest.raises((DataError, WorkerLost)) as caught:
        game.reset()
    assert str(bad) in str(caught.value)
    assert engine.open(small).reset().commands


@pytest.mark.slow
def test_an_edited_game_is_loaded_anew(engine, small, tmp_path):
    copy = tmp_path / GAME
    shutil.copy(small, copy)
    game = engine.open(copy)
    game.reset()
    game.close()
    copy.write_bytes(copy.read_bytes().replace(b"Welcome to TextWorld", b"Welcome to my world"))
    assert "Welcome to my world" in engine.open(copy).reset().feedback


def test_without_the_packages_the_command_that_installs_them_is_named(monkeypatch):
    def absent(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(reference, "version", absent)
    reference._versions.cache_clear()
    with pytest.raises(MissingExtra, match=r"textworld.*: pip install 'envsuite\[alfworld-reference\]'"):
        TextWorldEngine()
    reference._versions.cache_clear()


IN_A_FRESH_PROCESS = """
import os, sys
from pathlib import Path
from envsuite.alfworld.reference import TextWorldEngine, default_pool
engine = TextWorldEngine()
print(engine.version)
game = engine.open(Path(sys.argv[1]))
print(game.reset())
print(game.step("go to desk 1"))
assert not {"textworld", "alfworld", "fast_downward"} & set(sys.modules)
if (child := os.fork()) == 0:
    from envsuite.core import WorkerLost
    try:
        game.step("look")
    except WorkerLost as lost:
        assert "forked" in str(lost)
    else:
        raise AssertionError("the parent's game was played on")
    assert game.reset() is not None and len(default_pool().workers) == 1
    default_pool().close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(game.step("look"))
print(default_pool().workers[0].child.process.pid, file=sys.stderr)
"""


@pytest.mark.slow
def test_a_game_is_the_same_in_every_process_and_workers_end_with_the_program(small):
    command = [sys.executable, "-c", IN_A_FRESH_PROCESS, str(small)]
    runs = [
        subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONHASHSEED": seed})
        for seed in ("1", "2")
    ]
    assert all(run.returncode == 0 for run in runs), runs[0].stderr
    assert runs[0].stdout == runs[1].stdout and runs[0].stdout.startswith("textworld ")
    for run in runs:
        assert not psutil.pid_exists(int(run.stderr.split()[-1]))
