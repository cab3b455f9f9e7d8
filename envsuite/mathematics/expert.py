"""An expert that computes the answers of generated problems, and knows those of problems from files."""

from __future__ import annotations

import re
from typing import Any

import gymnasium

from envsuite.core.players import unwrap_episode
from envsuite.core.tools import Action, ToolCall
from envsuite.mathematics.env import PythonMathEnv
from envsuite.mathematics.tasks import ENV_ID

_NUMBER = re.compile(r"-?[0-9]+(?:[./][0-9]+)?")


class MathExpert:
    """Runs code that computes the answer from the numbers of the problem, and answers what it printed.

    For a problem from a file there is no such code: its right answer is given at once.
    """

    def act(self, env: gymnasium.Env[Any, Action]) -> Action:
        """Returns the next action in the episode of ``env``, a PythonMath in any wrappers.

        Raises:
            UsageError: ``env`` is another environment, or has no running episode.
        """
        inner = unwrap_episode(env, ENV_ID, PythonMathEnv)
        problem = inner.problem
        if not problem.code:
            return (ToolCall("answer", {"text": problem.answer}),)
        text = inner.observation["text"].strip()
        if inner.ran[-1:] == (problem.code,) and _NUMBER.fullmatch(text):
            return (ToolCall("answer", {"text": text}),)
        return (ToolCall("python", {"code": problem.code}),)
