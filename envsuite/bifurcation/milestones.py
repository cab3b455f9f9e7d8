"""Milestones of Bifurcation: the forks that are passed, and the end of the walk."""

from __future__ import annotations

from typing import ClassVar

from envsuite.bifurcation.env import ENV_ID, Bifurcation
from envsuite.core.env import StepInfo, ToolEnv
from envsuite.core.players import unwrap_local_env
from envsuite.core.tools import Action


class BifurcationMilestones:
    """One for each fork, and one for coming to the end of a walk that is not lost."""

    from_observations: ClassVar[bool] = False

    def __init__(self, env: ToolEnv) -> None:
        self._env = unwrap_local_env(env, ENV_ID, Bifurcation)
        self._total = 0
        self.count = self._env.kind.decisions + 1

    def count_reached(self, action: Action, info: StepInfo) -> int:
        """Returns how many forks more are passed, and 1 for the end."""
        before, self._total = self._total, self._env.passed + info["success"]
        return self._total - before
