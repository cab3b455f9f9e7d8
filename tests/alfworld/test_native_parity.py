"""The native engine against what the original did, step by step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
import toy_house

from benchmarks.parity import main
from envsuite.alfworld.engine import GameTurn
from envsuite.alfworld.world import NativeEngine


@pytest.fixture(scope="session")
def transcripts(shared: Path) -> list[dict]:
    path = shared / "data" / "alfworld" / "transcripts.jsonl"
    if not path.is_file():
        pytest.skip(f"needs the recordings in {path}")
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


def test_every_recorded_step_of_the_original_is_the_same(transcripts, games_root):
    engine = NativeEngine()
    for episode in transcripts:
        game = engine.open(games_root / "json_2.1.1" / episode["gamefile"])
        turn = game.reset()
        assert turn.feedback == episode["reset"]["feedback"]
        assert list(turn.commands) == episode["reset"]["admissible_commands"]
        for number, step in enumerate(episode["steps"]):
            valid = step["command"].strip() in turn.commands
            turn = game.step(step["command"])
            where = f"{episode['gamefile']}, step {number} {step['command']!r}"
            assert turn.feedback == step["feedback"], where
            assert list(turn.commands) == step["admissible_commands"], where
            assert (turn.won, turn.valid) == (step["won"], valid), where


def test_every_walkthrough_wins_at_its_end_and_not_before(games_root):
    engine = NativeEngine()
    won = 0
    for path in sorted(games_root.glob("json_2.1.1/valid_seen/*/*/game.tw-pddl"))[::5]:
        commands = orjson.loads(path.read_bytes())["walkthrough"]
        game = engine.open(path)
        game.reset()
        turns = [game.step(command) for command in commands]
        assert all(turn.valid for turn in turns), path
        assert [turn.won for turn in turns] == [False] * (len(turns) - 1) + [True], path
        won += 1
    assert won == 28


NAME = "valid_seen/task/trial/game.tw-pddl"


def said(turn: GameTurn) -> dict[str, Any]:
    return {"feedback": turn.feedback, "admissible_commands": list(turn.commands)}


@pytest.fixture
def games(tmp_path: Path) -> Path:
    (tmp_path / "json_2.1.1" / NAME).parent.mkdir(parents=True)
    toy_house.write((tmp_path / "json_2.1.1" / NAME).parent)
    return tmp_path


@pytest.fixture
def episode(games: Path) -> dict[str, Any]:
    game = NativeEngine().open(games / "json_2.1.1" / NAME)
    episode: dict[str, Any] = {"gamefile": NAME, "reset": said(game.reset()), "steps": []}
    for command in ("open chest 2", "nonsense", " take lamp 2 from chest 2", "press lamp 2", "put lamp 2 into chest 2"):
        turn = game.step(command)
        outcome = {"score": int(turn.won), "done": turn.won, "won": turn.won}
        episode["steps"].append({"command": command, **said(turn), **outcome})
    return episode


def replay(games: Path, *episodes: dict[str, Any]) -> int:
    file = games / "recorded.jsonl"
    file.write_bytes(b"\n".join(map(orjson.dumps, episodes)))
    return main(["alfworld", "--games", str(games), "--transcripts", str(file), "--engine", "native"])


def test_recorded_episodes_are_replayed_and_counted(games, episode, capsys):
    assert replay(games, episode, episode | {"gamefile": f"json_2.1.1/{NAME}"}) == 0
    printed = capsys.readouterr().out
    assert "10 steps, native" in printed and "2 resets, native" in printed and "0 differences" in printed


@pytest.mark.parametrize(
    ("key", "value"),
    [("feedback", "Boo."), ("won", True), ("score", 1), ("done", True), ("admissible_commands", ["look", "count"])],
)
def test_a_step_that_differs_is_told_with_what_differs_and_ends_the_episode(key, value, games, episode, capsys):
    episode["steps"][1][key] = value
    assert replay(games, episode) == 1
    printed = capsys.readouterr().out
    assert "2 steps, native" in printed and "1 differences" in printed
    assert f"step 1 'nonsense':\n    ours     {{'{key}': " in printed


def test_both_engines_play_a_game_of_our_own_alike(games, capsys):
    for package in ("jericho", "textworld", "alfworld"):
        pytest.importorskip(package, reason="needs the extra alfworld-reference")
    options = ["--games", str(games), "--against", "textworld", "--commands", "60", "--jobs", "1"]
    assert main(["alfworld", *options]) == 0, capsys.readouterr().out
    assert "60 steps\n" in capsys.readouterr().out
