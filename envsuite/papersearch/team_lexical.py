"""A baseline that plays both agents of a team by comparing words."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from envsuite.core.env import Observation
from envsuite.core.players import played
from envsuite.core.tools import Action, ToolCall
from envsuite.papersearch.lexical import Lexical
from envsuite.papersearch.prompts import TEAM
from envsuite.papersearch.tasks import TEAM_ID
from envsuite.retrieval.analysis import analyze

if TYPE_CHECKING:
    import gymnasium

_CANDIDATES = re.compile(r"^Candidates \(\d+\):\n", re.MULTILINE)
SHARE = 0.5
"""Least share of the query's words in the line of a candidate that is kept."""


class TeamLexical:
    """Searches as :class:`~envsuite.papersearch.lexical.Lexical`; keeps candidates that have half of the query's words.

    It uses the observation only.
    """

    def act(self, env: gymnasium.Env[Any, Action]) -> Action:
        """Returns the next action of the agent whose turn it is.

        Raises:
            UsageError: ``env`` is another environment, or has no running episode.
        """
        inner = played(env, TEAM_ID)
        observation = inner.observation
        task = observation["task"].removesuffix(f"\n\n{TEAM}")
        parts = _CANDIDATES.split(observation["text"])
        if len(parts) == 1:
            return Lexical().answer(Observation(task=task, text=observation["text"], commands=()), inner.max_calls)
        wanted = {*analyze(task.partition("Query: ")[2])}
        lines = parts[-1].splitlines()
        kept = [line.split()[0] for line in lines if len(wanted & {*analyze(line)}) >= SHARE * len(wanted)]
        return (ToolCall("keep", {"paper_ids": kept}),)
