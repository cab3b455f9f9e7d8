"""An expert that knows the supporting pages and the answer, and finds the pages with the tools that an agent has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from envsuite.core.errors import UsageError
from envsuite.core.players import looked_into
from envsuite.core.tools import Action, ToolCall
from envsuite.searchqa.env import SearchQAEnv
from envsuite.searchqa.scoring import CANNOT_BE_ANSWERED
from envsuite.searchqa.tasks import ENV_ID

if TYPE_CHECKING:
    import gymnasium


class Expert:
    """Searches the title of the next supporting page, one a step, and answers when all were found or searched."""

    def act(self, env: gymnasium.Env[Any, Action]) -> Action:
        """Returns the next action in the episode of ``env``, a SearchQA in any wrappers.

        Raises:
            UsageError: ``env`` is another environment, or has no running episode.
        """
        inner = looked_into(env, ENV_ID, SearchQAEnv)
        if inner.done:
            raise UsageError("Expert.act called before reset; call reset() first")
        session = inner.session
        found = set(session.keys())
        for key in session.question.support:
            number = session.library.corpus.number(key)
            query = " ".join((key if number is None else session.library.corpus.title(number)).split())
            if key not in found and query not in session.queries:
                return (ToolCall("search", {"query": query}),)
        answer = session.question.answers[0] if session.question.answerable else CANNOT_BE_ANSWERED[0]
        return (ToolCall("answer", {"text": answer}),)
