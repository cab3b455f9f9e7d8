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

from envsuite.core import EnvsuiteError, ToolCall, ToolEnv
from envsuite.remote.making import horizon_of
from envsuite.sokoban.env import SokobanEnv
from envsuite.sokoban.level import DIRECTIONS
from envsuite.sokoban.prompts import STYLES

CORNER = "######\n#@$ .#\n#    #\n# $. #\n#    #\n######\n"


@pytest.fixture(scope="session")
def sokoban(make_env: Callable[..., ToolEnv]) -> Callable[..., ToolEnv]:
    return partial(make_env, "Sokoban-v0")


@pytest.fixture
def corner(tmp_path: Any, sokoban: Callable[..., ToolEnv]) -> Callable[..., ToolEnv]:
    """One level, whose second box is lost when it is pushed down."""
    (tmp_path / "levels.txt").write_text(CORNER)
    return partial(sokoban, source=str(tmp_path), split="test")


def act(*directions: str) -> tuple[ToolCall, ...]:
    return tuple(ToolCall("move", {"direction": direction}) for direction in directions)


def test_rewards_of_ragen(corner: Callable[..., ToolEnv]) -> None:
    env = corner(reward="ragen")
    env.reset(seed=0)
    rewards = []
    for direction in ("left", "down", "up", "down", "right", "right", "up", "down", "left", "left"):
        rewards.append(env.step(act(direction))[1])
    assert rewards == [pytest.approx(-0.1)] * 10
    assert env.step(act("left"))[4]["metrics"] == {"pushes": 0.0, "moves": 11.0, "deadlock": 0.0}


def test_gym_sokoban_s_count_begins_at_zero_for_the_first_move_alone(
    tmp_path: Path, sokoban: Callable[..., ToolEnv]
) -> None:
    (tmp_path / "levels.txt").write_text("#######\n#@ $.*#\n#######\n")
    for reward, left, right in (("ragen", -0.1, -0.1), ("gym-sokoban", 0.9, 0.9)):
        env = sokoban(source=str(tmp_path), split="test", reward=reward)
        env.reset()
        begun = env.snapshot()
        assert [env.step(act("left"))[1] for _ in range(2)] == pytest.approx([left, -0.1])
        env.restore(begun)
        assert [env.step(act("right"))[1] for _ in range(2)] == pytest.approx([right, 10.9])


def test_levels_of_files_have_gym_sokoban_s_120_steps_unless_others_are_asked_for(
    corner: Callable[..., ToolEnv], tmp_path: Path
) -> None:
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


def test_a_box_that_comes_onto_a_target_and_leaves_it_is_rewarded_and_charged(
    tmp_path: Any, sokoban: Callable[..., ToolEnv]
) -> None:
    (tmp_path / "levels.txt").write_text("#########\n#@$.  $.#\n#       #\n#########\n")
    for reward, wanted in (("ragen", [0.9, -1.1, -0.1]), ("sparse", [0.0, 0.0, 0.0])):
        env = sokoban(source=str(tmp_path), split="test", reward=reward)
        env.reset(seed=0)
        steps = [env.step(act("right")) for _ in range(3)]
        assert [step[1] for step in steps] == pytest.approx(wanted)
        assert [step[4]["score"] for step in steps] == [0.5, 0.0, 0.0]
    for reward, last in (("ragen", 10.9), ("sparse", 1.0)):
        env = sokoban(source=str(tmp_path), split="test", reward=reward)
        env.reset(seed=0)
        env.step(act("right"))
        for direction in ("down", "right", "right", "right", "up"):
            _, _, done, _, info = env.step(act(direction))
            assert not done and info["valid"]
        _, got, done, _, info = env.step(act("right"))
        assert done and info["success"] and info["score"] == 1.0 and got == pytest.approx(last)


def test_several_moves_are_one_step_and_show_the_board_once(corner: Callable[..., ToolEnv]) -> None:
    env = corner(max_calls=3)
    env.reset(seed=0)
    observation, _, _, _, info = env.step(act("up", "right", "left"))
    assert not info["valid"] and info["error"] == "You cannot go up: a wall."
    assert observation["text"] == "You cannot go up: a wall.\n######\n#@ $.#\n#    #\n# $. #\n#    #\n######"
    assert env.step(act("up", "up", "up", "up"))[4]["error"] == "4 calls in one step, at most 3 allowed"


