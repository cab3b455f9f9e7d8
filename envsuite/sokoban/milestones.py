"""Milestones of Sokoban: more boxes on targets than ever before in the episode."""

from __future__ import annotations

from typing import ClassVar

from envsuite.core.env import StepInfo, ToolEnv
from envsuite.core.players import unwrap_local_env
from envsuite.core.tools import Action
from envsuite.sokoban.env import SokobanEnv
from envsuite.sokoban.tasks import ENV_ID


class SokobanMilestones:
    """One for each box that is not on a target at first; which box, and in which order, is open.

    The moves of the expert are none: many orders of moves solve a level.
    """

    from_observations: ClassVar[bool] = False

    def __init__(self, env: ToolEnv) -> None:
        self._world = unwrap_local_env(env, ENV_ID, SokobanEnv).world
        self._most = self._world.placed_boxes
        self.count = self._world.level.boxes.bit_count() - self._most

    def count_reached(self, action: Action, info: StepInfo) -> int:
        """Returns how many more boxes are on targets than ever before."""
        more = max(0, self._world.placed_boxes - self._most)
        self._most += more
        return more
