"""A world of ``minigrid`` while it is played: what commands do, and what can be told of its state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import metadata
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from envsuite.babyai.text import explain_refusal
from envsuite.core.errors import require_extra

with require_extra("BabyAI-v0 needs minigrid", "babyai"):
    import minigrid  # noqa: F401  (registers the levels)
    from minigrid.envs.babyai.core import roomgrid_level, verifier

# A world that minigrid draws again is a line on the standard output, which a server may speak its protocol on.
vars(roomgrid_level)["print"] = lambda *values: None

VERSION = f"minigrid-{metadata.version('minigrid')}"
"""Determines the worlds."""
COMMANDS = ("turn left", "turn right", "go forward", "pick up", "drop", "toggle")
"""Commands, at the places of minigrid's actions; it has a seventh one, ``done``, which no mission needs."""
UNSOLVABLE = ("KeyInBox", "OpenDoorsOrderN2Debug", "OpenDoorsOrderN4Debug")
"""Levels left out: the bot does not look into boxes, and the second door of some missions fails them at the first."""

LEVELS = {
    level: env_id
    for env_id in gymnasium.registry
    if (level := env_id.removeprefix("BabyAI-").rpartition("-")[0]) and env_id.startswith("BabyAI-")
    if level not in UNSOLVABLE
}
"""Name of a level -> the id that minigrid has registered for it."""


class BabyAIWorld:
    """A world of a level.

    Args:
        level: One of :data:`LEVELS`.
        seed: The world is the one that minigrid makes from it.
    """

    def __init__(self, level: str, seed: int) -> None:
        inner: Any = gymnasium.make(LEVELS[level], disable_env_checker=True).unwrapped
        inner.reset(seed=seed)
        self.inner = inner
        """The environment of minigrid."""
        self.mission = str(inner.mission)
        """The mission, as minigrid words it."""
        self.max_steps = int(inner.max_steps)
        """Steps after which minigrid truncates an episode of this world."""
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
        before = self._mark()
        observation, self.reward, self.over, _, _ = self.inner.step(COMMANDS.index(command))
        self.image = observation["image"]
        self.played.append(command)
        has_changed = self.over or self._mark() != before
        return None if has_changed else explain_refusal(command, self.front, self.carrying)

    def replay(self, commands: Sequence[str]) -> None:
        """Executes the commands of an episode from its beginning, in a fraction of the time of :meth:`do`."""
        self.inner.gen_obs = dict  # nobody looks
        for command in commands:
            _, self.reward, self.over, _, _ = self.inner.step(COMMANDS.index(command))
        del self.inner.gen_obs
        self.played, self.image = [*commands], self.inner.gen_obs()["image"]

    def _mark(self) -> tuple[object, ...]:
        """Returns what a command can change."""
        front = self.front
        return self.position, self.inner.agent_dir, self.carrying, front, front and front.encode(), self.done_parts

    def possible(self) -> tuple[str, ...]:
        """Returns the commands that change something in the world."""
        front, carrying = self.front, self.carrying
        kind = front and front.type
        key = front and carrying and (carrying.type, carrying.color) == ("key", front.color)
        able = {
            "go forward": not front or front.can_overlap(),
            "pick up": front and front.can_pickup() and not carrying,
            "drop": carrying and not front,
            "toggle": kind == "box" or (kind == "door" and (key or not front.is_locked)),
        }
        return tuple(command for command in COMMANDS if able.get(command, True))

    @property
    def position(self) -> tuple[int, int]:
        """Column and row of the agent."""
        x, y = self.inner.agent_pos
        return int(x), int(y)

    @property
    def carrying(self) -> Any:
        """The object of minigrid that the agent carries, or ``None``."""
        return self.inner.carrying

    @property
    def front(self) -> Any:
        """The object of minigrid in front of the agent, or ``None``."""
        return self.inner.grid.get(*self.inner.front_pos)

    @property
    def done_parts(self) -> tuple[str, ...]:
        """The parts of a mission of several that are done, as it words them."""
        return tuple(self._texts[place] for place in self.places_done())

    def places_done(self) -> list[int]:
        """Returns the places in :attr:`parts` of those that are done; none of a mission that is one instruction."""
        holders = [(place, whole, flag) for place, (_, whole, flag) in enumerate(self.parts) if whole is not None]
        return [place for place, whole, flag in holders if vars(whole)[flag] == "success"]

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
