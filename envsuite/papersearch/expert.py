"""An expert that knows which papers are gold, and gets them through the tools that an agent has."""

from __future__ import annotations

from typing import Any

import gymnasium

from envsuite.core.players import unwrap_episode
from envsuite.core.tools import Action, ToolCall
from envsuite.papersearch.env import PaperSearchEnv
from envsuite.papersearch.tasks import ENV_ID
from envsuite.papersearch.world import LiteratureSearch


class PaperSearchExpert:
    """Expands the gold papers that lead to most others, and searches the titles of those that are left.

    Where none is left that can be found, as a selector may discard some, it expands the best papers of the list.
    """

    def act(self, env: gymnasium.Env[Any, Action]) -> Action:
        """Returns the next action in the episode of ``env``, a PaperSearch in any wrappers.

        Raises:
            UsageError: ``env`` is another environment, or has no running episode.
        """
        inner = unwrap_episode(env, ENV_ID, PaperSearchEnv)
        return next_calls(inner.session, inner.max_calls)


def next_calls(session: LiteratureSearch, most: int) -> Action:
    """Returns the expert's next calls, at most so many."""
    return tuple(plan(session, most) or [_idle(session)])


def _idle(session: LiteratureSearch) -> ToolCall:
    """Returns a call that is not charged, where no gold paper is left to find."""
    for number in session.papers[session.rank_papers()].tolist():
        if number not in session.expanded:
            return ToolCall("expand", {"paper_id": session.library.key(number)})
    return ToolCall("search", {"query": f"{session.question.text} {len(session.asked)}"})


def plan(session: LiteratureSearch, most: int) -> list[ToolCall]:
    """Returns the next calls: of the most useful expansions first, then searches of titles.

    Args:
        session: The episode.
        most: Most calls.
    """
    library, question, rules = session.library, session.question, session.rules
    open_gold = question.gold - session.pool
    calls: list[ToolCall] = []
    open_papers = [number for number in session.papers.tolist() if number not in session.expanded]
    while open_gold and len(calls) < most and open_papers:
        leads = {n: open_gold & {*library.expand(n, rules.citing, rules.cited, question.stop)} for n in open_papers}
        best = max(open_papers, key=lambda number: (len(leads[number]), -number))
        if len(leads[best]) < 2:
            break
        open_gold -= leads[best]
        open_papers.remove(best)
        calls.append(ToolCall("expand", {"paper_id": library.key(best)}))
    for number in sorted(open_gold):
        query = " ".join(library.corpus.title(number).split())
        if len(calls) < most and query.lower() not in session.asked:
            calls.append(ToolCall("search", {"query": query}))
    return calls
