from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from envsuite.core import ToolCall, ToolEnv
from envsuite.remote.making import horizon_of
from envsuite.sokoban.env import SokobanEnv
from envsuite.sokoban.level import DIRECTIONS
from envsuite.sokoban.prompts import STYLES

CORNER = "######\n#@$ .#\n#    #\n# $. #\n#    #\n######\n"


@pytest.fixture
def level(tmp_path: Path) -> Callable[..., ToolEnv]:
    """Makes an environment of one level, by its rows, and begins it."""

    def made(rows: str, **arguments: Any) -> ToolEnv:
        (tmp_path / "levels.txt").write_text(rows)
        env = SokobanEnv(source=str(tmp_path), split="test", **arguments)
        env.reset(seed=0)
        return env

    return made


@pytest.fixture
def corner(level: Callable[..., ToolEnv]) -> Callable[..., ToolEnv]:
    """One level, whose second box is lost when it is pushed down."""
    return partial(level, CORNER)


def act(*directions: str) -> tuple[ToolCall, ...]:
    return tuple(ToolCall("move", {"direction": direction}) for direction in directions)


def test_gym_sokoban_s_count_begins_at_zero_for_the_first_move_alone(level: Callable[..., ToolEnv]) -> None:
    for reward, first in (("ragen", -0.1), ("gym-sokoban", 0.9)):
        env = level("#######\n#@ $.*#\n#######\n", reward=reward)
        begun = env.snapshot()
        assert [env.step(act("left"))[1] for _ in range(2)] == pytest.approx([first, -0.1])
        env.restore(begun)
        assert [env.step(act("right"))[1] for _ in range(2)] == pytest.approx([first, 10.9])


def test_levels_of_files_have_gym_sokoban_s_120_steps_unless_others_are_asked_for(
    corner: Callable[..., ToolEnv], tmp_path: Path
) -> None:
    corner()

    def steps(**arguments: Any) -> int | None:
        env = gymnasium.make("Sokoban-v0", **arguments)
        assert env.spec is not None
        env.reset(seed=0)
        taken = 0
        while taken < 200:
            *_, truncated, _ = env.step(act("left"))
            taken += 1
            if truncated:
                assert env.spec.max_episode_steps == taken
                return taken
        return None

    files = {"source": str(tmp_path), "split": "test"}
    assert [steps(), steps(source="generated", levels=10), steps(**files)] == [15, 15, 120]
    assert [steps(**files, max_episode_steps=given) for given in (15, 150, -1)] == [15, 150, None]
    assert [horizon_of("Sokoban-v0"), horizon_of("Sokoban-v0", files)] == [15, 120]


@pytest.mark.parametrize(
    ("reward", "wanted", "last"), [("ragen", [0.9, -1.1, -0.1], 10.9), ("sparse", [0.0, 0.0, 0.0], 1.0)]
)
def test_a_box_that_comes_onto_a_target_and_leaves_it_is_rewarded_and_charged(
    reward: str, wanted: list[float], last: float, level: Callable[..., ToolEnv]
) -> None:
    rows = "#########\n#@$.  $.#\n#       #\n#########\n"
    env = level(rows, reward=reward)
    steps = [env.step(act("right")) for _ in range(3)]
    assert [step[1] for step in steps] == pytest.approx(wanted)
    assert [step[4]["score"] for step in steps] == [0.5, 0.0, 0.0]
    env = level(rows, reward=reward)
    for direction in ("right", "down", "right", "right", "right", "up"):
        _, _, done, _, info = env.step(act(direction))
        assert not done and info["valid"]
    _, got, done, _, info = env.step(act("right"))
    assert done and info["success"] and info["score"] == 1.0 and got == pytest.approx(last)


def test_several_moves_are_one_step_that_says_a_refusal_and_shows_the_board_once(
    corner: Callable[..., ToolEnv],
) -> None:
    env = corner(max_calls=50)
    observation, _, _, _, info = env.step(act(*("up",) * 49, "left"))
    assert observation["text"] == f"You cannot go up: a wall.\nYou cannot go left: a wall.\n{CORNER.strip()}"
    assert info["metrics"]["moves"] == 50.0


