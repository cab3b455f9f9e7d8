"""A player that errs now and then: demonstrations for a small base model."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium

from envsuite.core.errors import UsageError
from envsuite.core.players import unwrap_local_env
from envsuite.core.practice import FallibleTeacher
from envsuite.core.tools import Action, Move, ToolCall
from envsuite.sokoban.expert import SokobanExpert
from envsuite.sokoban.level import DIRECTIONS
from envsuite.sokoban.world import Sokoban


@dataclass(frozen=True)
class Pusher(FallibleTeacher):
    """Makes the expert's moves, and others now and then; plans again after these, and goes anywhere once it is lost."""

    stray: float = 0.0
    """Probability that a move is any that is not blocked, instead of the expert's: a slip, which is context for
    imitation and not its target, as are the moves when the level is lost."""
    rash: float = 0.0
    """Probability that the player does so in half of its moves, for a whole episode, all of which are targets."""

    def turns(self, env: gymnasium.Env[Any, Action], rng: random.Random) -> Iterator[Move]:
        """Yields each move in the current episode of ``env``; the caller steps ``env`` in between."""
        from envsuite.sokoban.env import SokobanEnv

        sokoban = unwrap_local_env(env, "Sokoban-v0", SokobanEnv)
        rash = self.rash > 0.0 and rng.random() < self.rash
        stray = 0.5 if rash else self.stray
        expert, is_lost = SokobanExpert(), False
        while True:
            world = sokoban.world  # another one after a restored snapshot
            direction = "" if is_lost else _plan_move(expert, world)
            is_lost = not direction
            is_stray = is_lost or rng.random() < stray
            if is_stray:
                direction = rng.choice(world.moves() or DIRECTIONS)
            yield Move("", (ToolCall("move", {"direction": direction}),), slip=is_stray and not rash)


def _plan_move(expert: SokobanExpert, world: Sokoban) -> str:
    """Returns the expert's next move; empty if the level is lost, or was not solved in time."""
    try:
        return expert.moves(world)[0]
    except UsageError:
        return ""
