from __future__ import annotations

import curses
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from envsuite.cli import main
from envsuite.core import UnknownTask, UsageError
from envsuite.sokoban.env import SokobanEnv
from envsuite.sokoban.terminal import Game

SIX = "levels#1"
LEVELS = "######\n#@$. #\n######\n\n######\n# $ .#\n#@ $ #\n# # .#\n# #  #\n######\n\n######\n#@ $.#\n######\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "levels.txt").write_text(LEVELS)
    return tmp_path


@pytest.fixture
def played(folder: Path) -> Game:
    return Game(SokobanEnv(str(folder), "test"), SIX)


def press(played: Game, *keys: str | int) -> list[str]:
    for key in keys:
        assert played.press(ord(key) if isinstance(key, str) else key)
    return played.status()


def test_moves_are_made_counted_and_taken_back(played: Game) -> None:
    begun = played.board()
    assert played.status()[0].startswith(f"{SIX}   moves 0   pushes 0, fewest 4")
    assert press(played, curses.KEY_RIGHT, "l")[0].startswith(f"{SIX}   moves 2   pushes 1")
    press(played, "u")
    assert press(played, "k")[1] == "You cannot go up: the box there cannot move."
    press(played, "u")
    assert played.board() == begun
    assert press(played, "u")[1] == "There is nothing to take back."


def test_the_experts_moves_solve_the_level_and_the_next_one_follows(played: Game) -> None:
    press(played, *"e" * 11)
    assert "solved!" in played.status()[0] and played.solved == 1
    assert press(played, "e")[1] == "This level is solved: n for the next one."
    press(played, "n")
    assert played.task_id == "levels#2" and played.status()[0].startswith("levels#2   moves 0")
    press(played, "p", "p")
    assert played.task_id == "levels#0" and len(played.seen) == 3


def test_a_lost_level_says_so_and_can_be_mended(played: Game) -> None:
    lines = press(played, *(curses.KEY_RIGHT,) * 2, curses.KEY_UP, curses.KEY_RIGHT, *(curses.KEY_DOWN,) * 2)
    assert "lost: u takes a move back" in lines[0]
    assert press(played, "e")[1] == "The expert finds no way from here: u takes a move back."
    assert "lost" not in press(played, "u")[0] and "moves 0 " in press(played, "r")[0]


def test_who_asks_for_what_is_not_there_is_told() -> None:
    with pytest.raises(UnknownTask):
        Game(SokobanEnv(split="test"), "boxes-9/test#0")


def test_the_command_needs_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["play", "sokoban"]) == 2
    assert "needs a terminal" in capsys.readouterr().err


def test_the_command_plays_in_a_terminal(folder: Path) -> None:
    parent, child = pty.openpty()
    command = [sys.executable, "-m", "envsuite.cli", "play", "sokoban", "--source", str(folder), "--split", "test"]
    run = subprocess.Popen(
        command, stdin=child, stdout=child, stderr=child, env={**os.environ, "TERM": "xterm-256color"}
    )
    os.close(child)
    seen = b""

    def until(text: bytes) -> None:
        nonlocal seen
        end = time.monotonic() + 30
        while text not in seen:
            assert time.monotonic() < end, seen
            if select.select([parent], [], [], 0.1)[0]:
                seen += os.read(parent, 65536)

    try:
        until(b"q quit")
        os.write(parent, b"e")
        until(b"solved!")
        os.write(parent, b"q")
        until(b"1 of 1 levels solved")
        assert run.wait(30) == 0
    finally:
        run.kill()
        os.close(parent)


def test_an_empty_split_is_refused() -> None:
    with pytest.raises(UsageError, match="no level"):
        Game(SokobanEnv(split="train", tasks=["boxes-2/test#0"]))
