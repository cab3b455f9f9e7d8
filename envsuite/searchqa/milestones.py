"""Milestones of SearchQA: the supporting pages, each when it is found."""

from __future__ import annotations

from typing import ClassVar

from envsuite.core.env import StepInfo, ToolEnv
from envsuite.core.players import unwrap_local_env
from envsuite.core.tools import Action
from envsuite.searchqa.env import SearchQAEnv
from envsuite.searchqa.tasks import ENV_ID


class SearchQAMilestones:
    """Each supporting page is one, in any order, and the right answer is the last."""

    from_observations: ClassVar[bool] = False

    def __init__(self, env: ToolEnv) -> None:
        self._env = unwrap_local_env(env, ENV_ID, SearchQAEnv)
        self._left = set(self._env.session.question.support)
        self._answered = False
        self.count = len(self._left) + 1

    def count_reached(self, action: Action, info: StepInfo) -> int:
        """Returns the number of supporting pages that were found for the first time, and 1 for the right answer."""
        new_keys = self._left.intersection(self._env.session.keys())
        self._left -= new_keys
        first_success = info["success"] and not self._answered
        self._answered = self._answered or first_success
        return len(new_keys) + first_success
