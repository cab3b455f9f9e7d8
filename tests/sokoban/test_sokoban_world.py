from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_sokoban import PlainSokoban, boards, fewest_pushes

from envsuite.core import DataError, UsageError
from envsuite.core.draws import Draw
from envsuite.sokoban.expert import SokobanExpert
from envsuite.sokoban.generate import LevelKind, generate
from envsuite.sokoban.level import DIRECTIONS, Level, read_level
from envsuite.sokoban.solver import Solution, solve
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
def test_random_play_in_a_thousand_levels_of_boxoban_is_that_of_the_plain_world(shared):
    levels = boards(shared / "data" / "sokoban" / "unfiltered" / "valid_000.txt")
    assert len(levels) == 1000
    for number, level in enumerate(levels):
        random_play(level, number, 60)


@given(SMALL, st.integers())
def test_random_play_in_generated_levels_is_that_of_the_plain_world(level, seed):
    random_play(rows(level), seed, 40)


@given(SMALL, st.lists(st.sampled_from(DIRECTIONS), max_size=40))
def test_what_is_called_a_deadlock_cannot_be_solved(level, moves):
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
def test_deadlocks(text, lost):
    assert Sokoban(read_level(text, "a test")).is_deadlocked() == lost


@given(SMALL)
def test_a_level_is_read_as_it_is_written(level):
    assert read_level(rows(level), "a test") == level


def test_spaces_at_the_end_of_a_row_and_what_is_outside_the_walls_do_not_matter():
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
def test_what_is_no_level_is_refused_with_the_reason_and_the_place(text, said):
    with pytest.raises(DataError, match=rf"^levels.txt, level 3: .*{said}"):
        read_level(text, "levels.txt, level 3")


@given(st.lists(st.text("# .$@*+x\u0663", max_size=9), max_size=9))
def test_any_text_is_a_level_or_refused(text):
    try:
        level = read_level(text, "a test")
    except DataError:
        return
    random_play(rows(level), 0, 20)


def pushes_of(level: Level, found: Solution) -> int:
    """Plays a solution; the number of its pushes."""
    assert found.moves is not None
    world = Sokoban(level)
    pushed = sum(world.move(direction) == PUSHED for direction in found.moves)
    assert world.solved and pushed == found.pushes == world.pushes
    return pushed


@given(st.integers(0, 10**6), st.integers(1, 3))
def test_generated_levels_have_the_pushes_that_are_said_and_no_solution_has_fewer(seed, boxes):
    level, pushes = generate(LevelKind(6, 5, boxes, (1, 30)), Draw(f"{seed}"))
    assert pushes_of(level, solve(level)) == pushes == fewest_pushes(level.text().split("\n"))


@given(st.integers(0, 10**6), st.lists(st.sampled_from(DIRECTIONS), max_size=30))
def test_what_the_solver_says_of_any_position_is_what_trying_all_says(seed, moves):
    level, _ = generate(LevelKind(5, 6, 2, (1, 30)), Draw(f"{seed}"))
    world = Sokoban(level)
    for direction in moves:
        world.move(direction)
    found = solve(level, world.boxes, world.player)
    wanted = fewest_pushes(level.text(world.boxes, world.player).split("\n"))
    assert found.complete and (found.moves is None) == (wanted is None)
    if wanted is not None:
        assert found.pushes == wanted


@given(st.integers(0, 10**6), st.sampled_from([1.5, 3.0, 10.0]))
def test_a_greedy_search_needs_at_most_as_many_times_more_pushes(seed, greed):
    level, pushes = generate(LevelKind(7, 7, 3, (3, 30)), Draw(f"{seed}"))
    assert pushes <= pushes_of(level, solve(level, greed=greed)) <= greed * pushes


def test_walks_between_pushes_are_the_shortest():
    level = read_level(["#######", "#@    #", "#   $.#", "#     #", "#######"], "a test")
    found = solve(level)
    assert found.moves is not None and (len(found.moves), found.pushes) == (4, 1)


def test_a_solved_level_needs_no_moves_and_a_lost_one_has_none():
    level = read_level(["######", "#@$. #", "######"], "a test")
    world = Sokoban(level)
    world.move("right")
    assert solve(level, world.boxes, world.player).moves == () == SokobanExpert().moves(world)
    lost = solve(read_level(["#####", "#$  #", "# @.#", "#####"], "a test"))
    assert lost.moves is None and lost.complete


def test_a_search_that_may_not_look_far_is_given_up():
    level, _ = generate(LevelKind(8, 8, 3, (8, 30)), Draw("far"))
    found = solve(level, most=2)
    assert found.moves is None and not found.complete and found.states == 2


def test_more_boxes_than_are_matched_are_solved_too():
    rows = ["###########", "#@        #", "# $ $ $ $ #", "#         #", "# $ $ $   #", "#.......  #", "###########"]
    seven = read_level(rows, "a test")
    assert seven.boxes.bit_count() == 7 and not Sokoban(seven).is_deadlocked()
    assert pushes_of(seven, solve(seven, greed=3.0)) >= 7


@pytest.mark.parametrize("name", ["unfiltered/train_000.txt", "medium/train_000.txt"])
def test_the_expert_solves_levels_of_boxoban(shared, name):
    for text in boards(shared / "data" / "sokoban" / name)[:25]:
        world = Sokoban(read_level(text, name))
        for direction in SokobanExpert().moves(world):
            world.move(direction)
        assert world.solved


def test_the_expert_goes_on_from_any_state_and_says_when_it_is_lost():
    level, _ = generate(LevelKind(), Draw("any"))
    world, expert = Sokoban(level), SokobanExpert()
    plan = expert.moves(world)
    world.move(plan[0])
    assert expert.moves(world) == plan[1:]
    lost = Sokoban(read_level(["#####", "#$  #", "# @.#", "#####"], "a test"))
    with pytest.raises(UsageError, match="the level is lost"):
        expert.moves(lost)
