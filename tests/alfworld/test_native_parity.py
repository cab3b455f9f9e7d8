"""The native engine against what the original did, step by step."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from envsuite.alfworld.world import NativeEngine


@pytest.fixture(scope="session")
def transcripts(shared: Path) -> list[dict]:
    path = shared / "data" / "alfworld" / "transcripts.jsonl"
    if not path.is_file():
        pytest.skip(f"needs the recordings in {path}")
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


def test_every_recorded_step_of_the_original_is_the_same(transcripts: list[dict], games_root: Path) -> None:
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


def test_every_walkthrough_wins_at_its_end_and_not_before(games_root: Path) -> None:
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
