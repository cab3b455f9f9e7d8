"""Boards as images: plain tiles, the same pixels on every machine."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from envsuite.core.images import Pixels
from envsuite.sokoban.level import BOX, BOX_ON_TARGET, FLOOR, PLAYER, PLAYER_ON_TARGET, TARGET, WALL, Level

SIZE = 16
"""Width and height of a tile, in pixels."""
_WALL, _JOINT = (110, 92, 84), (74, 60, 54)
_FLOOR, _GRID = (243, 236, 220), (228, 218, 198)
_TARGET = (206, 61, 61)
_BOX, _EDGE, _PLACED = (196, 137, 64), (120, 76, 26), (92, 152, 82)
_BODY, _HEAD = (45, 86, 160), (232, 190, 150)


def image(level: Level, boxes: int, player: int) -> Pixels:
    """Returns the board with these boxes and this player, shape (16 * rows, 16 * columns, 3), RGB from 0 to 255."""
    tiles = _tiles()
    rows = level.text(boxes, player).split("\n")
    return np.concatenate([np.concatenate([tiles[kind] for kind in row], 1) for row in rows], 0)


@cache
def _tiles() -> dict[str, Pixels]:
    """Returns the tile of each symbol of the level files."""
    row, column = np.mgrid[0:SIZE, 0:SIZE]
    from_centre = np.hypot(row - 7.5, column - 7.5)
    floor = _paint_tile(None, ((row == 0) | (column == 0), _GRID), start=_FLOOR)
    joints = (row % 5 == 4) | (column == np.where(row // 5 % 2 == 0, 4, 11))
    target = _paint_tile(floor, (from_centre < 4.6, _TARGET), (from_centre < 2.6, _FLOOR))
    return {
        WALL: _paint_tile(None, (joints, _JOINT), start=_WALL),
        FLOOR: floor,
        TARGET: target,
        BOX: _box(floor, _BOX),
        BOX_ON_TARGET: _box(target, _PLACED),
        PLAYER: _player(floor),
        PLAYER_ON_TARGET: _player(target),
    }


def _box(ground: Pixels, colour: tuple[int, int, int]) -> Pixels:
    row, column = np.mgrid[0:SIZE, 0:SIZE]
    inside = (row >= 2) & (row <= 13) & (column >= 2) & (column <= 13)
    rim = inside & ((row == 2) | (row == 13) | (column == 2) | (column == 13))
    cross = inside & ((row == column) | (row + column == SIZE - 1))
    return _paint_tile(ground, (inside, colour), (rim | cross, _EDGE))


def _player(ground: Pixels) -> Pixels:
    row, column = np.mgrid[0:SIZE, 0:SIZE]
    body = np.hypot(row - 13.5, column - 7.5) < 5.2
    head = np.hypot(row - 5.5, column - 7.5) < 3.4
    return _paint_tile(ground, (body & (row <= 13), _BODY), (head, _HEAD))


def _paint_tile(
    ground: Pixels | None, *layers: tuple[NDArray[np.bool_], tuple[int, int, int]], start: tuple[int, int, int] = _FLOOR
) -> Pixels:
    """Returns ``ground``, or a tile of the colour ``start``, under layers of colours where their masks are true."""
    tile = np.full((SIZE, SIZE, 3), start, np.uint8) if ground is None else ground.copy()
    for where, colour in layers:
        tile[where] = colour
    return tile
