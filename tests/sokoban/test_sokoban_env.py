"""Sokoban-v0: rewards and ends, texts and images, its page, parity, and the player to imitate."""

from __future__ import annotations

import hashlib
import io
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from driving import one
from hypothesis import given
from hypothesis import strategies as st
from teaching import played

from benchmarks.parity_report import read_lines
from benchmarks.parity_sokoban import compare
from envsuite.core import DataError, ToolCall, ToolEnv
from envsuite.core.images import MOST_PIXELS, Images, as_png, from_png
from envsuite.remote.making import horizon_of
from envsuite.remote.protocol import from_json
from envsuite.sokoban.env import SokobanEnv
from envsuite.sokoban.expert import SokobanExpert
from envsuite.sokoban.generate import LevelKind
from envsuite.sokoban.level import DIRECTIONS, read_level
from envsuite.sokoban.player import Pusher
from envsuite.sokoban.prompts import STYLES
from envsuite.sokoban.tasks import load
from envsuite.sokoban.tiles import SIZE, image
from envsuite.vector import EnvFactory, make_vector

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


def test_gym_sokoban_s_count_begins_at_zero_for_the_first_move_alone(level):
    for reward, first in (("ragen", -0.1), ("gym-sokoban", 0.9)):
        env = level("#######\n#@ $.*#\n#######\n", reward=reward)
        begun = env.snapshot()
        assert [env.step(act("left"))[1] for _ in range(2)] == pytest.approx([first, -0.1])
        env.restore(begun)
        assert [env.step(act("right"))[1] for _ in range(2)] == pytest.approx([first, 10.9])


def test_levels_of_files_have_gym_sokoban_s_120_steps_unless_others_are_asked_for(corner, tmp_path):
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
def test_a_box_that_comes_onto_a_target_and_leaves_it_is_rewarded_and_charged(reward, wanted, last, level):
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


def test_several_moves_are_one_step_that_says_a_refusal_and_shows_the_board_once(corner):
    env = corner(max_calls=50)
    observation, _, _, _, info = env.step(act(*("up",) * 49, "left"))
    assert observation["text"] == f"You cannot go up: a wall.\nYou cannot go left: a wall.\n{CORNER.strip()}"
    assert info["metrics"]["moves"] == 50.0


def test_a_level_that_is_lost_from_the_beginning_begins(level):
    env = level("#####\n#$  #\n# @.#\n#####\n", end_on_deadlock=True)
    observation, info = env.reset(seed=0)
    assert observation["text"].startswith("#####") and observation["commands"] and info["metrics"]["deadlock"] == 1.0
    assert env.step(act("up"))[2]


def test_moves_after_the_solution_are_not_made(level):
    env = level("######\n#@$. #\n######\n", max_calls=9)
    observation, reward, done, _, info = env.step(act("right", "right", "right"))
    assert (reward, done, info["metrics"]["moves"], observation["commands"]) == (1.0, True, 1.0, ())
    assert observation["text"] == "All boxes are on targets.\n######\n# @* #\n######"


@pytest.mark.parametrize("end", [False, True])
def test_a_level_that_is_lost_is_known_and_ends_if_it_is_to(end, corner):
    env = corner(end_on_deadlock=end)
    assert [env.step(act(direction))[4]["metrics"]["deadlock"] for direction in ("down", "right")] == [0.0, 0.0]
    observation, reward, done, _, info = env.step(act("down"))
    assert (reward, done, info["success"], info["metrics"]["deadlock"]) == (0.0, end, False, 1.0)
    assert observation["text"].startswith("The boxes can no longer") == end
    assert observation["commands"] == (() if end else ("up", "left", "right"))


def test_the_style_changes_the_text_alone():
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
def test_a_row_is_written_with_the_symbols_of_the_style(style, second, corner):
    assert corner(style=style).observation["text"].split("\n")[1] == second


def test_coordinates_say_all_that_the_board_shows(corner):
    observation = corner(style="coordinates").observation
    assert observation["text"] == (
        "Player: (1, 1)\nBoxes on targets: none\nOther boxes: (1, 2) (3, 2)\nFree targets: (1, 4) (3, 3)"
    )
    assert "row 1: columns 1, 2, 3, 4\n" in observation["task"]


