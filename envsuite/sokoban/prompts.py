"""Texts of Sokoban's tool and task, and the styles in which boards are written."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from envsuite.sokoban.level import BOX, BOX_ON_TARGET, FLOOR, PLAYER, PLAYER_ON_TARGET, TARGET, WALL, Level, cells_of

TOOL = "Move by one cell; a box in that cell is pushed one cell further, unless a wall or another box is behind it."
"""Description of the tool ``move``."""

DIRECTION = "Where to go."
"""Description of its argument."""

RULES = (
    "Push every box onto a target. Moving into a box pushes it one cell further, if that cell is free; boxes cannot be "
    "pulled, and two cannot be pushed at once."
)
SOLVED = "All boxes are on targets."
LOST = "The boxes can no longer all be pushed onto targets."


class Style(NamedTuple):
    """A way to write boards."""

    legend: Callable[[Level], str]
    """Writes what the symbols mean, for the end of the task."""
    board: Callable[[Level, int, int], str]
    """Writes a level with these boxes and this player."""


def _grid_style(symbols: dict[str, str], between: str = "") -> Style:
    entries = (f"'{symbols[kind].strip() or ' '}' {name}" for kind, name in _NAMES.items())
    legend = f"Symbols: {', '.join(entries)}."
    translation = str.maketrans(symbols)

    def board(level: Level, boxes: int, player: int) -> str:
        text = level.text(boxes, player).translate(translation)
        return "\n".join([between.join(row) for row in text.split("\n")]) if between else text

    return Style(lambda level: legend, board)


def _list_places(level: Level, boxes: int, player: int) -> str:
    return (
        f"Player: {_places(level, player)}\n"
        f"Boxes on targets: {_places(level, boxes & level.targets)}\n"
        f"Other boxes: {_places(level, boxes & ~level.targets)}\n"
        f"Free targets: {_places(level, level.targets & ~boxes)}"
    )


def _room(level: Level) -> str:
    rows: dict[int, list[int]] = {}
    for cell in cells_of(level.floor):
        rows.setdefault(cell // level.width, []).append(cell % level.width)
    lines = (f"row {row}: columns {', '.join(map(str, columns))}" for row, columns in rows.items())
    return "\n".join(("Cells are (row, column), from (0, 0) at the top left. All cells but these are walls:", *lines))


def _places(level: Level, cells: int) -> str:
    return " ".join(f"({cell // level.width}, {cell % level.width})" for cell in cells_of(cells)) or "none"


_NAMES = {
    WALL: "wall", FLOOR: "floor", TARGET: "target", BOX: "box", BOX_ON_TARGET: "box on a target", PLAYER: "you",
    PLAYER_ON_TARGET: "you on a target",
}  # fmt: skip
_RAGEN = {WALL: "#", FLOOR: "_", TARGET: "O", BOX: "X", BOX_ON_TARGET: "√", PLAYER: "P", PLAYER_ON_TARGET: "S"}
STYLES = {
    "symbols": _grid_style({kind: kind for kind in _NAMES}),
    "ragen": _grid_style(_RAGEN),
    "tabbed": _grid_style({kind: f" {symbol} \t" for kind, symbol in _RAGEN.items()}),
    "spaced": _grid_style(_RAGEN, " "),
    "coordinates": Style(_room, _list_places),
}
"""Styles by name: the symbols of level files; RAGEN's, with the tabs of its first version, or with spaces between;
lists of coordinates."""


PICTURE = Style(
    lambda level: (
        "The image shows the board: brick walls, red rings for targets, brown boxes that turn green on a "
        "target, and you, in blue."
    ),
    lambda level, boxes, player: "The image shows the board.",
)
"""The style of boards that are shown as images alone."""


def task(level: Level, style: Style) -> str:
    """Returns the instruction of an episode: the rules, and what the symbols of ``style`` mean."""
    return f"{RULES}\n{style.legend(level)}"


def blocked_text(direction: str, box: bool) -> str:
    """Returns why a move was refused."""
    return f"You cannot go {direction}: the box there cannot move." if box else f"You cannot go {direction}: a wall."
