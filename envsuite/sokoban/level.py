"""Levels of Sokoban: cells as bits, and the format of level files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from envsuite.core.errors import DataError

MOST_CELLS = 4096
"""Largest board, in cells."""
SYMBOLS = "# .$@*+"
"""Symbols of the level files."""
WALL, FLOOR, TARGET, BOX, PLAYER, BOX_ON_TARGET, PLAYER_ON_TARGET = tuple(SYMBOLS)
_WITH_TARGET, _WITH_BOX, _WITH_PLAYER, _WALLS = (
    str.maketrans({symbol: str(int(symbol in kinds)) for symbol in SYMBOLS})
    for kinds in (TARGET + BOX_ON_TARGET + PLAYER_ON_TARGET, BOX + BOX_ON_TARGET, PLAYER + PLAYER_ON_TARGET, WALL)
)
DIRECTIONS = ("up", "down", "left", "right")


@dataclass(frozen=True)
class Level:
    """A board at the beginning of an episode.

    Sets of cells are integers: bit ``row * width + column`` is the cell. Every cell of the board's edge is a wall, and
    so is every cell that the player could never reach, so that shifting a set by 1 or ``width`` moves it by one cell
    without leaving the board.
    """

    width: int
    height: int
    walls: int
    targets: int
    boxes: int
    player: int
    """The one cell of the player, as a bit."""

    @cached_property
    def floor(self) -> int:
        """Cells that are no walls."""
        return (1 << self.width * self.height) - 1 & ~self.walls

    @cached_property
    def alive(self) -> int:
        """Cells from which a box alone on the board could be pushed onto some target."""
        alive = self.targets
        front = alive
        while front:
            front = self.pull_cells(front) & ~alive
            alive |= front
        return alive

    def pull_cells(self, cells: int) -> int:
        """Returns the cells to which a box in one of ``cells``, alone on the board, can be pulled at once.

        A player who goes from c + d to c + 2 d pulls the box from c to c + d.
        """
        reach = 0
        for step in steps(self.width).values():
            reach |= shift_cells(cells, step) & self.floor & shift_cells(self.floor, -step)
        return reach

    def text(self, boxes: int | None = None, player: int | None = None) -> str:
        """Formats the board as a level file has it, one line a row, with these boxes and this player, 0 for none."""
        boxes, player = self.boxes if boxes is None else boxes, self.player if player is None else player
        empty, place = self._empty
        symbols = empty.copy()
        if player:
            symbols[place[player]] = PLAYER_ON_TARGET if player & self.targets else PLAYER
        while boxes:
            box = boxes & -boxes
            symbols[place[box]] = BOX_ON_TARGET if box & self.targets else BOX
            boxes ^= box
        return "".join(symbols)

    @cached_property
    def _empty(self) -> tuple[list[str], dict[int, int]]:
        """Symbols of the board without boxes and player, a line break after each row; and the place of each cell."""
        symbols: list[str] = []
        place = {}
        for cell in range(self.width * self.height):
            if cell and cell % self.width == 0:
                symbols.append("\n")
            place[1 << cell] = len(symbols)
            symbols.append(WALL if self.walls >> cell & 1 else TARGET if self.targets >> cell & 1 else FLOOR)
        return symbols, place

    def canonical(self, pieces: bool = True) -> tuple[str, ...]:
        """Returns the rows of that one among the board's rotations and mirror images whose text comes first.

        Args:
            pieces: With the boxes and the player; else of walls and targets alone.
        """
        rows = (self.text() if pieces else self.text(0, 0)).split("\n")
        columns = ["".join(column) for column in zip(*rows, strict=True)]
        return min(image for board in (rows, columns) for image in _mirror_images(board))


def _mirror_images(rows: list[str]) -> Iterator[tuple[str, ...]]:
    for upright in (rows, rows[::-1]):
        yield tuple(upright)
        yield tuple(row[::-1] for row in upright)


def steps(width: int) -> dict[str, int]:
    """Returns for each direction by how much the number of a cell grows, on a board of ``width`` columns."""
    return dict(zip(DIRECTIONS, (-width, width, -1, 1), strict=True))


def shift_cells(cells: int, step: int) -> int:
    """Returns ``cells``, each moved by a step of :func:`steps`, or several of one."""
    return cells << step if step > 0 else cells >> -step


def cells_of(cells: int) -> Iterator[int]:
    """Yields the numbers of the cells in a set, from the first row on."""
    while cells:
        low = cells & -cells
        yield low.bit_length() - 1
        cells ^= low


def reachable(start: int, free: int, width: int) -> int:
    """Returns the cells that can be walked to from ``start`` through cells of ``free``, ``start`` among them."""
    here = start
    while True:
        wider = (here | here << 1 | here >> 1 | here << width | here >> width) & free | start
        if wider == here:
            return here
        here = wider


@lru_cache(maxsize=1024)
def _edge(width: int, height: int) -> int:
    """Returns the outermost cells of a board."""
    rows, columns = (0, height - 1), (0, width - 1)
    return sum(1 << n for n in range(width * height) if n % width in columns or n // width in rows)


def read_level(rows: Sequence[str], where: str) -> Level:
    """Reads one board, as the level files of Boxoban and others write it.

    Spaces at the end of a row may be missing. What lies outside the walls becomes wall.

    Args:
        rows: Its rows.
        where: File and number of the level, for messages.

    Raises:
        DataError: It is no level: it has no player or two, an unknown symbol, another number of boxes than of targets,
            an open edge, a box or target out of reach, or every box on a target already.
    """
    width, height = max(map(len, rows), default=0), len(rows)
    if not width:
        raise DataError(f"{where}: the level has no rows")
    if width * height > MOST_CELLS:
        raise DataError(f"{where}: {width}x{height} cells are more than {MOST_CELLS}")
    symbols = "".join(row.ljust(width) for row in rows)
    if unknown := set(symbols) - set(SYMBOLS):
        row, column = divmod(min(map(symbols.index, unknown)), width)
        raise DataError(
            f"{where}: {rows[row][column]!r} in row {row + 1}, column {column + 1} is no symbol of a level; "
            f"known: {SYMBOLS!r}"
        )
    kinds = (_WITH_PLAYER, _WITH_BOX, _WITH_TARGET, _WALLS)
    player, boxes, targets, walls = (int(symbols[::-1].translate(kind), 2) for kind in kinds)
    if player.bit_count() != 1:
        raise DataError(f"{where}: the level has {player.bit_count()} players ('@' or '+'), not one")
    if not boxes or boxes.bit_count() != targets.bit_count():
        raise DataError(
            f"{where}: the level has {boxes.bit_count()} boxes and {targets.bit_count()} targets; it needs as many of "
            "each, at least one"
        )
    whole = (1 << width * height) - 1
    edge = _edge(width, height)
    inside = reachable(player, whole & ~walls & ~edge | player, width)
    near = inside | inside << 1 | inside >> 1 | inside << width | inside >> width
    if open_at := near & edge & ~walls:
        row, column = divmod((open_at & -open_at).bit_length() - 1, width)
        raise DataError(f"{where}: there is no wall in row {row + 1}, column {column + 1}, where the player can leave")
    if outside := (boxes | targets) & ~inside:
        row, column = divmod((outside & -outside).bit_length() - 1, width)
        raise DataError(f"{where}: what is in row {row + 1}, column {column + 1} is out of the player's reach")
    if boxes == targets:
        raise DataError(f"{where}: every box is on a target already")
    return Level(width, height, whole & ~inside, targets, boxes, player)
