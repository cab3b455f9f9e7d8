"""``RushHour-v0``: move the cars that block the way out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from typing import Any, ClassVar, NamedTuple

from envsuite.classics.game import Classic, ClassicExpert, ClassicOptions, split_of
from envsuite.core.caches import made_once
from envsuite.core.draws import Draw
from envsuite.core.errors import UsageError
from envsuite.core.options import option
from envsuite.core.tools import Tool

SIZE = 6
LETTERS = "ABCDEFGHIJKL"
WAYS = (("left", "right"), ("up", "down"))
EXIT = SIZE - 2
"""Place of the car A when it is out."""
MOST_STATES = 300
"""States of the cars of a puzzle: so few are searched in milliseconds."""
SHARE = 10
"""Tasks that have the same cars on the same lines, each from another first state."""
MOST_LAYOUTS = 2000
"""Layouts that are tried for so many tasks."""
Places = tuple[int, ...]
"""Where each car begins on its line."""


@dataclass(frozen=True, kw_only=True)
class RushHourOptions(ClassicOptions):
    """The options of ``RushHour-v0``."""

    env_id: ClassVar[str] = "RushHour-v0"
    cars: int = option(12, "number of cars and lorries, A included", minimum=8, maximum=len(LETTERS))
    moves: Sequence[int] = option(
        (3, 12), "fewest and most moves of a shortest solution", minItems=2, maxItems=2, items={"minimum": 1}
    )


class Car(NamedTuple):
    """A car, or a lorry, and its line: the column if it is upright, else the row, from 0."""

    upright: bool
    line: int
    length: int


RED = Car(False, 2, 2)
"""The car A, on whose row no other lies."""
STANDS = [
    (Car(upright, line, length), place)
    for upright, line, length in product((False, True), range(SIZE), (2, 3))
    for place in range(SIZE - length + 1)
    if (upright, line) != RED[:2]
]
"""The other cars, and the places where each may stand."""


@cache
def masks(car: Car) -> tuple[int, ...]:
    """Returns the cells of a car as bits, row by row, for each place where it may stand."""
    step, first = (SIZE, car.line) if car.upright else (1, car.line * SIZE)
    bits = [1 << (first + step * place) for place in range(SIZE)]
    return tuple(sum(bits[place : place + car.length]) for place in range(SIZE - car.length + 1))


def steps(bits: Sequence[tuple[int, ...]], places: Places) -> Iterator[tuple[int, int]]:
    """Yields each move of a car over any number of free cells: its number, and where it then begins."""
    occupancy = 0
    for own, place in zip(bits, places, strict=True):
        occupancy |= own[place]
    for number, (own, place) in enumerate(zip(bits, places, strict=True)):
        obstacles = occupancy ^ own[place]
        for way in (range(place - 1, -1, -1), range(place + 1, len(own))):
            for end in way:
                if own[end] & obstacles:
                    break
                yield number, end


def moves(cars: Sequence[Car], places: Places) -> Iterator[tuple[str, Places]]:
    """Yields the command of each move, with the places after it."""
    for number, end in steps([masks(car) for car in cars], places):
        name, cells = WAYS[cars[number].upright][end > places[number]], abs(end - places[number])
        yield f"{LETTERS[number]} {name} {cells}", (*places[:number], end, *places[number + 1 :])


def rows(cars: Sequence[Car], places: Places) -> list[str]:
    """Returns the board: a letter for each cell of a car, a dot for a free one."""
    bits = [masks(car)[place] for car, place in zip(cars, places, strict=True)]
    cells = [next((LETTERS[n] for n, own in enumerate(bits) if own >> cell & 1), ".") for cell in range(SIZE**2)]
    return ["".join(cells[first : first + SIZE]) for first in range(0, SIZE**2, SIZE)]


def distances(cars: Sequence[Car], places: Places) -> dict[Places, int]:
    """Returns the moves of a shortest solution from all states that can be reached; nothing if they are too many."""
    ways, layer, bits = dict[Places, list[Places]](), {places}, [masks(car) for car in cars]
    while layer and len(ways) <= MOST_STATES:
        ways |= {s: [(*s[:n], end, *s[n + 1 :]) for n, end in steps(bits, s)] for s in layer}
        layer = {end for state in layer for end in ways[state]} - ways.keys()
    result = dict[Places, int]()
    layer = set() if layer else {state for state in ways if state[0] == EXIT}
    while layer:
        result |= dict.fromkeys(layer, 1 + max(result.values(), default=-1))
        layer = {end for state in layer for end in ways[state]} - result.keys()
    return result


def layout(draw: Draw, count: int) -> tuple[tuple[Car, ...], Places]:
    """Returns cars, A first, and their places: A is out, the others stand anywhere; fewer cars where no more fit."""
    board, occupancy = [(RED, EXIT)], masks(RED)[EXIT]
    for car, place in draw.sample(STANDS, len(STANDS)):
        if len(board) < count and not masks(car)[place] & occupancy:
            board.append((car, place))
            occupancy |= masks(car)[place]
    board[1:] = sorted(board[1:])
    return tuple(car for car, _ in board), tuple(place for _, place in board)


class Puzzle(NamedTuple):
    """A puzzle with its solution."""

    cars: tuple[Car, ...]
    places: Places
    """The first state."""
    distances: dict[Places, int]
    """Moves of a shortest solution, from each state that can be reached."""


@made_once(64)
def puzzles(count: int, fewest: int, most: int, split: str, key: str) -> list[Puzzle]:
    """Returns :data:`SHARE` puzzles of the same cars, whose split follows from the cars and their lines.

    Raises:
        UsageError: There are none.
    """
    for number in range(MOST_LAYOUTS):
        draw = Draw(f"rushhour {count} {fewest} {most} {key} {number}")
        cars, places = layout(draw, count)
        if len(cars) == count and split_of(cars) == split:
            lengths = distances(cars, places)
            starts = draw.sample(sorted(state for state in lengths if fewest <= lengths[state] <= most), SHARE)
            if len(starts) == SHARE:
                return [Puzzle(cars, start, lengths) for start in starts]
    raise UsageError(f"no {SHARE} puzzles of cars={count} have moves={[fewest, most]}; widen the dials")


class RushHour(Classic[Puzzle, Places]):
    """Cars that move along their lines until A is out at the right; the state is where each begins."""

    tools = (Tool.of_string("drive", "Move a car.", "command", "Car, direction, number of cells, e.g. A right 2."),)
    takes = RushHourOptions
    options: RushHourOptions
    dial, samples = "cars", ("A right 1",)

    def _puzzle(self, name: str) -> Puzzle:
        split, _, place = name.partition("-")
        block, number = divmod(int(place), SHARE)
        fewest, most = self.options.moves
        return puzzles(self.options.cars, fewest, most, split, f"{self.seed}{split} {block}")[number]

    def _facts(self, puzzle: Puzzle) -> dict[str, Any]:
        return {"rows": rows(puzzle.cars, puzzle.places), "moves": puzzle.distances[puzzle.places]}

    def _rules(self, puzzle: Puzzle) -> str:
        return (
            "Get the car A out at the right end of its row. Cars and lorries move along their length, over free cells."
        )

    def _opening(self) -> Places:
        return self.puzzle.places

    def _possible(self) -> tuple[str, ...]:
        return tuple(command for command, _ in moves(self.puzzle.cars, self.state))

    def _move(self, command: str) -> Places:
        return dict(moves(self.puzzle.cars, self.state))[command]

    def _result(self) -> bool | None:
        return True if self.state[0] == EXIT else None

    def _show(self) -> str:
        return "\n".join(" ".join(row) for row in rows(self.puzzle.cars, self.state))

    def best(self) -> str:
        """Returns a move of a shortest solution."""
        return min(moves(self.puzzle.cars, self.state), key=lambda way: self.puzzle.distances[way[1]])[0]


RushHourExpert = partial(ClassicExpert, RushHour)
