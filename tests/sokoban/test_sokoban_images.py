"""Observations with images: here, on a server, in vectors of both kinds."""

from __future__ import annotations

import io
from typing import Any

import gymnasium
import numpy as np
import pytest
from driving import one
from hypothesis import given
from hypothesis import strategies as st

from envsuite.core import DataError, ToolCall
from envsuite.core.images import MOST_PIXELS, Images, as_png, from_png
from envsuite.remote.protocol import from_json
from envsuite.sokoban.env import SokobanEnv
from envsuite.sokoban.level import read_level
from envsuite.sokoban.tiles import SIZE, image
from envsuite.vector import EnvFactory, make_vector

MOVE = (ToolCall("move", {"direction": "left"}),)
BOARD = "######\n#@$ .#\n# *  #\n######"


def test_text_alone_has_no_images_and_the_same_keys_as_ever() -> None:
    observation, _ = SokobanEnv().reset(seed=0)
    assert list(observation) == ["task", "text", "commands"]
    both, _ = SokobanEnv(observation="both").reset(seed=0)
    assert observation == {name: both[name] for name in observation}  # type: ignore[literal-required]
    alone, _ = SokobanEnv(observation="image").reset(seed=0)
    assert "#" not in alone["text"] and alone["text"] == "The image shows the board."


def test_every_cell_is_drawn_as_its_symbol_says() -> None:
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
def test_vectors_hand_on_images(workers: int) -> None:
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
def test_gymnasium_s_vectors_hand_on_images(kind: Any) -> None:
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


def test_the_space_contains_what_it_draws_and_nothing_else() -> None:
    space = Images(seed=0)
    drawn = [space.sample() for _ in range(50)]
    assert all(map(space.contains, drawn)) and {len(images) for images in drawn} == {0, 1, 2}
    wrong = (np.zeros((2, 2), np.uint8), np.zeros((2, 2, 3)), np.zeros((2, 0, 3), np.uint8), [[0]])
    assert not any(space.contains((array,)) for array in wrong) and not space.contains([drawn[0]])
    assert space == Images() and repr(space) == "Images()" and not space.is_np_flattenable


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_png_keeps_every_pixel(rows: int, columns: int, seed: int) -> None:
    noise = np.random.default_rng(seed).integers(0, 256, (rows, columns, 3), np.uint8)
    assert np.array_equal(from_png(as_png(noise)), noise)
    assert np.array_equal(from_png(as_png(noise[:, ::-1])), noise[:, ::-1])


@given(st.binary(max_size=200), st.booleans(), st.integers(0, 2**16))
def test_what_is_no_png_is_refused(data: bytes, begins: bool, cut: int) -> None:
    whole = as_png(np.zeros((4, 4, 3), np.uint8))
    for broken in (whole[: cut % (len(whole) - 20)], (whole[:33] if begins else b"") + data):
        with pytest.raises(DataError, match="no PNG"):
            from_png(broken)


@pytest.mark.parametrize(("image", "told"), [("*", "not in base64"), ("iVBO", "no PNG"), ("", "no PNG")])
def test_an_answer_whose_image_cannot_be_read_is_refused(image: str, told: str) -> None:
    with pytest.raises(DataError, match=told):
        from_json("task", {"text": "", "commands": [], "images": [image]})


def test_a_png_that_claims_more_pixels_than_allowed_is_refused() -> None:
    from PIL import Image

    side, file = int(MOST_PIXELS**0.5) + 1, io.BytesIO()
    Image.new("1", (side, side)).save(file, "PNG")
    with pytest.raises(DataError, match="are more than"):
        from_png(file.getvalue())
