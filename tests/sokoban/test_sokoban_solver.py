from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_sokoban import boards, fewest_pushes

from envsuite.core import UsageError
from envsuite.core.draws import Draw
from envsuite.sokoban.expert import SokobanExpert
from envsuite.sokoban.generate import LevelKind, generate
from envsuite.sokoban.level import DIRECTIONS, Level, read_level
from envsuite.sokoban.solver import Solution, solve
from envsuite.sokoban.world import PUSHED, Sokoban


def pushes_of(level: Level, found: Solution) -> int:
    """Plays a solution; the number of its pushes."""
    assert found.moves is not None
    world = Sokoban(level)
    pushed = sum(world.move(direction) == PUSHED for direction in found.moves)
    assert world.solved and pushed == found.pushes == world.pushes
    return pushed


@given(st.integers(0, 10**6), st.integers(1, 3))
def test_generated_levels_have_the_pushes_that_are_said_and_no_solution_has_fewer(seed: int, boxes: int) -> None:
    level, pushes = generate(LevelKind(6, 5, boxes, (1, 30)), Draw(f"{seed}"))
    assert pushes_of(level, solve(level)) == pushes == fewest_pushes(level.text().split("\n"))


@given(st.integers(0, 10**6), st.lists(st.sampled_from(DIRECTIONS), max_size=30))
def test_what_the_solver_says_of_any_position_is_what_trying_all_says(seed: int, moves: list[str]) -> None:
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
def test_a_greedy_search_needs_at_most_as_many_times_more_pushes(seed: int, greed: float) -> None:
    level, pushes = generate(LevelKind(7, 7, 3, (3, 30)), Draw(f"{seed}"))
    assert pushes <= pushes_of(level, solve(level, greed=greed)) <= greed * pushes


def test_walks_between_pushes_are_the_shortest() -> None:
    level = read_level(["#######", "#@    #", "#   $.#", "#     #", "#######"], "a test")
    found = solve(level)
    assert found.moves is not None and (len(found.moves), found.pushes) == (4, 1)


def test_a_solved_level_needs_no_moves_and_a_lost_one_has_none() -> None:
    level = read_level(["######", "#@$. #", "######"], "a test")
    world = Sokoban(level)
    world.move("right")
    assert solve(level, world.boxes, world.player).moves == () == SokobanExpert().moves(world)
    lost = solve(read_level(["#####", "#$  #", "# @.#", "#####"], "a test"))
    assert lost.moves is None and lost.complete


def test_a_search_that_may_not_look_far_is_given_up() -> None:
    level, _ = generate(LevelKind(8, 8, 3, (8, 30)), Draw("far"))
    found = solve(level, most=2)
    assert found.moves is None and not found.complete and found.states == 2


def test_more_boxes_than_are_matched_are_solved_too() -> None:
    rows = ["###########", "#@        #", "# $ $ $ $ #", "#         #", "# $ $ $   #", "#.......  #", "###########"]
    seven = read_level(rows, "a test")
    assert seven.boxes.bit_count() == 7 and not Sokoban(seven).is_deadlocked()
    assert pushes_of(seven, solve(seven, greed=3.0)) >= 7


@pytest.mark.parametrize("name", ["unfiltered/train_000.txt", "medium/train_000.txt"])
def test_the_expert_solves_levels_of_boxoban(shared: Path, name: str) -> None:
    for text in boards(shared / "data" / "sokoban" / name)[:25]:
        world = Sokoban(read_level(text, name))
        for direction in SokobanExpert().moves(world):
            world.move(direction)
        assert world.solved


def test_the_expert_goes_on_from_any_state_and_says_when_it_is_lost() -> None:
    level, _ = generate(LevelKind(), Draw("any"))
    world, expert = Sokoban(level), SokobanExpert()
    plan = expert.moves(world)
    world.move(plan[0])
    assert expert.moves(world) == plan[1:]
    lost = Sokoban(read_level(["#####", "#$  #", "# @.#", "#####"], "a test"))
    with pytest.raises(UsageError, match="the level is lost"):
        expert.moves(lost)