def test_a_level_that_is_lost_from_the_beginning_begins(level: Callable[..., ToolEnv]) -> None:
    env = level("#####\n#$  #\n# @.#\n#####\n", end_on_deadlock=True)
    observation, info = env.reset(seed=0)
    assert observation["text"].startswith("#####") and observation["commands"] and info["metrics"]["deadlock"] == 1.0
    assert env.step(act("up"))[2]


def test_moves_after_the_solution_are_not_made(level: Callable[..., ToolEnv]) -> None:
    env = level("######\n#@$. #\n######\n", max_calls=9)
    observation, reward, done, _, info = env.step(act("right", "right", "right"))
    assert (reward, done, info["metrics"]["moves"], observation["commands"]) == (1.0, True, 1.0, ())
    assert observation["text"] == "All boxes are on targets.\n######\n# @* #\n######"


@pytest.mark.parametrize("end", [False, True])
def test_a_level_that_is_lost_is_known_and_ends_if_it_is_to(end: bool, corner: Callable[..., ToolEnv]) -> None:
    env = corner(end_on_deadlock=end)
    assert [env.step(act(direction))[4]["metrics"]["deadlock"] for direction in ("down", "right")] == [0.0, 0.0]
    observation, reward, done, _, info = env.step(act("down"))
    assert (reward, done, info["success"], info["metrics"]["deadlock"]) == (0.0, end, False, 1.0)
    assert observation["text"].startswith("The boxes can no longer") == end
    assert observation["commands"] == (() if end else ("up", "left", "right"))


def test_the_style_changes_the_text_alone() -> None:
    envs = {style: SokobanEnv(style=style) for style in STYLES}
    seen: dict[str, list[Any]] = {}
    for style, env in envs.items():
        observation, info = env.reset(seed=4)
        seen[style] = [(observation["commands"], info)]
        texts = [observation["text"]]
        draw = random.Random(0)
        for _ in range(10):
            observation, *rest = env.step(act(draw.choice(DIRECTIONS)))
            seen[style].append((observation["commands"], rest))
            texts.append(observation["text"])
            if rest[1]:
                break
        assert len(set(texts)) > 3
    assert all(found == seen["symbols"] for found in seen.values())


@pytest.mark.parametrize(
    ("style", "second"), [("symbols", "#@$ .#"), ("ragen", "#PX_O#"), ("spaced", "# P X _ O #"),
                          ("tabbed", " # \t P \t X \t _ \t O \t # \t")],
)  # fmt: skip
def test_a_row_is_written_with_the_symbols_of_the_style(
    style: str, second: str, corner: Callable[..., ToolEnv]
) -> None:
    assert corner(style=style).observation["text"].split("\n")[1] == second


def test_coordinates_say_all_that_the_board_shows(corner: Callable[..., ToolEnv]) -> None:
    observation = corner(style="coordinates").observation
    assert observation["text"] == (
        "Player: (1, 1)\nBoxes on targets: none\nOther boxes: (1, 2) (3, 2)\nFree targets: (1, 4) (3, 3)"
    )
    assert "row 1: columns 1, 2, 3, 4\n" in observation["task"]


def test_an_image_has_sixteen_pixels_a_cell_and_is_the_same_to_the_bit() -> None:
    env = SokobanEnv(render_mode="rgb_array")
    assert env.render() is None
    hashes = []
    for task_id in ("boxes-1/test#0", "boxes-2/test#0"):
        env.reset(options={"task_id": task_id})
        pixels = env.render()
        assert isinstance(pixels, np.ndarray) and pixels.shape == (96, 96, 3) and pixels.dtype == np.uint8
        hashes.append(hashlib.sha256(pixels.tobytes()).hexdigest()[:16])
    assert hashes == ["27be440897bee2de", "0ec9b89639259d08"]


def test_no_push_limit_is_too_high() -> None:
    env = SokobanEnv(source="generated", pushes=(2, 10**12))
    assert env.reset(seed=0)[1]["task_type"] == "boxes-2"