def test_a_refusal_is_said_once_a_step(corner: Callable[..., ToolEnv]) -> None:
    env = corner(max_calls=50)
    env.reset(seed=0)
    observation, _, _, _, info = env.step(act(*("up",) * 49, "left"))
    assert observation["text"].split("\n")[:3] == ["You cannot go up: a wall.", "You cannot go left: a wall.", "######"]
    assert info["metrics"]["moves"] == 50.0


def test_a_level_that_is_lost_from_the_beginning_begins(tmp_path: Any, sokoban: Callable[..., ToolEnv]) -> None:
    (tmp_path / "levels.txt").write_text("#####\n#$  #\n# @.#\n#####\n")
    env = sokoban(source=str(tmp_path), split="test", end_on_deadlock=True)
    observation, info = env.reset(seed=0)
    assert observation["text"].startswith("#####") and observation["commands"] and info["metrics"]["deadlock"] == 1.0
    assert env.step(act("up"))[2]


def test_moves_after_the_solution_are_not_made(tmp_path: Any, sokoban: Callable[..., ToolEnv]) -> None:
    (tmp_path / "levels.txt").write_text("######\n#@$. #\n######\n")
    env = sokoban(source=str(tmp_path), split="test", max_calls=9)
    env.reset(seed=0)
    observation, reward, done, _, info = env.step(act("right", "right", "right"))
    assert (reward, done, info["metrics"]["moves"]) == (1.0, True, 1.0)
    assert observation == {
        "task": observation["task"],
        "text": "All boxes are on targets.\n######\n# @* #\n######",
        "commands": (),
    }


@pytest.mark.parametrize("end", [False, True])
def test_a_level_that_is_lost_is_known_and_ends_if_it_is_to(end: bool, corner: Callable[..., ToolEnv]) -> None:
    env = corner(end_on_deadlock=end)
    env.reset(seed=0)
    assert [env.step(act(direction))[4]["metrics"]["deadlock"] for direction in ("down", "right")] == [0.0, 0.0]
    observation, reward, done, _, info = env.step(act("down"))
    assert (reward, done, info["success"], info["metrics"]["deadlock"]) == (0.0, end, False, 1.0)
    assert observation["text"].startswith("The boxes can no longer") == end
    assert observation["commands"] == (() if end else ("up", "left", "right"))


def test_the_style_changes_the_text_alone(sokoban: Callable[..., ToolEnv]) -> None:
    envs = {style: sokoban(style=style) for style in STYLES}
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
    observation, _ = corner(style=style).reset(seed=0)
    assert observation["text"].split("\n")[1] == second


def test_coordinates_say_all_that_the_board_shows(corner: Callable[..., ToolEnv]) -> None:
    observation, _ = corner(style="coordinates").reset(seed=0)
    assert observation["text"] == (
        "Player: (1, 1)\nBoxes on targets: none\nOther boxes: (1, 2) (3, 2)\nFree targets: (1, 4) (3, 3)"
    )
    assert "row 1: columns 1, 2, 3, 4\n" in observation["task"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"style": "emoji"}, "style of Sokoban-v0"),
        ({"reward": "dense"}, "reward of Sokoban-v0"),
        ({"max_calls": 0}, "max_calls=0: expected whole number from 1 to 50"),
        ({"max_calls": 2.0}, "max_calls=2.0: expected whole number from 1 to 50"),
        ({"source": "generated", "levels": 0}, "levels=0: expected whole number from 1 to 10000"),
        ({"source": "generated", "width": 6.0}, "width=6.0: expected whole number"),
        ({"source": "generated", "pushes": (2, 30.0)}, r"pushes=\(2, 30.0\): expected 2 of: whole number"),
        ({"pushes": (3,)}, r"pushes=\(3,\): expected 2 of: whole number"),
        ({"source": "generated", "boxes": 9}, "boxes"),
        ({"split": "dev"}, "split"),
        ({"tasks": ["boxes-9"]}, "boxes-"),
    ],
)
def test_arguments_that_cannot_be_are_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(EnvsuiteError, match=said):
        SokobanEnv(**arguments)


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
