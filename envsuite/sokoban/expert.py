"""An expert that solves every level it can search."""

from __future__ import annotations

from typing import Any

import gymnasium

from envsuite.core.errors import UsageError
from envsuite.core.players import unwrap_episode
from envsuite.core.tools import Action, ToolCall
from envsuite.sokoban.env import SokobanEnv
from envsuite.sokoban.level import Level
from envsuite.sokoban.solver import solve
from envsuite.sokoban.tasks import ENV_ID
from envsuite.sokoban.world import Sokoban

_SEARCHES = ((50_000, 1.0), (50_000, 3.0), (400_000, 10.0))
"""States that searches may look at, one after the other, and how greedy each is."""


class SokobanExpert:
    """Plays Sokoban from its state, with the fewest pushes where the search for them ends in time.

    Args:
        calls: Most moves in one action; at most the environment's ``max_calls``.
    """

    def __init__(self, calls: int = 1) -> None:
        self.calls = calls
        self._plan: dict[tuple[Level, int, int], tuple[str, ...]] = {}

    def act(self, env: gymnasium.Env[Any, Action]) -> Action:
        """Returns the next action in the episode of ``env``, a Sokoban in any wrappers.

        Raises:
            UsageError: ``env`` is another environment, has no running episode, or is in a position from which no
                solution was found.
        """
        inner = unwrap_episode(env, ENV_ID, SokobanEnv)
        moves = self.moves(inner.world)[: min(self.calls, inner.max_calls)]
        return tuple(ToolCall("move", {"direction": direction}) for direction in moves)

    def moves(self, world: Sokoban) -> tuple[str, ...]:
        """Returns the moves from the world's state to a solved one; none if it is solved.

        Raises:
            UsageError: None were found.
        """
        if world.solved:
            return ()
        state = (world.level, world.boxes, world.player)
        if state not in self._plan:
            self._plan = _ahead(world, _solution(world))
        return self._plan[state]


def _solution(world: Sokoban) -> tuple[str, ...]:
    states = 0
    for most, greed in _SEARCHES:
        solution = solve(world.level, world.boxes, world.player, most, greed)
        states += solution.states
        if solution.moves is not None:
            return solution.moves
        if solution.complete:
            raise UsageError("the level is lost: no moves bring all boxes to targets from here; reset() or restore()")
    raise UsageError(f"no solution found among {states:,} states; the level may have one")


def _ahead(world: Sokoban, moves: tuple[str, ...]) -> dict[tuple[Level, int, int], tuple[str, ...]]:
    """Returns what is left of ``moves`` in each state on their way."""
    replay = Sokoban(world.level)
    replay.boxes, replay.player = world.boxes, world.player
    plan = {}
    for count, direction in enumerate(moves):
        plan[replay.level, replay.boxes, replay.player] = moves[count:]
        replay.move(direction)
    return plan
