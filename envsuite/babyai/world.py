"""A world of ``minigrid`` while it is played: what commands do, and what can be told of its state."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from envsuite.babyai.text import refused
from envsuite.core.errors import MissingExtra, unknown

try:
    import minigrid  # noqa: F401  (registers the levels)
    from minigrid.envs.babyai.core import roomgrid_level, verifier
except ImportError as error:
    raise MissingExtra('BabyAI-v0 needs the package minigrid: pip install "envsuite[babyai]"') from error

# A world that minigrid draws again is a line on the standard output, which a server may speak its protocol on.
vars(roomgrid_level)["print"] = lambda *values: None

VERSION = f"minigrid-{metadata.version('minigrid')}"
"""Determines the worlds."""
COMMANDS = ("turn left", "turn right", "go forward", "pick up", "drop", "toggle")
"""Commands, at the places of minigrid's actions; it has a seventh one, ``done``, which no mission needs."""
UNSOLVABLE = ("KeyInBox", "OpenDoorsOrderN2Debug", "OpenDoorsOrderN4Debug")
"""Levels left out: the bot does not look into boxes, and the second door of some missions fails them at the first."""


def levels() -> dict[str, str]:
    """Returns the id that minigrid has registered for each level, by the level's name."""
    ids = (name for name in gymnasium.registry if name.startswith("BabyAI-"))
    named = {name.removeprefix("BabyAI-").rpartition("-")[0]: name for name in ids}
    return {name: env_id for name, env_id in named.items() if name and name not in UNSOLVABLE}


class World:
    """A world of a level.

    Args:
        level: Name of the level, e.g. ``"GoToLocal"``.
        seed: The world is the one that minigrid makes from it.

    Raises:
        UnknownName: There is no such level.
    """

    def __init__(self, level: str, seed: int) -> None:
        if level not in (known := levels()):
            raise unknown("level of BabyAI-v0", level, known)
        made: Any = gymnasium.make(known[level], disable_env_checker=True).unwrapped
        made.reset(seed=seed)
        self.inner = made
        """The environment of minigrid."""
        self.image: NDArray[np.uint8] = self.inner.gen_obs()["image"]
        """The field of view as minigrid encodes it, of shape (7, 7, 3): column, row, and object, colour and state."""
        self.played: list[str] = []
        """All commands so far, also those that changed nothing."""
        self.reward = 0.0
        """minigrid's own reward of the last step: positive where it completed the mission."""
        self.over = False
        """Whether the mission is done, or has failed."""
        self.parts = tuple(_parts(self.inner.instrs))
        """The simple instructions that the mission is made of."""
        self._texts = [part.surface(self.inner) for part, whole, _ in self.parts if whole is not None]

    def do(self, command: str) -> str | None:
        """Executes one of :data:`COMMANDS`; returns why it changed nothing, ``None`` if it did."""
        reason = refused(command, self.front, self.carrying)
        before = self._mark()
        seen, self.reward, self.over, _, _ = self.inner.step(COMMANDS.index(command))
        self.image = seen["image"]
        self.played.append(command)
        return None if self.over or self._mark() != before else reason

    def _mark(self) -> tuple[object, ...]:
        """Returns what a command can change."""
        front = self.front
        return (self.position, self.direction, self.carrying, front, front and front.encode(), self.done)

    def possible(self) -> tuple[str, ...]:
        """Returns the commands that change something in the world."""
        front, carrying = self.front, self.carrying
        kind = "" if front is None else front.type
        key = carrying is not None and carrying.type == "key" and front is not None and carrying.color == front.color
        able = {
            "go forward": front is None or front.can_overlap(),
            "pick up": front is not None and front.can_pickup() and carrying is None,
            "drop": front is None and carrying is not None,
            "toggle": kind == "box" or (kind == "door" and (key or not front.is_locked)),
        }
        return tuple(command for command in COMMANDS if able.get(command, True))

    @property
    def mission(self) -> str:
        """The mission, as minigrid words it."""
        return str(self.inner.mission)

    @property
    def max_steps(self) -> int:
        """Steps after which minigrid truncates an episode of this world."""
        return int(self.inner.max_steps)

    @property
    def position(self) -> tuple[int, int]:
        """Column and row of the agent."""
        x, y = self.inner.agent_pos
        return int(x), int(y)

    @property
    def direction(self) -> int:
        """The agent's direction: 0 is east, 1 south, 2 west, 3 north."""
        return int(self.inner.agent_dir)

    @property
    def carrying(self) -> Any:
        """The object of minigrid that the agent carries, or ``None``."""
        return self.inner.carrying

    @property
    def front(self) -> Any:
        """The object of minigrid in front of the agent, or ``None``."""
        return self.inner.grid.get(*self.inner.front_pos)

    @property
    def done(self) -> tuple[str, ...]:
        """The parts of a mission of several that are done, as it words them."""
        flags = [vars(whole)[flag] for _, whole, flag in self.parts if whole is not None]
        return tuple(text for text, flag in zip(self._texts, flags, strict=True) if flag == "success")

    def rows(self) -> list[list[Any]]:
        """Returns the objects of minigrid, or ``None``, in the cells of each row, walls too."""
        cells, width = self.inner.grid.grid, self.inner.grid.width
        return [cells[start : start + width] for start in range(0, len(cells), width)]


def _parts(instruction: Any, whole: Any = None, flag: str = "") -> Iterator[tuple[Any, Any, str]]:
    """Yields each simple instruction, the sequence it is in, if any, and the field of that which says if it is done."""
    if isinstance(instruction, verifier.SeqInstr):
        yield from _parts(instruction.instr_a, instruction, "a_done")
        yield from _parts(instruction.instr_b, instruction, "b_done")
    else:
        yield instruction, whole, flag
