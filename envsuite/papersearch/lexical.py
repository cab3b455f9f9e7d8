"""A baseline that searches the query's words and expands the papers that are shown first."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from envsuite.core.env import Observation
from envsuite.core.players import played
from envsuite.core.tools import Action, ToolCall
from envsuite.papersearch.prompts import NO_PAPERS
from envsuite.papersearch.tasks import ENV_ID

if TYPE_CHECKING:
    import gymnasium

_QUERY = re.compile(r"^Query: (.*)", re.MULTILINE | re.DOTALL)
_PAPER = re.compile(r"^(\S+) \(\d+\) ([^|\n]*)(?:\| [^\n]*?)?( \[expanded\])?$", re.MULTILINE)


class Lexical:
    """Searches the query, then expands the best papers that are shown, and searches the titles of the next.

    It uses the observation only.
    """

    def act(self, env: gymnasium.Env[Any, Action]) -> Action:
        """Returns the next action in the episode of ``env``, a PaperSearch in any wrappers, here or on a server.

        Raises:
            UsageError: ``env`` is another environment, or has no running episode.
        """
        inner = played(env, ENV_ID)
        return self.answer(inner.observation, inner.max_calls)

    def answer(self, observation: Observation, max_calls: int) -> Action:
        """Returns the action for an observation."""
        asked, text = _QUERY.search(observation["task"]), observation["text"]
        query = asked[1] if asked else observation["task"]
        if NO_PAPERS in text and "search " not in text:
            return (ToolCall("search", {"query": query}),)
        papers = [(found[1], found[2].strip(), bool(found[3])) for found in _PAPER.finditer(text)]
        calls = [ToolCall("expand", {"paper_id": key}) for key, _, done in papers if not done][: max_calls - 1]
        titles = [title for _, title, _ in papers if f'search "{title}"' not in text]
        calls += [ToolCall("search", {"query": title}) for title in titles[: max_calls - len(calls)]]
        return tuple(calls) or (ToolCall("search", {"query": f"{query} {text.count('search ')}"}),)
