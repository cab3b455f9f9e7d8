"""An expert that knows the supporting pages and the answer, and finds the pages with the tools that an agent has."""

from __future__ import annotations

from typing import Any

import gymnasium

from envsuite.core.players import unwrap_episode
from envsuite.core.tools import Action, ToolCall
from envsuite.searchqa.env import SearchQAEnv
from envsuite.searchqa.scoring import CANNOT_BE_ANSWERED
from envsuite.searchqa.tasks import ENV_ID
from envsuite.searchqa.world import LONGEST_QUERY, QuestionSearch


class SearchQAExpert:
    """Searches the next supporting page, one a step, and answers when all were found or searched.

    The query is the page's title; where the title alone does not find it, with the first words of its text.
    """

    def act(self, env: gymnasium.Env[Any, Action]) -> Action:
        """Returns the next action in the episode of ``env``, a SearchQA in any wrappers.

        Raises:
            UsageError: ``env`` is another environment, or has no running episode.
        """
        inner = unwrap_episode(env, ENV_ID, SearchQAEnv)
        session = inner.session
        keys = set(session.keys())
        for key in session.question.support:
            query = "" if key in keys else _query(session, key)
            if query and query not in session.queries:
                return (ToolCall("search", {"query": query}),)
        answer = session.question.answers[0] if session.question.answerable else CANNOT_BE_ANSWERED[0]
        return (ToolCall("answer", {"text": answer}),)


def _query(session: QuestionSearch, key: str) -> str:
    """Returns the shortest query of a few that finds a page: its title, or that and more and more of its text."""
    library = session.library
    number = library.corpus.number(key)
    if number is None:
        return key
    title, text = library.corpus.content(number)
    words = text.split()
    queries = [" ".join([*title.split(), *words[:more]])[:LONGEST_QUERY].strip() for more in (0, 8, 20, 60)]
    finding = (query for query in queries if number in library.search(query, session.results))
    return next(finding, queries[0])
