from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_sokoban import PlainSokoban, boards, fewest_pushes

from envsuite.core import DataError
from envsuite.core.draws import Draw
from envsuite.sokoban.generate import LevelKind, generate
from envsuite.sokoban.level import DIRECTIONS, Level, read_level
from envsuite.sokoban.world import BLOCKED, PUSHED, Sokoban

SMALL = st.integers(0, 10**6).map(lambda seed: generate(LevelKind(5, 6, 1 + seed % 3, (1, 30)), Draw(f"{seed}"))[0])
OPEN = ["########", "#@     #", "# $  . #", "#   $. #", "#      #", "########"]


def rows(level: Level, world: Sokoban | None = None) -> list[str]:
    return (level.text() if world is None else level.text(world.boxes, world.player)).split("\n")


def play(level: Level, moves: list[str]) -> Sokoban:
    world = Sokoban(level)
    for direction in moves:
        world.move(direction)
    return world


def random_play(text: list[str], seed: int, moves: int) -> None:
    level, plain, draw = read_level(text, "a test"), PlainSokoban(text), random.Random(seed)
    world = Sokoban(level)
    for _ in range(moves):
        able = [d for d in DIRECTIONS if _moves(plain, d)]
        assert world.moves() == tuple(able)
        direction = draw.choice(DIRECTIONS)
        boxes, player = world.boxes, world.player
        result = world.move(direction)
        assert (result != BLOCKED) == plain.move(direction)
        assert (result == PUSHED) == (world.boxes != boxes) and (result == BLOCKED) == (world.player == player)
        assert level.text(world.boxes, world.player) == plain.text()
        assert world.solved == plain.solved and world.placed_boxes == len(plain.boxes & plain.targets)


def _moves(plain: PlainSokoban, direction: str) -> bool:
    player, boxes = plain.player, plain.boxes
    able = plain.move(direction)
    plain.player, plain.boxes = player, boxes
    return able


@pytest.mark.seconds
def test_random_play_in_a_thousand_levels_of_boxoban_is_that_of_the_plain_world(shared: Path) -> None:
    levels = boards(shared / "data" / "sokoban" / "unfiltered" / "valid_000.txt")
    assert len(levels) == 1000
    for number, level in enumerate(levels):
        random_play(level, number, 60)


@given(SMALL, st.integers())
def test_random_play_in_generated_levels_is_that_of_the_plain_world(level: Level, seed: int) -> None:
    random_play(rows(level), seed, 40)


@given(SMALL, st.lists(st.sampled_from(DIRECTIONS), max_size=40))
def test_what_is_called_a_deadlock_cannot_be_solved(level: Level, moves: list[str]) -> None:
    world = play(level, moves)
    if world.is_deadlocked():
        assert fewest_pushes(rows(level, world)) is None


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        (["#####", "#$  #", "# @.#", "#####"], True),  # a corner
        (["######", "#  $ #", "#@  .#", "######"], True),  # a wall without target along it
        (["#######", "#     #", "# $$  #", "#@$$..#", "#   ..#", "#######"], True),  # four hold each other
        (["########", "#@ $ . #", "# **   #", "########"], False),  # they hold each other on targets
        (OPEN, False),
    ],
)
def test_deadlocks(text: list[str], lost: bool) -> None:
    assert Sokoban(read_level(text, "a test")).is_deadlocked() == lost


@given(SMALL)
def test_a_level_is_read_as_it_is_written(level: Level) -> None:
    assert read_level(rows(level), "a test") == level


def test_spaces_at_the_end_of_a_row_and_what_is_outside_the_walls_do_not_matter() -> None:
    level = read_level(["  ####", "###  #", "#@$ .###", "#     #", "#######"], "a test")
    assert level.text().split("\n") == ["########", "###  ###", "#@$ .###", "#     ##", "########"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ([], "no rows"),
        (["###", "# #", "###"], "0 players"),
        (["######", "#@@$.#", "######"], "2 players"),
        (["####", "#@ #", "####"], "0 boxes and 0 targets"),
        (["######", "#@$$.#", "######"], "2 boxes and 1 targets"),
        (["######", "#@$. #", "## ###"], "no wall in row 3, column 3"),
        (["######", "#@$. ", "######"], "no wall in row 2, column 6"),
        (["#####", "@$. #", "#####"], "no wall in row 2, column 1"),
        (["########", "#@$.#$.#", "########"], "row 2, column 6 is out of the player's reach"),
        (["######", "#@$.x#", "######"], "'x' in row 2, column 5"),
        (["######", "#@*  #", "######"], "every box is on a target already"),
        (["      ", "####  ", "#@$.  ", "####  "], "no wall in row 1, column 5"),
        (["#" * 65] * 64, "65x64 cells are more than 4096"),
    ],
)
def test_what_is_no_level_is_refused_with_the_reason_and_the_place(text: list[str], said: str) -> None:
    with pytest.raises(DataError, match=rf"^levels.txt, level 3: .*{said}"):
        read_level(text, "levels.txt, level 3")


@given(st.lists(st.text("# .$@*+x\u0663", max_size=9), max_size=9))
def test_any_text_is_a_level_or_refused(text: list[str]) -> None:
    try:
        level = read_level(text, "a test")
    except DataError:
        return
    random_play(rows(level), 0, 20)
