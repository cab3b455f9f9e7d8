"""The classics keep their rules, and their solvers solve them."""

from __future__ import annotations

import itertools
import random
from collections import deque
from typing import Any

import gymnasium
import pytest
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from envsuite import testing
from envsuite.classics import countdown, frozenlake, game, game2048, rushhour, wordle
from envsuite.classics.game import COUNTS, Classic, ClassicExpert, split_of
from envsuite.core import ToolCall, UsageError
from envsuite.testing import Check

GAMES: dict[str, type[Classic[Any, Any]]] = {
    kind.takes.env_id: kind
    for kind in (
        wordle.Wordle, countdown.Countdown, frozenlake.TextFrozenLake, game2048.Game2048, rushhour.RushHour,
    )
}  # fmt: skip


def played(env: Classic[Any, Any], task_id: str, most: int = 300) -> bool:
    """Whether the expert solves a task."""
    env.reset(options={"task_id": task_id})
    for _ in range(most):
        *_, info = env.step(ClassicExpert(type(env)).act(env))
        if env.done:
            return bool(info["success"])
    return False


@pytest.mark.slow
@pytest.mark.parametrize("env_id", GAMES)
def test_none_of_100_000_malformed_actions_raises(env_id):
    testing.any_actions(Check(env_id, testing.any_actions), 100_000)


@pytest.mark.parametrize("env_id", GAMES)
def test_ids_name_split_and_seed_and_a_seed_moves_no_puzzle_to_another_split(env_id):
    builtin, generated = (GAMES[env_id](source=source, game_seed=7) for source in ("builtin", "generated"))
    assert builtin.tasks.ids("test")[0] == "test-0" and generated.tasks.ids("test")[0] == "7/test-0"
    assert env_id == "Wordle-v0" or {name: len(ids) for name, ids in builtin.tasks.splits.items()} == COUNTS
    few = {name: ids[:: 30 if env_id == "RushHour-v0" else 5][:3] for name, ids in generated.tasks.splits.items()}
    contents = {split: {repr(generated.identity(task)) for task in ids} for split, ids in few.items()}
    assert all(len(contents[split]) == len(few[split]) for split in few)
    others = {repr(builtin.identity(task)) for task in builtin.tasks.ids("train")[:10]}
    for one, other in itertools.combinations(contents.values(), 2):
        assert one.isdisjoint(other)
    assert others.isdisjoint(contents["test"]) and others.isdisjoint(contents["validation"])


@pytest.mark.parametrize(
    ("env_id", "command", "reason"),
    [
        ("Wordle-v0", "qqqqq", "qqqqq is not possible here; possible are the 500 common words of five small letters"),
        ("Countdown-v0", "1 - 2", "1 - 2 is not possible here; possible: 7 + 4, 7 * 4, 7 - 4"),
        ("TextFrozenLake-v0", "north", "is not one of"),
        ("RushHour-v0", "A right 9", "A right 9 is not possible here; possible: "),
    ],
)
def test_a_refused_command_changes_nothing_and_the_text_says_what_is_possible(env_id, command, reason):
    env = GAMES[env_id]()
    before, _ = env.reset(options={"task_id": "test-0"})
    state = env.state
    after, reward, *_, info = env.step((env.call(command),))
    assert env.state == state and reward == 0.0 and not info["valid"] and after["commands"] == before["commands"]
    assert reason in after["text"] and after["text"].endswith(before["text"])


def test_dials_that_allow_too_few_puzzles_are_refused(monkeypatch):
    monkeypatch.setattr(game, "MOST_DRAWS", 100)
    monkeypatch.setattr(rushhour, "MOST_LAYOUTS", 10)
    with pytest.raises(UsageError, match="too few different puzzles"):
        countdown.Countdown(numbers=3, target=[100, 50]).reset(seed=0)
    with pytest.raises(UsageError, match=r"cars=8 have moves=\[40, 41\]; widen the dials"):
        rushhour.RushHour(cars=8, moves=[40, 41]).reset(seed=0)