def test_an_image_has_sixteen_pixels_a_cell_and_is_the_same_to_the_bit():
    env = SokobanEnv(render_mode="rgb_array")
    assert env.render() is None
    hashes = []
    for task_id in ("boxes-1/test#0", "boxes-2/test#0"):
        env.reset(options={"task_id": task_id})
        pixels = env.render()
        assert isinstance(pixels, np.ndarray) and pixels.shape == (96, 96, 3) and pixels.dtype == np.uint8
        hashes.append(hashlib.sha256(pixels.tobytes()).hexdigest()[:16])
    assert hashes == ["27be440897bee2de", "0ec9b89639259d08"]


def test_no_push_limit_is_too_high():
    env = SokobanEnv(source="generated", pushes=(2, 10**12))
    assert env.reset(seed=0)[1]["task_type"] == "boxes-2"


def test_the_counts_on_the_page_are_those_of_the_task_sets(page):
    tasks = load("builtin")[1]
    for boxes, word in (("1", "one box"), ("2", "two boxes")):
        counts = [sum(tasks.types[i] == f"boxes-{boxes}" for i in ids) for ids in tasks.splits.values()]
        assert f'| `builtin`, {word} (`tasks="boxes-{boxes}"`) | {" | ".join(map(str, counts))} |' in page
    generated = load("generated", LevelKind(), 0, 1000)[1]
    assert (
        f"| `generated` (default: `levels=1000`) | {' | '.join(str(len(i)) for i in generated.splits.values())} |"
        in page
    )


def test_moves_earn_what_gym_sokoban_pays_for_them(shared):
    report = compare(read_lines(shared / "golden-3" / "sokoban_rewards.jsonl"))
    assert not report.differences, report.text()
    assert report.counts["boards"] == report.counts["ends"] == 400


def games(player: Pusher, count: int) -> list[tuple[bool, int]]:
    """Success and number of moves of the player's games on the test split."""
    env, found = SokobanEnv(split="test"), []
    for seed in range(count):
        _, info = env.reset(seed=seed)
        turns = played(env, info["task_id"], player, 15, f"{seed}")
        found.append((turns[-1].info["success"], len(turns)))
    return found


def test_a_player_who_never_strays_is_the_expert():
    env = SokobanEnv(split="test")
    for seed, (success, moves) in enumerate(games(Pusher(), 30)):
        env.reset(seed=seed)
        assert success and moves == len(SokobanExpert().moves(env.world))


def test_who_strays_wins_less_and_plays_on_when_the_level_is_lost():
    shares = [sum(won for won, _ in games(Pusher(**kind), 60)) for kind in ({"stray": 0.15}, {"stray": 0.5})]
    assert 60 > shares[0] > shares[1] > 0
    assert games(Pusher(rash=1.0), 60) != games(Pusher(stray=0.15), 60)
    assert all(moves == 15 for won, moves in games(Pusher(stray=0.5), 60) if not won)


def test_a_player_with_no_way_to_go_moves_all_the_same(tmp_path):
    env = SokobanEnv()
    env.reset(seed=0)
    world = env.world
    world.boxes = env.world.level.floor & ~world.player
    turns = Pusher().turns(env, random.Random(0))
    for _ in range(3):
        env.step(next(turns).action)
    assert env.world.pushes == 0


MOVE = (ToolCall("move", {"direction": "left"}),)
BOARD = "######\n#@$ .#\n# *  #\n######"


def test_text_alone_has_no_images_and_the_same_keys_as_ever():
    observation, _ = SokobanEnv().reset(seed=0)
    assert list(observation) == ["task", "text", "commands"]
    both, _ = SokobanEnv(observation="both").reset(seed=0)
    assert observation == {name: both[name] for name in observation}  # type: ignore[literal-required]
    alone, _ = SokobanEnv(observation="image").reset(seed=0)
    assert "#" not in alone["text"] and alone["text"] == "The image shows the board."


