"""Words for worlds: what the agent sees, or all there is, and why an action was refused."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envsuite.babyai.world import BabyAIWorld

TOOL = (
    "Act in the world. pick up takes what is in front of you, if you carry nothing; drop puts it there; toggle opens "
    "or closes a door there, with a key of its colour if it is locked, and breaks a box."
)
"""Description of the tool ``act``."""
COMMAND = "What to do."
"""Description of its argument."""
DONE = "The mission is done."
FAILED = "The mission has failed."
KINDS = ("", "", "wall", "floor", "door", "key", "ball", "box")
"""Names of minigrid's numbers of objects; 0 is what is not seen, 1 an empty cell."""
COLOURS = ("red", "green", "blue", "purple", "yellow", "grey")
DOORS = ("an open", "a closed", "a locked")
FACING = ("east", "south", "west", "north")


def task(mission: str) -> str:
    """Returns the instruction of an episode."""
    return f"Your mission: {mission}."


def describe_object(kind: int, colour: int, state: int) -> str:
    """Returns an object in words, from minigrid's numbers for it, e.g. "a locked red door"."""
    if KINDS[kind] == "wall":
        return "a wall"
    return f"{DOORS[state] if KINDS[kind] == 'door' else 'a'} {COLOURS[colour]} {KINDS[kind]}"


def of(entity: Any) -> str:
    """Returns an object of minigrid in words, with what is in it; ``None`` is nothing."""
    if entity is None:
        return "nothing"
    content = "" if entity.contains is None else f" with {of(entity.contains)} in it"
    return f"{describe_object(*entity.encode())}{content}"


def describe_view(world: BabyAIWorld) -> str:
    """Returns the agent's field of view in words: objects, the nearest first, then walls ahead and to both sides."""
    image = world.image.tolist()
    middle, last = len(image) // 2, len(image) - 1
    cells = [(last - y, x - middle, cell) for x, column in enumerate(image) for y, cell in enumerate(column)]
    objects, walls = [], dict[int, str]()
    for ahead, side, cell in sorted(cells, key=lambda entry: (entry[0] + abs(entry[1]), entry)):
        if KINDS[cell[0]] == "wall":
            if not (ahead and side):
                walls.setdefault((side > 0) - (side < 0), f"a wall {_where(ahead, side)}")
        elif KINDS[cell[0]] and (ahead or side):
            objects.append(f"{describe_object(*cell)} {_where(ahead, side)}")
    phrases = [*objects, *(walls[way] for way in (0, -1, 1) if way in walls)]
    return f"You see {', '.join(phrases) or 'nothing'}. You carry {of(world.carrying)}."


def _where(ahead: int, side: int) -> str:
    direction = "right" if side > 0 else "left"
    if not ahead:
        return f"{_steps(abs(side))} {direction}"
    return f"{_steps(ahead)} ahead" + (f" and {abs(side)} {direction}" if side else "")


def _steps(count: int) -> str:
    return f"{count} step" if count == 1 else f"{count} steps"


def full(world: BabyAIWorld) -> str:
    """Returns the whole state in words; cells are (column, row), from (0, 0) at the top left."""
    x, y = world.position
    objects = [
        f"{of(cell)} at ({column}, {row})"
        for row, cells in enumerate(world.rows())
        for column, cell in enumerate(cells)
        if cell is not None and cell.type != "wall"
    ]
    lines = [
        f"You are at ({x}, {y}), facing {FACING[world.inner.agent_dir]}. You carry {of(world.carrying)}.",
        f"There is {', '.join(objects) or 'nothing'}.",
        f"Free of walls: {'; '.join(_floor(world))}.",
    ]
    if world.done_parts:
        lines.append(f"Done so far: {', '.join(world.done_parts)}.")
    return "\n".join(lines)


def _floor(world: BabyAIWorld) -> Iterator[str]:
    """Yields the columns without walls, for each sequence of rows that have the same."""
    free = [_runs([cell is None or cell.type != "wall" for cell in cells]) for cells in world.rows()]
    for columns, same in groupby(enumerate(free), key=lambda row: row[1]):
        numbers = [row for row, _ in same]
        if columns:
            yield f"row {_span(numbers)}, column {columns}"


def _runs(free: list[bool]) -> str:
    cells = [[x for x, _ in run] for is_free, run in groupby(enumerate(free), key=lambda cell: cell[1]) if is_free]
    return " and ".join(map(_span, cells))


def _span(numbers: list[int]) -> str:
    return f"{numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else f"{numbers[0]}"


def explain_refusal(command: str, front: Any, carrying: Any) -> str:
    """Returns why a command changes nothing, from what is in front of the agent and what it carries."""
    if command == "pick up" and carrying is not None:
        why = f"you carry {of(carrying)}"
    elif command == "drop" and carrying is None:
        why = "you carry nothing"
    elif command == "toggle" and front is not None and front.type == "door":
        why = f"it is {of(front)}, and you carry {of(carrying)}"
    else:
        why = f"in front of you is {of(front)}"
    return f"You cannot {command}: {why}."
