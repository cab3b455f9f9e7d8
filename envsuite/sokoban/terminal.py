"""Levels to solve in a terminal, by keyboard."""

from __future__ import annotations

import curses
from functools import lru_cache
from typing import Any

from envsuite.core.errors import UsageError
from envsuite.core.tools import ToolCall
from envsuite.sokoban.env import SokobanEnv
from envsuite.sokoban.expert import Expert
from envsuite.sokoban.level import (
    BOX,
    BOX_ON_TARGET,
    FLOOR,
    PLAYER,
    PLAYER_ON_TARGET,
    TARGET,
    WALL,
    Level,
)
from envsuite.sokoban.solver import solve

KEYS = {
    curses.KEY_UP: "up", curses.KEY_DOWN: "down", curses.KEY_LEFT: "left", curses.KEY_RIGHT: "right",
    ord("k"): "up", ord("j"): "down", ord("h"): "left", ord("l"): "right",
}  # fmt: skip
"""Direction of each key that moves: arrows, and vi's."""
HELP = "arrows move  u undo  r restart  n next  p previous  e expert's move  q quit"
_LOOKS = {
    WALL: ("██", "wall"), FLOOR: ("  ", "floor"), TARGET: ("◎ ", "target"), BOX: ("[]", "box"),
    BOX_ON_TARGET: ("[]", "placed"), PLAYER: ("☺ ", "player"), PLAYER_ON_TARGET: ("☺ ", "player"),
}  # fmt: skip
_COLOURS = {
    "wall": curses.COLOR_BLUE, "target": curses.COLOR_RED, "box": curses.COLOR_YELLOW, "placed": curses.COLOR_GREEN,
    "player": curses.COLOR_CYAN,
}  # fmt: skip


class Game:
    """Levels in a row, each with its moves, which can be taken back.

    Args:
        env: The environment.
        first: Id of the first level; that of the split's first by default.

    Raises:
        UnknownTask: There is no such level.
        UsageError: The split is empty.
    """

    def __init__(self, env: SokobanEnv, first: str | None = None) -> None:
        self.env = env
        self._ids = list(env.tasks.ids(env.split or "test"))
        self.seen: set[str] = set()
        self._won: set[str] = set()
        if first is not None and first not in self._ids:
            self._ids.insert(0, first)
        self._place = 0 if first is None else self._ids.index(first)
        self._expert = Expert()
        self._begin()

    @property
    def solved(self) -> int:
        """Number of levels solved."""
        return len(self._won)

    def _begin(self) -> None:
        if not self._ids:
            raise UsageError(f"split {self.env.split!r} has no level; choose another with --split")
        self.task_id = self._ids[self._place]
        _, self._info = self.env.reset(options={"task_id": self.task_id})
        self._past: list[tuple[object, Any]] = []
        self.seen.add(self.task_id)
        self.message = ""

    def press(self, key: int) -> bool:
        """Does what a key stands for; returns whether the game goes on."""
        self.message = ""
        letter = chr(key) if 0 < key < 128 else ""
        if letter == "q":
            return False
        if letter in ("n", "p"):
            self._place = (self._place + (1 if letter == "n" else -1)) % len(self._ids)
            self._begin()
        elif letter == "r":
            self._begin()
        elif letter == "u":
            self._undo()
        elif self.env.done:
            self.message = "This level is solved: n for the next one."
        elif letter == "e":
            self._advise()
        elif key in KEYS:
            self._move(KEYS[key])
        return True

    def _move(self, direction: str) -> None:
        before = (self.env.snapshot(), self._info)
        _, _, _, _, info = self.env.step((ToolCall("move", {"direction": direction}),))
        if info["valid"]:
            self._past.append(before)
        self._info, self.message = info, info["error"] or ""
        if info["success"]:
            self._won.add(self.task_id)

    def _undo(self) -> None:
        if not self._past:
            self.message = "There is nothing to take back."
            return
        token, self._info = self._past.pop()
        self.env.restore(token)

    def _advise(self) -> None:
        try:
            self._move(self._expert.moves(self.env.world)[0])
        except UsageError:
            self.message = "The expert finds no way from here: u takes a move back."

    def board(self) -> list[list[tuple[str, str]]]:
        """Returns rows of cells: two characters, and the name of their look."""
        world = self.env.world
        return [[_LOOKS[kind] for kind in row] for row in world.level.text(world.boxes, world.player).split("\n")]

    def status(self) -> list[str]:
        """Returns the lines below the board."""
        metrics = self._info["metrics"]
        state = "solved!" if self._info["success"] else "lost: u takes a move back" if metrics["deadlock"] else ""
        moves, pushes = round(metrics["moves"]), round(metrics["pushes"])
        return [
            f"{self.task_id}   moves {moves}   pushes {pushes}, fewest {_fewest(self.env.world.level)}   {state}",
            self.message,
            HELP,
        ]


@lru_cache(maxsize=256)
def _fewest(level: Level) -> str:
    found = solve(level, most=20_000)
    return f"{found.pushes}" if found.moves is not None else "unknown"


def play(game: Game) -> None:
    """Shows the game in the terminal and follows the keys until the player quits."""
    curses.wrapper(_loop, game)


def _loop(screen: curses.window, game: Game) -> None:
    curses.curs_set(0)
    looks = _attributes()
    while True:
        screen.erase()
        for row, cells in enumerate(game.board()):
            for column, (text, look) in enumerate(cells):
                _put(screen, row + 1, 2 * column + 2, text, looks.get(look, 0))
        below = len(game.board()) + 2
        for number, line in enumerate(game.status()):
            _put(screen, below + number, 2, line, curses.A_BOLD if number == 0 else 0)
        screen.refresh()
        if not game.press(screen.getch()):
            return


def _attributes() -> dict[str, int]:
    if not curses.has_colors():
        return {}
    curses.use_default_colors()
    for number, colour in enumerate(_COLOURS.values(), 1):
        curses.init_pair(number, colour, -1)
    return {look: curses.color_pair(number) for number, look in enumerate(_COLOURS, 1)}


def _put(screen: curses.window, row: int, column: int, text: str, look: int) -> None:
    """Writes where the window has room."""
    height, width = screen.getmaxyx()
    if row < height and column < width - 1:
        screen.addnstr(row, column, text, width - 1 - column, look)