@pytest.mark.parametrize("count", [100, 500, pytest.param(len(wordle.WORDS), marks=pytest.mark.slow)])
def test_the_expert_guesses_every_word_within_six(count):
    assert len(set(wordle.WORDS)) == len(wordle.WORDS) and all(len(word) == 5 for word in wordle.WORDS)
    env = wordle.Wordle(words=count)
    ids = [task for members in env.tasks.splits.values() for task in members]
    assert {env._puzzle(task) for task in ids} == {*wordle.WORDS[:count]}
    assert [task for task in ids if not played(env, task, wordle.GUESSES)] == []


@pytest.mark.parametrize(
    ("guess", "word", "expected"),
    [
        ("crane", "crane", "ggggg"),
        ("llama", "alloy", "ygy--"),
        ("geese", "eagle", "yy--g"),
        ("level", "hello", "yg--y"),
    ],
)
def test_marks_count_repeated_letters_as_often_as_the_word_has_them(guess, word, expected):
    assert wordle.marks(guess, word) == expected


def test_a_word_that_six_guesses_miss_is_lost():
    env = wordle.Wordle()
    env.reset(options={"task_id": "test-0"})
    for guess in [word for word in wordle.WORDS if word != env.puzzle][:6]:
        observation, reward, terminated, _, info = env.step((env.call(guess),))
    assert terminated and (reward, info["success"]) == (0.0, False) and observation["text"].startswith("Lost.")


def fewest_by_hand(numbers: tuple[int, ...], target: int) -> int | None:
    """The fewest operations that make a target, layer by layer."""
    layer, done = {numbers}, 0
    while layer:
        if any(target in state for state in layer):
            return done
        layer = {
            tuple(sorted([*(n for place, n in enumerate(state) if place not in (i, j)), result]))
            for state in layer
            for i, j in itertools.permutations(range(len(state)), 2)
            for result in (
                state[i] + state[j], state[i] * state[j], state[i] - state[j],
                state[i] // state[j] if state[i] % state[j] == 0 else 0,
            )
            if result > 0
        }  # fmt: skip
        done += 1
    return None


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(countdown.CARDS), min_size=2, max_size=4), st.integers(1, 200))
def test_the_search_finds_the_fewest_operations_or_that_there_are_none(numbers, target):
    state = tuple(sorted(numbers))
    way = countdown.solution(state, target)
    assert (None if way is None else len(way)) == fewest_by_hand(state, target)
    for command in way or ():
        left, sign, right = command.split()
        state = dict(countdown.operations(state))[command]
        assert sign in "+-*/" and int(left) >= int(right)
    assert way is None or target in state


def test_the_expert_of_countdown_says_where_no_operations_lead_on():
    env = countdown.Countdown()
    env.reset(options={"task_id": "test-0"})
    env.puzzle, env.state = (99, env.puzzle[1]), (1, 2)
    with pytest.raises(UsageError, match=r"no operations on \(1, 2\) make 99"):
        env.best()


@pytest.mark.parametrize("slip", [0.0, 0.4])
def test_the_lake_is_gymnasiums_in_maps_cells_and_ends(slip):
    env = frozenlake.TextFrozenLake(slip=slip)
    draw, ends = random.Random(0), 0
    for task in env.tasks.ids("test")[:40]:
        env.reset(options={"task_id": task})
        theirs = FrozenLakeEnv(desc=env.puzzle.split("\n"), is_slippery=slip > 0, success_rate=1 - slip)
        assert frozenlake.lake(env.puzzle, slip).P == theirs.P
        while not env.done:
            cell, direction = env.state[0], draw.choice(frozenlake.DIRECTIONS)
            _, reward, terminated, _, _ = env.step((env.call(direction),))
            ways = {way[1]: way[2:] for way in theirs.P[cell][frozenlake.DIRECTIONS.index(direction)] if way[0] > 0}
            assert ways[env.state[0]] == (reward, terminated)
        ends += 1
    assert ends == 40


