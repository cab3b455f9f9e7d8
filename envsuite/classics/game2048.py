"""``Game2048-v0``: tiles slide and merge until one is the goal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, ClassVar

from envsuite.classics.game import Classic, ClassicExpert, ClassicOptions, number_of
from envsuite.core.options import option
from envsuite.core.tools import Tool

DIRECTIONS = ("left", "right", "up", "down")
Board = tuple[tuple[int, ...], ...]
"""Rows of tiles; 0 is empty."""


@dataclass(frozen=True, kw_only=True)
class Game2048Options(ClassicOptions):
    """The options of ``Game2048-v0``."""

    env_id: ClassVar[str] = "Game2048-v0"
    goal: int = option(
        256, "the tile that solves the game; size=3 has room for 1024 at most", enum=tuple(2**n for n in range(4, 12))
    )
    size: int = option(4, "rows and columns", enum=(3, 4))


@lru_cache(100_000)
def slide_row(row: tuple[int, ...]) -> tuple[int, ...]:
    """Returns a row after its tiles have slid to the left, where each merges with an equal one, once."""
    tiles, last = list[int](), 0
    for tile in filter(None, row):
        if tile == last:
            tiles[-1], last = 2 * tile, 0
        else:
            tiles.append(tile)
            last = tile
    return (*tiles, *[0] * (len(row) - len(tiles)))


def slide(board: Board, direction: str) -> Board:
    """Returns a board after all tiles have slid."""
    lines = board if direction in ("left", "right") else tuple(zip(*board, strict=True))
    step = 1 if direction in ("left", "up") else -1
    lines = tuple(slide_row(line[::step])[::step] for line in lines)
    return lines if direction in ("left", "right") else tuple(zip(*lines, strict=True))


def slides(board: Board) -> Iterator[tuple[str, Board]]:
    """Yields the directions that change a board, with the board after each."""
    yield from ((direction, end) for direction in DIRECTIONS if (end := slide(board, direction)) != board)


def empty_cells(board: Board) -> list[tuple[int, int]]:
    """Returns row and column of each empty cell."""
    return [(y, x) for y, row in enumerate(board) for x, tile in enumerate(row) if not tile]


def with_tile(board: Board, cell: tuple[int, int], tile: int) -> Board:
    """Returns a board with a tile in a cell."""
    y, x = cell
    return (*board[:y], (*board[y][:x], tile, *board[y][x + 1 :]), *board[y + 1 :])


def worth(board: Board) -> float:
    """Returns how good a board is: large tiles on a snake from a corner, and empty cells."""
    snake = [tile for n, row in enumerate(board) for tile in row[:: -1 if n % 2 else 1]]
    return sum(tile * 0.5**n for n, tile in enumerate(snake)) + 2 * snake.count(0)


def outlook(board: Board) -> float:
    """Returns the mean worth after the next tile, taken to be a 2, if the best move answers it."""
    replies = [[worth(end) for _, end in slides(with_tile(board, cell, 2))] for cell in empty_cells(board)]
    return sum(max(ends, default=0.0) for ends in replies) / len(replies)


class Game2048(Classic[str, tuple[Board, int]]):
    """The game 2048; the puzzle is its task's id, the state is the board and the number of tiles that have come."""

    tools = (Tool.of_string("slide", "Slide all tiles.", "command", "Where to.", DIRECTIONS),)
    takes = Game2048Options
    options: Game2048Options
    dial, samples = "goal", DIRECTIONS

    def _puzzle(self, name: str) -> str:
        return f"{self.seed}{name}"

    def _facts(self, puzzle: str) -> dict[str, Any]:
        return {"tiles": [number_of(puzzle, n) for n in range(4)]}

    def _rules(self, puzzle: str) -> str:
        return (
            f"Slide the tiles until one is {self.options.goal}. Two equal tiles that meet become their sum. After each "
            "move a 2 comes into an empty cell, or, once in ten times, a 4."
        )

    def _opening(self) -> tuple[Board, int]:
        blank: Board = ((0,) * self.options.size,) * self.options.size
        return self._with_next(*self._with_next(blank, 0))

    def _with_next(self, board: Board, number: int) -> tuple[Board, int]:
        chance, cells = number_of(self.puzzle, number), empty_cells(board)
        return with_tile(board, cells[chance % len(cells)], 2 if (chance >> 32) % 10 else 4), number + 1

    def _possible(self) -> tuple[str, ...]:
        return tuple(direction for direction, _ in slides(self.state[0]))

    def _move(self, command: str) -> tuple[Board, int]:
        return self._with_next(slide(self.state[0], command), self.state[1])

    def _result(self) -> bool | None:
        if max(map(max, self.state[0])) >= self.options.goal:
            return True
        return None if self._possible() else False

    def _show(self) -> str:
        return "\n".join(" ".join(str(tile or ".") for tile in row) for row in self.state[0])

    def best(self) -> str:
        """Returns the direction with the best outlook. It looks one tile ahead: nobody has solved the 4x4 board."""
        return max(slides(self.state[0]), key=lambda way: outlook(way[1]))[0]


Game2048Expert = partial(ClassicExpert, Game2048)
