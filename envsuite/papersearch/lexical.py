"""Baselines that search the query's words and expand the papers that are shown first, alone and as a team."""

from __future__ import annotations

import re
from typing import Any

import gymnasium

from envsuite.core.env import Observation
from envsuite.core.players import unwrap_env
from envsuite.core.tools import Action, ToolCall
from envsuite.papersearch.prompts import NO_PAPERS, TEAM
from envsuite.papersearch.reading import is_searched, papers_of, query_of
from envsuite.papersearch.tasks import ENV_ID, TEAM_ID
from envsuite.retrieval.analysis import analyze

_CANDIDATES = re.compile(r"^Candidates \(\d+\):\n", re.MULTILINE)
SHARE = 0.5
"""Least share of the query's words in the line of a candidate that is kept."""


class PaperSearchLexical:
    """Searches the query, then expands the best papers that are shown, and searches the titles of the next.

    It uses the observation only.
    """

    def act(self, env: gymnasium.Env[Any, Action]) -> Action:
        """Returns the next action in the episode of ``env``, a PaperSearch in any wrappers, here or on a server.

        Raises:
            UsageError: ``env`` is another environment, or has no running episode.
        """
        inner = unwrap_env(env, ENV_ID)
        return self.answer(inner.observation, inner.max_calls)

    def answer(self, observation: Observation, max_calls: int) -> Action:
        """Returns the action for an observation."""
        query, text = query_of(observation["task"]), observation["text"]
        if NO_PAPERS in text and "search " not in text:
            return (ToolCall("search", {"query": query}),)
        papers, most = papers_of(text), max(1, max_calls - 1)  # of expansions: one call is left for a search
        calls = [ToolCall("expand", {"paper_id": paper.key}) for paper in papers if not paper.expanded][:most]
        titles = [paper.title for paper in papers if not is_searched(paper.title, text)]
        calls += [ToolCall("search", {"query": title}) for title in titles[: max_calls - len(calls)]]
        return tuple(calls) or (ToolCall("search", {"query": f"{query} {text.count('search ')}"}),)


class TeamLexical:
    """Plays both agents of a team, from the observation only.

    It searches as :class:`PaperSearchLexical`, and keeps candidates that have half of the query's words.
    """

    def act(self, env: gymnasium.Env[Any, Action]) -> Action:
        """Returns the next action of the agent whose turn it is.

        Raises:
            UsageError: ``env`` is another environment, or has no running episode.
        """
        inner = unwrap_env(env, TEAM_ID)
        task, text = inner.observation["task"].removesuffix(f"\n\n{TEAM}"), inner.observation["text"]
        parts = _CANDIDATES.split(text)
        if len(parts) == 1:
            return PaperSearchLexical().answer(Observation(task=task, text=text, commands=()), inner.max_calls)
        terms = {*analyze(task.partition("Query: ")[2])}
        lines = parts[-1].splitlines()
        ids = [line.split()[0] for line in lines if len(terms & {*analyze(line)}) >= SHARE * len(terms)]
        return (ToolCall("keep", {"paper_ids": ids}),)