def test_a_share_of_the_moves_slips_and_the_policy_is_that_of_the_shortest_way_without():
    env = frozenlake.TextFrozenLake(slip=0.3, size=8, frozen=0.9)
    slips = total = 0
    for task, direction in itertools.product(env.tasks.ids("test"), ("down", "right")):
        env.reset(options={"task_id": task})
        env.step((env.call(direction),))
        total, slips = total + 1, slips + (env.state[0] != (8 if direction == "down" else 1))
    assert 0.25 < slips / total < 0.35
    plain = frozenlake.TextFrozenLake(size=6)
    for task in plain.tasks.ids("test")[:30]:
        rows = plain._puzzle(task).split("\n")
        assert played(plain, task) and plain.state[1] == shortest(rows)


def shortest(rows: list[str]) -> int:
    """Moves of a shortest safe way, layer by layer."""
    size, seen, queue = len(rows), {(0, 0)}, deque([((0, 0), 0)])
    while queue:
        (y, x), steps = queue.popleft()
        if rows[y][x] == "G":
            return steps
        for cell in ((y, x - 1), (y + 1, x), (y, x + 1), (y - 1, x)):
            if min(cell) >= 0 and max(cell) < size and cell not in seen and rows[cell[0]][cell[1]] != "H":
                seen.add(cell)
                queue.append((cell, steps + 1))
    raise AssertionError("there is no way")


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ((2, 2, 2, 2), (4, 4, 0, 0)),
        ((2, 2, 4, 0), (4, 4, 0, 0)),
        ((0, 2, 0, 2), (4, 0, 0, 0)),
        ((4, 2, 2, 4), (4, 4, 4, 0)),
    ],
)
def test_a_tile_merges_once_in_a_slide(row, expected):
    assert game2048.slide_row(row) == expected


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from([0, 2, 4, 8]), min_size=16, max_size=16), st.sampled_from(game2048.DIRECTIONS))
def test_a_slide_keeps_the_sum_and_is_the_same_on_a_turned_board(tiles, direction):
    board = tuple(tuple(tiles[n : n + 4]) for n in range(0, 16, 4))
    turned = tuple(zip(*board[::-1], strict=True))  # clockwise
    after = dict(zip(("left", "up", "right", "down"), ("up", "right", "down", "left"), strict=True))[direction]
    assert sum(map(sum, game2048.slide(board, direction))) == sum(tiles)
    assert tuple(zip(*game2048.slide(board, direction)[::-1], strict=True)) == game2048.slide(turned, after)


def test_2048_is_lost_where_no_tile_moves_and_solved_at_the_goal():
    env = game2048.Game2048(goal=16, size=3)
    env.reset(options={"task_id": "test-0"})
    env.state = ((2, 4, 2), (4, 2, 4), (2, 4, 2)), 9
    assert env._result() is False and env._possible() == ()
    env.state = ((2, 4, 2), (4, 16, 4), (2, 4, 2)), 9
    assert env._result() is True


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 199))
def test_the_distance_of_every_state_of_a_rush_hour_is_one_above_its_nearest_neighbours(number):
    env = rushhour.RushHour(split="test")
    env.reset(options={"task_id": f"test-{number}"})
    cars, places, known = env.puzzle
    assert 3 <= known[places] <= 12 and len(cars) == 12
    for state, distance in known.items():
        ends = [known[end] for _, end in rushhour.moves(cars, state)]
        assert (distance == 0) == (state[0] == rushhour.EXIT) and (distance == 0 or min(ends) == distance - 1)
        assert sum(row.count(".") for row in rushhour.rows(cars, state)) == 36 - sum(car.length for car in cars)
    assert played(env, f"test-{number}", known[places])


@pytest.mark.parametrize("env_id", GAMES)
def test_the_expert_solves_the_first_tasks_also_through_gymnasium(env_id):
    env = gymnasium.make(env_id, split="test")
    assert all(played(env.unwrapped, task) for task in env.unwrapped.tasks.ids("test")[:3])  # type: ignore[attr-defined,arg-type]
    env.reset(seed=0)
    assert env.step((ToolCall("no such tool", {}),))[-1]["error"]


def test_a_puzzle_is_in_the_split_that_its_content_says():
    lake = frozenlake.TextFrozenLake(source="generated", game_seed=5)
    for split, ids in lake.tasks.splits.items():
        assert {split_of(lake._puzzle(task.partition("/")[2])) for task in ids} == {split}
