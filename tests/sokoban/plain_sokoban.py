"""Sokoban written down plainly, to compare with: a grid of characters, and a breadth-first search."""

from __future__ import annotations

from collections import deque
from pathlib import Path

STEPS = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
Cell = tuple[int, int]


class PlainSokoban:
    """One level; rows are those of a level file."""

    def __init__(self, rows: list[str]) -> None:
        cells = {(r, c): symbol for r, row in enumerate(rows) for c, symbol in enumerate(row)}
        self.walls = {cell for cell, symbol in cells.items() if symbol == "#"}
        self.targets = {cell for cell, symbol in cells.items() if symbol in ".*+"}
        self.boxes = {cell for cell, symbol in cells.items() if symbol in "$*"}
        (self.player,) = (cell for cell, symbol in cells.items() if symbol in "@+")
        self.shape = len(rows), max(map(len, rows))

    def move(self, direction: str) -> bool:
        down, right = STEPS[direction]
        row, column = self.player
        new, beyond = (row + down, column + right), (row + 2 * down, column + 2 * right)
        if new in self.walls or (new in self.boxes and (beyond in self.walls or beyond in self.boxes)):
            return False
        if new in self.boxes:
            self.boxes = self.boxes - {new} | {beyond}
        self.player = new
        return True

    @property
    def solved(self) -> bool:
        return self.boxes == self.targets

    def text(self) -> str:
        def symbol(cell: Cell) -> str:
            on_target = cell in self.targets
            if cell == self.player:
                return "+" if on_target else "@"
            if cell in self.boxes:
                return "*" if on_target else "$"
            return "#" if cell in self.walls else "." if on_target else " "

        return "\n".join("".join(symbol((r, c)) for c in range(self.shape[1])) for r in range(self.shape[0]))


def fewest_pushes(rows: list[str]) -> int | None:
    """The fewest pushes that solve a small level, by trying all; ``None`` if it cannot be solved."""
    world = PlainSokoban(rows)
    first = (world.player, frozenset(world.boxes))
    best, queue = {first: 0}, deque([first])
    while queue:  # a walk costs nothing and goes first
        player, boxes = queue.popleft()
        if boxes == world.targets:
            return best[player, boxes]
        for direction in STEPS:
            world.player, world.boxes = player, set(boxes)
            if not world.move(direction):
                continue
            state = (world.player, frozenset(world.boxes))
            cost = best[player, boxes] + (state[1] != boxes)
            if cost < best.get(state, 1 << 30):
                best[state] = cost
                (queue.append if state[1] != boxes else queue.appendleft)(state)
    return None


def boards(path: Path) -> list[list[str]]:
    """The levels of one of Boxoban's files, whose rows are never blank and follow ``; N``."""
    levels: list[list[str]] = []
    for line in path.read_text().split("\n"):
        if line.startswith(";"):
            levels.append([])
        elif line:
            levels[-1].append(line)
    return levels