def test_every_cell_is_drawn_as_its_symbol_says():
    level = read_level(BOARD.split("\n"), "a test")
    whole = image(level, level.boxes, level.player)
    assert whole.shape == (4 * SIZE, 6 * SIZE, 3)
    tiles: dict[str, set[bytes]] = {}
    for row, symbols in enumerate(BOARD.split("\n")):
        for column, symbol in enumerate(symbols):
            tile = whole[row * SIZE : (row + 1) * SIZE, column * SIZE : (column + 1) * SIZE]
            tiles.setdefault(symbol, set()).add(tile.tobytes())
    assert all(len(found) == 1 for found in tiles.values()), "one tile a symbol"
    assert len(set.union(*tiles.values())) == len(tiles) == 6, "and another for each"


@pytest.mark.parametrize("workers", [0, 1])
def test_vectors_hand_on_images(workers):
    factory = EnvFactory("Sokoban-v0", {"observation": "both"})
    alone, _ = gymnasium.make("Sokoban-v0", observation="both").reset(options={"task_id": "boxes-1/test#0"})
    vector = make_vector([factory], 1, workers, 60.0)
    try:
        event = one(vector, 0, lambda: vector.reset(0, 0, task_id="boxes-1/test#0"))
        assert event.observation is not None, event.error
        assert np.array_equal(event.observation["images"][0], alone["images"][0])
        event = one(vector, 0, lambda: vector.step(0, MOVE))
        assert event.observation is not None and event.observation["images"][0].shape == (96, 96, 3)
    finally:
        vector.close()


@pytest.mark.parametrize("kind", [gymnasium.vector.SyncVectorEnv, gymnasium.vector.AsyncVectorEnv])
def test_gymnasium_s_vectors_hand_on_images(kind):
    envs = kind([lambda: gymnasium.make("Sokoban-v0", observation="both")] * 2)
    try:
        observation, _ = envs.reset(seed=1)
        after, *_ = envs.step((MOVE, MOVE))
        for number in range(2):
            alone = gymnasium.make("Sokoban-v0", observation="both")
            first, _ = alone.reset(seed=1 + number)
            assert np.array_equal(observation["images"][number][0], first["images"][0])
            assert np.array_equal(after["images"][number][0], alone.step(MOVE)[0]["images"][0])
    finally:
        envs.close()


def test_the_space_contains_what_it_draws_and_nothing_else():
    space = Images(seed=0)
    drawn = [space.sample() for _ in range(50)]
    assert all(map(space.contains, drawn)) and {len(images) for images in drawn} == {0, 1, 2}
    wrong = (np.zeros((2, 2), np.uint8), np.zeros((2, 2, 3)), np.zeros((2, 0, 3), np.uint8), [[0]])
    assert not any(space.contains((array,)) for array in wrong) and not space.contains([drawn[0]])
    assert space == Images() and repr(space) == "Images()" and not space.is_np_flattenable


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_png_keeps_every_pixel(rows, columns, seed):
    noise = np.random.default_rng(seed).integers(0, 256, (rows, columns, 3), np.uint8)
    assert np.array_equal(from_png(as_png(noise)), noise)
    assert np.array_equal(from_png(as_png(noise[:, ::-1])), noise[:, ::-1])


@given(st.binary(max_size=200), st.booleans(), st.integers(0, 2**16))
def test_what_is_no_png_is_refused(data, begins, cut):
    whole = as_png(np.zeros((4, 4, 3), np.uint8))
    for broken in (whole[: cut % (len(whole) - 20)], (whole[:33] if begins else b"") + data):
        with pytest.raises(DataError, match="no PNG"):
            from_png(broken)


@pytest.mark.parametrize(("image", "told"), [("*", "not in base64"), ("iVBO", "no PNG"), ("", "no PNG")])
def test_an_answer_whose_image_cannot_be_read_is_refused(image, told):
    with pytest.raises(DataError, match=told):
        from_json("task", {"text": "", "commands": [], "images": [image]})


def test_a_png_that_claims_more_pixels_than_allowed_is_refused():
    from PIL import Image

    side, file = int(MOST_PIXELS**0.5) + 1, io.BytesIO()
    Image.new("1", (side, side)).save(file, "PNG")
    with pytest.raises(DataError, match="are more than"):
        from_png(file.getvalue())
