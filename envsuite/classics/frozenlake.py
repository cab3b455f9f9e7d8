"""``TextFrozenLake-v0``: a walk across a lake past holes, with Gymnasium's maps and transitions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, ClassVar

from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv, generate_random_map

from envsuite.classics.game import Classic, ClassicExpert, ClassicOptions, deal, number_of
from envsuite.core.caches import made_once
from envsuite.core.options import option
from envsuite.core.tools import Tool

DIRECTIONS = ("left", "down", "right", "up")
"""At the places of Gymnasium's actions."""
CELLS = {"S": "frozen", "F": "frozen", "H": "hole", "G": "goal"}
DISCOUNT = 0.99


@dataclass(frozen=True, kw_only=True)
class TextFrozenLakeOptions(ClassicOptions):
    """The options of ``TextFrozenLake-v0``."""

    env_id: ClassVar[str] = "TextFrozenLake-v0"
    size: int = option(4, "rows and columns of the map", minimum=4, maximum=12)
    frozen: float = option(0.8, "probability that a cell is frozen, and no hole", minimum=0.5, maximum=0.9)
    slip: float = option(0.0, "probability that a move goes to a side; Gymnasium's is 2/3", minimum=0.0, maximum=0.9)


@made_once(8)
def maps(size: int, frozen: float, seed: str) -> dict[str, str]:
    """Returns the map of each task as Gymnasium draws it, rows joined by line feeds."""
    key = f"frozenlake {size} {frozen} {seed}"
    return deal(lambda draw: "\n".join(generate_random_map(size, frozen, draw.below(2**32))), key)


@made_once(1024)
def lake(rows: str, slip: float) -> FrozenLakeEnv:
    """Returns Gymnasium's environment of a map, whose transitions are played."""
    return FrozenLakeEnv(desc=rows.split("\n"), is_slippery=slip > 0, success_rate=1 - slip)


@made_once(1024)
def policy(rows: str, slip: float) -> list[int]:
    """Returns the best action in each cell, by value iteration; where nothing slips it goes the shortest safe way."""
    table = lake(rows, slip).P
    values, change = dict.fromkeys(table, 0.0), 1.0

    def worth(ways: list[tuple[float, int, float, bool]]) -> float:
        return sum(share * (reward + DISCOUNT * values[end] * (not over)) for share, end, reward, over in ways)

    while change > 1e-9:
        better = {cell: max(map(worth, actions.values())) for cell, actions in table.items()}
        change = max(better[cell] - values[cell] for cell in table)
        values = better
    return [max(actions, key=lambda action: worth(actions[action])) for actions in table.values()]


class TextFrozenLake(Classic[str, tuple[int, int]]):
    """A walk from S to G past holes; the state is the cell, row by row, and the number of moves."""

    tools = (Tool.of_string("move", "Move one cell.", "command", "Where to.", DIRECTIONS),)
    takes = TextFrozenLakeOptions
    options: TextFrozenLakeOptions
    dial, samples = "size", DIRECTIONS

    def _puzzle(self, name: str) -> str:
        return maps(self.options.size, self.options.frozen, self.seed)[name]

    def _facts(self, puzzle: str) -> dict[str, Any]:
        return {"map": puzzle}

    def _rules(self, puzzle: str) -> str:
        slips = f" {self.options.slip:.0%} of the moves slip to one of the two sides." if self.options.slip else ""
        return f"Cross the frozen lake to the goal G. A is you, F and S are frozen, a hole H is the end.{slips}"

    def _opening(self) -> tuple[int, int]:
        return 0, 0

    def _possible(self) -> tuple[str, ...]:
        return DIRECTIONS  # at the edge a move stays where it is, as in Gymnasium

    def _move(self, command: str) -> tuple[int, int]:
        cell, moves = self.state
        ways = lake(self.puzzle, self.options.slip).P[cell][DIRECTIONS.index(command)]
        chance, bounds = number_of(self.puzzle, moves) / 2**64, accumulate(share for share, *_ in ways)
        end = next((way[1] for way, limit in zip(ways, bounds, strict=True) if chance < limit), ways[-1][1])
        return int(end), moves + 1

    def _result(self) -> bool | None:
        return {"G": True, "H": False}.get(self.puzzle.replace("\n", "")[self.state[0]])

    def _show(self) -> str:
        rows = [[*line] for line in self.puzzle.split("\n")]
        row, column = divmod(self.state[0], len(rows))
        near = [(row, column - 1), (row + 1, column), (row, column + 1), (row - 1, column)]
        cells = [CELLS[rows[y][x]] if min(y, x) >= 0 and max(y, x) < len(rows) else "edge" for y, x in near]
        rows[row][column] = "A"
        around = ", ".join(f"{name}: {cell}" for name, cell in zip(DIRECTIONS, cells, strict=True))
        return "\n".join([*map(" ".join, rows), around])

    def best(self) -> str:
        """Returns the direction of the :func:`policy`."""
        return DIRECTIONS[policy(self.puzzle, self.options.slip)[self.state[0]]]


TextFrozenLakeExpert = partial(ClassicExpert, TextFrozenLake)
