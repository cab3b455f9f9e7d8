"""A solver: A* over pushes, with deadlock detection."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush
from math import inf

from envsuite.sokoban.level import Level, cells_of, reachable, shift_cells, steps
from envsuite.sokoban.world import frozen

Push = tuple[int, str]
"""Cell of a box, as a bit, and the direction in which it is pushed."""
_MATCHED = 6  # with more boxes the estimate does not match boxes with targets: that costs 2 ** boxes


@dataclass(frozen=True)
class Solution:
    """Result of a search."""

    moves: tuple[str, ...] | None
    """Directions from the given state to a solved one; ``None`` if there are none."""
    pushes: int
    """How many of the moves push a box."""
    states: int
    """States that were looked at."""
    complete: bool
    """Whether the search came to its end: without moves, the level is lost then; else it was given up."""


def solve(
    level: Level, boxes: int | None = None, player: int | None = None, most: int = 200_000, greed: float = 1.0
) -> Solution:
    """Searches for the moves that push every box onto a target.

    Of all moves those with the fewest pushes are found if ``greed`` is 1, and of walks between them the shortest.

    Args:
        level: The board.
        boxes: Cells of the boxes; the level's by default.
        player: Cell of the player; the level's by default.
        most: States after which the search is given up.
        greed: Weight of the estimated number of pushes that are left against those made: more than 1 finds a solution
            sooner, with at most ``greed`` times as many pushes as needed.
    """
    boxes = level.boxes if boxes is None else boxes
    player = level.player if player is None else player
    width, targets, floor, alive = level.width, level.targets, level.floor, level.alive
    ways = tuple(steps(width).items())
    estimate = _Estimate(level)
    if boxes & ~alive or frozen(level, boxes) & ~targets or estimate(boxes) == inf:
        return Solution(None, 0, 1, True)
    first = (boxes, player)
    came: dict[tuple[int, int], tuple[tuple[int, int], Push] | None] = {first: None}
    best = {first: 0}
    closed_set: set[tuple[int, int]] = set()
    queue: list[tuple[float, int, int, int, int]] = [(0.0, 0, 0, boxes, player)]
    count = 0
    while queue:
        _, _, _, boxes, player = heappop(queue)
        pushes = best[boxes, player]
        if boxes == targets:
            return Solution(_moves(level, *first, _pushes(came, (boxes, player))), pushes, len(closed_set) + 1, True)
        reach = reachable(player, floor & ~boxes, width)
        if (boxes, reach & -reach) in closed_set:
            continue
        if len(closed_set) >= most:
            return Solution(None, 0, len(closed_set), False)
        closed_set.add((boxes, reach & -reach))
        room = alive & ~boxes
        for direction, step in ways:
            can = boxes & shift_cells(reach, step) & shift_cells(room, -step)
            while can:
                box = can & -can
                can ^= box
                after = boxes ^ box ^ shift_cells(box, step)
                cost = pushes + 1
                if best.get((after, box), inf) <= cost:
                    continue
                lower_bound = estimate(after)
                if lower_bound == inf:
                    continue
                best[after, box] = cost
                came[after, box] = ((boxes, player), (box, direction))
                count += 1
                heappush(queue, (cost + greed * lower_bound, -cost, count, after, box))
    return Solution(None, 0, len(closed_set), True)


class _Estimate:
    """Fewest pushes that boxes may need: those of each box alone on the board, every box to a target of its own."""

    def __init__(self, level: Level) -> None:
        self._level = level
        self._to_target = [_distances(level, 1 << cell) for cell in cells_of(level.targets)]
        self._to_any = {cell: min(d.get(cell, inf) for d in self._to_target) for cell in cells_of(level.alive)}
        self._known: dict[int, float] = {}

    def __call__(self, boxes: int) -> float:
        """Returns the estimate for ``boxes``; infinite if they are in a deadlock that the rules find."""
        lower_bound = self._known.get(boxes)
        if lower_bound is None:
            if frozen(self._level, boxes) & ~self._level.targets:
                lower_bound = inf
            elif len(self._to_target) > _MATCHED:
                lower_bound = sum(self._to_any[cell] for cell in cells_of(boxes))
            else:
                lower_bound = _least_matching([[d.get(cell, inf) for d in self._to_target] for cell in cells_of(boxes)])
            self._known[boxes] = lower_bound
        return lower_bound


def _least_matching(costs: list[list[float]]) -> float:
    """Returns the least sum of one cost in each row, all of different columns."""
    sums = {0: 0.0}
    for row in costs:
        further: dict[int, float] = {}
        for columns, total in sums.items():
            for column, cost in enumerate(row):
                if not columns >> column & 1 and total + cost < further.get(columns | 1 << column, inf):
                    further[columns | 1 << column] = total + cost
        sums = further
    return min(sums.values(), default=inf)


@lru_cache(maxsize=1024)
def _distances(level: Level, target: int) -> dict[int, int]:
    """Returns for each cell how many pushes bring a box from there to ``target``, alone on the board."""
    distances, front, distance = {}, target, 0
    area = target
    while front:
        distances.update(dict.fromkeys(cells_of(front), distance))
        front = level.pull_cells(front) & ~area
        area |= front
        distance += 1
    return distances


def _pushes(came: dict[tuple[int, int], tuple[tuple[int, int], Push] | None], state: tuple[int, int]) -> list[Push]:
    pushes = []
    while (before := came[state]) is not None:
        state, push = before
        pushes.append(push)
    return pushes[::-1]


def _moves(level: Level, boxes: int, player: int, pushes: list[Push]) -> tuple[str, ...]:
    """Returns the moves that make ``pushes``, with the shortest walks between them."""
    step_to = steps(level.width)
    moves: list[str] = []
    for box, direction in pushes:
        step = step_to[direction]
        moves += _path(level, player, shift_cells(box, -step), level.floor & ~boxes)
        moves.append(direction)
        boxes ^= box | shift_cells(box, step)
        player = box
    return tuple(moves)


def _path(level: Level, start: int, goal: int, free: int) -> list[str]:
    """Returns the directions of a shortest walk from the cell ``start`` to the cell ``goal`` through ``free``."""
    ways = steps(level.width)
    layers, area = [start], start
    while not layers[-1] & goal:
        wider = 0
        for step in ways.values():
            wider |= shift_cells(layers[-1], step)
        layers.append(wider & free & ~area)
        area |= layers[-1]
    path = []
    for layer in reversed(layers[:-1]):
        for direction, step in ways.items():
            if shift_cells(goal, -step) & layer:
                goal = shift_cells(goal, -step)
                path.append(direction)
                break
    return path[::-1]
