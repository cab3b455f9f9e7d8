"""The world of Sokoban: a player who pushes boxes."""

from __future__ import annotations

from envsuite.sokoban.level import Level, shift_cells, steps

BLOCKED, WALKED, PUSHED = 0, 1, 2
"""Results of a move."""


class Sokoban:
    """A level while it is played.

    Args:
        level: The board at the beginning.
    """

    __slots__ = ("_steps", "_walls", "boxes", "level", "player", "pushes")

    def __init__(self, level: Level) -> None:
        self.level = level
        self.boxes = level.boxes
        """Cells of the boxes."""
        self.player = level.player
        """Cell of the player."""
        self.pushes = 0
        self._walls = level.walls
        self._steps = steps(level.width)

    def move(self, direction: str) -> int:
        """Moves the player by one cell, and the box that is there by one cell further.

        Args:
            direction: One of :data:`~envsuite.sokoban.level.DIRECTIONS`.

        Returns:
            :data:`PUSHED`, :data:`WALKED`, or :data:`BLOCKED` if a wall or a second box is in the way.
        """
        step = self._steps[direction]
        cell = self.player << step if step > 0 else self.player >> -step
        if cell & self._walls:
            return BLOCKED
        if cell & self.boxes:
            beyond = cell << step if step > 0 else cell >> -step
            if beyond & (self._walls | self.boxes):
                return BLOCKED
            self.boxes ^= cell | beyond
            self.player = cell
            self.pushes += 1
            return PUSHED
        self.player = cell
        return WALKED

    def box_at(self, direction: str) -> bool:
        """Returns whether a box is in the next cell in a direction."""
        return bool(shift_cells(self.player, self._steps[direction]) & self.boxes)

    @property
    def solved(self) -> bool:
        """Whether every box is on a target."""
        return self.boxes == self.level.targets

    @property
    def placed_boxes(self) -> int:
        """Number of boxes on targets."""
        return (self.boxes & self.level.targets).bit_count()

    def moves(self) -> tuple[str, ...]:
        """Returns the directions that are not blocked."""
        obstacles = self._walls | self.boxes
        free = []
        for direction, step in self._steps.items():
            cell = self.player << step if step > 0 else self.player >> -step
            beyond = cell << step if step > 0 else cell >> -step
            if not (cell & self._walls or (cell & self.boxes and beyond & obstacles)):
                free.append(direction)
        return tuple(free)

    def is_deadlocked(self) -> bool:
        """Whether no pushes can bring the boxes to the targets, as far as two rules tell.

        A box is on a cell from which none could be pushed to a target even if it were alone; or some boxes off their
        targets hold each other in place. What these rules find is lost; not all that is lost is found.
        """
        level = self.level
        return bool(self.boxes & ~level.alive or frozen(level, self.boxes) & ~level.targets)


def frozen(level: Level, boxes: int) -> int:
    """Returns the boxes that nobody can push any more without losing, as far as they and walls hold each other.

    Each has on both axes a wall or another of them beside it, or cells on both sides that are not alive.
    """
    walls, width, dead = level.walls, level.width, ~level.alive
    lost_across, lost_along = dead << 1 & dead >> 1, dead << width & dead >> width
    while True:
        anchors = walls | boxes
        still = boxes & (anchors << 1 | anchors >> 1 | lost_across) & (anchors << width | anchors >> width | lost_along)
        if still == boxes:
            return boxes
        boxes = still
