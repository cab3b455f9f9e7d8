"""Milestones of BFCL: the turns that the checker passes."""

from __future__ import annotations

from typing import ClassVar

from envsuite.bfcl.env import BFCL
from envsuite.bfcl.tasks import ENV_ID
from envsuite.core.env import StepInfo, ToolEnv
from envsuite.core.players import unwrap_local_env
from envsuite.core.tools import Action


class BFCLMilestones:
    """One for each turn that is passed, and none that was not before a turn that failed."""

    from_observations: ClassVar[bool] = False

    def __init__(self, env: ToolEnv) -> None:
        self._env = unwrap_local_env(env, ENV_ID, BFCL)
        self._total = 0
        self.count = len(self._env.dialogue.conversation.requests)

    def count_reached(self, action: Action, info: StepInfo) -> int:
        """Returns how many turns more are passed."""
        before, self._total = self._total, self._env.dialogue.passed
        return self._total - before
