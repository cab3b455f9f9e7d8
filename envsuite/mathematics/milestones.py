"""Milestones of PythonMath: code that prints the right answer, and the right answer."""

from __future__ import annotations

from typing import ClassVar

from envsuite.core.env import StepInfo, ToolEnv
from envsuite.core.players import unwrap_local_env
from envsuite.core.tools import Action
from envsuite.mathematics.answers import is_right
from envsuite.mathematics.env import PythonMathEnv
from envsuite.mathematics.tasks import ENV_ID

LONGEST = 200
"""Most characters of a last line of output that is compared with the answer."""


class MathMilestones:
    """The first is one of generated problems alone: others may need no code."""

    from_observations: ClassVar[bool] = False

    def __init__(self, env: ToolEnv) -> None:
        self._env = unwrap_local_env(env, ENV_ID, PythonMathEnv)
        self._left = {"printed", "answered"} if self._env.problem.code else {"answered"}
        self.count = len(self._left)

    def count_reached(self, action: Action, info: StepInfo) -> int:
        """Returns 1 if the last line of the output is the right answer, or the answer is right, for the first time."""
        milestone = ""
        if info["success"]:
            milestone = "answered"
        elif not self._env.done and info["valid"] and "printed" in self._left:
            last_line = self._env.observation["text"].strip().rpartition("\n")[2]
            if len(last_line) <= LONGEST and is_right(self._env.problem.answer, last_line):
                milestone = "printed"
        if milestone not in self._left:
            return 0
        self._left.remove(milestone)
        return 1
