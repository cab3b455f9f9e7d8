"""Milestones of PaperSearch: the gold papers, each when it is found."""

from __future__ import annotations

from typing import ClassVar

from envsuite.core.env import StepInfo, ToolEnv
from envsuite.core.players import unwrap_local_env
from envsuite.core.tools import Action
from envsuite.papersearch.env import PaperSearchEnv
from envsuite.papersearch.tasks import ENV_ID


class PaperSearchMilestones:
    """Each is reached when a gold paper comes into the pool, in any order."""

    from_observations: ClassVar[bool] = False

    def __init__(self, env: ToolEnv) -> None:
        self._env = unwrap_local_env(env, ENV_ID, PaperSearchEnv)
        self._left = set(self._env.session.question.gold)
        self.count = len(self._left)

    def count_reached(self, action: Action, info: StepInfo) -> int:
        """Returns the number of gold papers that are in the pool for the first time."""
        papers = self._left & self._env.session.pool
        self._left -= papers
        return len(papers)
