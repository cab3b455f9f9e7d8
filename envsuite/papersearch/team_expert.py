"""An expert that plays both agents of a team."""

from __future__ import annotations

from typing import Any

import gymnasium

from envsuite.core.players import unwrap_episode
from envsuite.core.tools import Action, ToolCall
from envsuite.papersearch.expert import next_calls
from envsuite.papersearch.tasks import TEAM_ID
from envsuite.papersearch.team import PaperSearchTeam


class TeamExpert:
    """Searches as :class:`~envsuite.papersearch.expert.PaperSearchExpert`; keeps candidates that are gold papers."""

    def act(self, env: gymnasium.Env[Any, Action]) -> Action:
        """Returns the next action of the agent whose turn it is.

        Raises:
            UsageError: ``env`` is another environment, or has no running episode.
        """
        inner = unwrap_episode(env, TEAM_ID, PaperSearchTeam)
        team = inner.team
        if not team.candidates:
            return next_calls(team, inner.max_calls)
        gold = [number for number in team.candidates if number in team.question.gold]
        return (ToolCall("keep", {"paper_ids": [team.library.key(number) for number in gold]}),)
