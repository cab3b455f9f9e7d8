"""Generated levels: rooms carved by a walk, and boxes pulled away from the targets.

Since every level comes about by pulling from a solved board, pushing solves it; since the pulls are tried breadth first
from all solved positions at once, their number is that of a best solution.
"""

from __future__ import annotations

from dataclasses import dataclass

from envsuite.core.draws import Draw
from envsuite.core.errors import UsageError
from envsuite.sokoban.level import Level, cells_of, reachable, shift_cells, steps

_EFFORT = 400_000  # positions that are looked at before a search for a level is given up
_ROOM = 50  # what a room costs besides, in positions
_POSITIONS = 5_000  # positions of a room after which pulling ends; more find harder levels of large boards
_OPEN = (55, 90)  # share of the inner cells that are carved, in percent


@dataclass(frozen=True)
class LevelKind:
    """Size and difficulty that the levels of a set have in common."""

    width: int = 6
    """Columns, the walls at both ends included."""
    height: int = 6
    boxes: int = 2
    pushes: tuple[int, int] = (2, 30)
    """Fewest and most pushes of a best solution."""

    def __post_init__(self) -> None:
        inner = (self.width - 2) * (self.height - 2)
        least, most = min(self.width, self.height), max(self.width, self.height)
        if least < 4 or most < 5 or most > 32:
            raise UsageError(
                f"width={self.width}, height={self.height}: a generated level has 4 to 32 columns and rows, and at "
                "least 5 of one, since a push needs three cells in line"
            )
        if not 1 <= self.boxes <= inner // 4:
            raise UsageError(
                f"boxes={self.boxes}: a level of {self.width}x{self.height} cells has room for 1 to {inner // 4} boxes"
            )
        low, high = self.pushes
        if not 1 <= low <= high:
            raise UsageError(f"pushes={self.pushes}: give the fewest and the most pushes, at least 1")


KIND = LevelKind()
"""The default size and difficulty."""


def generate(kind: LevelKind, draw: Draw, keep: range | None = None) -> tuple[Level, int]:
    """Draws a level.

    Args:
        kind: Its size and difficulty.
        draw: The source of randomness; determines the level.
        keep: The level's :func:`share` is in here; any by default. Levels of disjoint ranges differ.

    Returns:
        The level, and the number of pushes of a best solution.

    Raises:
        UsageError: Rooms of this size hardly ever have such levels.
    """
    looked_at = rooms = 0
    while looked_at < _EFFORT:
        looked_at += _ROOM
        floor = _carve_room(kind, draw)
        targets = sum(1 << cell for cell in draw.sample(list(cells_of(floor)), kind.boxes))
        if keep is not None and share(kind, floor, targets) not in keep:
            continue
        positions = _pull_boxes(kind, floor, targets)
        rooms += 1
        looked_at += sum(map(len, positions))
        pushes = range(kind.pushes[0], min(kind.pushes[1], len(positions) - 1) + 1)
        if not pushes:
            continue
        count = draw.choose(pushes)
        boxes, region = draw.choose(positions[count])
        player = 1 << draw.choose(list(cells_of(reachable(region, floor & ~boxes, kind.width))))
        walls = (1 << kind.width * kind.height) - 1 & ~floor
        return Level(kind.width, kind.height, walls, targets, boxes, player), count
    low, high = kind.pushes
    raise UsageError(
        f"none of {rooms:,} rooms of {kind.width}x{kind.height} cells with {kind.boxes} boxes has a level of {low} to "
        f"{high} pushes{'' if keep is None else ' for this split'}; ask for fewer pushes, or a larger board"
    )


def share(kind: LevelKind, floor: int, targets: int) -> int:
    """Returns a number below 100 that depends on room and targets, the same for all rotations and mirror images."""
    level = Level(kind.width, kind.height, (1 << kind.width * kind.height) - 1 & ~floor, targets, 0, 0)
    return Draw("\n".join(level.canonical(pieces=False))).below(100)


def _carve_room(kind: LevelKind, draw: Draw) -> int:
    """Returns the floor of a connected room, without the cells of the edge."""
    width, height = kind.width, kind.height
    low, high = (share * (width - 2) * (height - 2) // 100 for share in _OPEN)
    size = max(low + draw.below(high - low + 1), kind.boxes + 2)
    row, column = 1 + draw.below(height - 2), 1 + draw.below(width - 2)
    floor = 1 << row * width + column
    while floor.bit_count() < size:
        down, right = draw.choose(((-1, 0), (1, 0), (0, -1), (0, 1)))
        for _ in range(1 + draw.below(3)):
            row, column = min(max(row + down, 1), height - 2), min(max(column + right, 1), width - 2)
            floor |= 1 << row * width + column
    return floor


def _pull_boxes(kind: LevelKind, floor: int, targets: int) -> list[list[tuple[int, int]]]:
    """Returns the positions that are 0, 1, 2, … pushes from a solved one: boxes, and the first cell in reach."""
    width = kind.width
    ways = tuple(steps(width).values())
    free = floor & ~targets
    first = []
    while free:
        region = reachable(free & -free, floor & ~targets, width)
        first.append((targets, region & -region))
        free &= ~region
    layers, positions = [first], set(first)
    while layers[-1] and len(positions) < _POSITIONS:
        layer: list[tuple[int, int]] = []
        for boxes, region in layers[-1]:
            empty = floor & ~boxes
            reach = reachable(region, empty, width)
            for step in ways:  # the player stands at box + step and goes to box + 2 step
                can = boxes & shift_cells(reach, -step) & shift_cells(empty, -2 * step)
                while can:
                    box = can & -can
                    can ^= box
                    after = boxes ^ box ^ shift_cells(box, step)
                    here = reachable(shift_cells(box, 2 * step), floor & ~after, width)
                    position = (after, here & -here)
                    if position not in positions:
                        positions.add(position)
                        layer.append(position)
        layers.append(layer)
    return layers[: -1 if not layers[-1] else None]
