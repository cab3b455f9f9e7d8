"""A player that reads generated pages fact by fact, or answers too early: demonstrations for a small base model."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import gymnasium

from envsuite.core.errors import UsageError
from envsuite.core.players import unwrap_local_env
from envsuite.core.practice import FallibleTeacher
from envsuite.core.tools import Action, Move, ToolCall
from envsuite.searchqa import prompts
from envsuite.searchqa.entities import LINKED, table
from envsuite.searchqa.env import SearchQAEnv
from envsuite.searchqa.scoring import CANNOT_BE_ANSWERED
from envsuite.searchqa.tasks import ENV_ID
from envsuite.searchqa.world import QuestionSearch

_PRONOUNS = {
    **{"He": "He|She", "he": "he|she", "His": "His|Her", "his": "his|her"},
    **{"wife": "wife|husband", "him_or_her": "him|her"},
}
_TITLE = re.compile(r"(.*) \(([^()]*)\)")


def find_value(text: str, relation: str) -> str | None:
    """Returns the value of a relation as a page's text words it; ``None`` if no sentence states it."""
    for sentence in re.split(r"(?<=[.!?]) ", text):
        for form in _forms(relation):
            if (match := form.fullmatch(sentence)) is not None:
                return match["value"]
    return None


def spoken_name(title: str) -> str:
    """Returns how questions speak of the entity of a page, without its article."""
    match = _TITLE.fullmatch(title)
    if match is None:
        return title
    name, descriptor = match.groups()
    return f"town of {name}" if descriptor == "town" else f"{descriptor} {name}"


def speaks_of(mention: str, title: str) -> bool:
    """Whether a name, as a question or a page writes it, is that of the page ``title``."""
    names = (title, spoken_name(title))
    return mention in names or mention.removeprefix("the ").removeprefix("The ") in names


@cache
def _forms(relation: str) -> tuple[re.Pattern[str], ...]:
    texts = [text for kind in table("pages").values() for text in kind.get(relation, ())]
    return tuple(re.compile(_pattern(text)) for text in dict.fromkeys(texts))


def _pattern(template: str) -> str:
    parts = re.split(r"\{(\w+)\}", template)
    for place in range(1, len(parts), 2):
        name = parts[place]
        parts[place] = "(?P<value>.+)" if name == "value" else f"(?:{_PRONOUNS.get(name, '.+')})"
    return "".join(part if place % 2 else re.escape(part) for place, part in enumerate(parts))


@dataclass(frozen=True)
class Reader(FallibleTeacher):
    """Searches the page of what the question names, reads a fact there, searches the page it leads to, and so on.

    Before the first search it states which facts it needs, in their order, ``founder, spouse``; then, with each page,
    the fact that it reads there. What it searches or answers stands in the question or on that page. A fact that the
    page does not state makes it answer "unanswerable".

    From the question's formula it takes the relations and where they start, which the question says in words, and
    nothing else that an agent cannot see.
    """

    rash: float = 0.0
    """Probability that the player is in a hurry in an episode: it states, reads and answers the first fact only."""
    hasty: float = 0.0
    """Probability, at each search, of searching a part of the name first: a slip, which is context for imitation and
    not its target."""

    def turns(self, env: gymnasium.Env[Any, Action], rng: random.Random) -> Iterator[Move]:
        """Yields each move in the current episode of ``env``; the caller steps ``env`` in between.

        Ends when a search does not find the page.

        Raises:
            UsageError: ``env`` is not a SearchQA, or its question does not start from the name of a generated page.
        """
        inner = unwrap_local_env(env, ENV_ID, SearchQAEnv)
        rash = self.rash > 0.0 and rng.random() < self.rash
        start, path = _formula(inner)
        path = path[:1] if rash else path
        while not inner.done:
            session = inner.session  # another one after a restored snapshot
            thought, query, answer = _next(session, start, path, inner.passage_length)
            if answer:
                yield Move(thought, (ToolCall("answer", {"text": answer}),))
                continue
            if query in session.queries:
                return
            part = rng.choice(query.split()) if self.hasty and rng.random() < self.hasty else query
            slip = part not in (query, *session.queries)
            call = ToolCall("search", {"query": part if slip else query})
            yield Move("" if slip else thought, (call,), slip=slip)


def _formula(env: SearchQAEnv) -> tuple[str, Sequence[str]]:
    """Returns the title from which the current question starts, and the relations to follow."""
    question = env.session.question
    formula = env.collection.task(question.id).get("query", {})
    if "title" not in formula.get("from", {}):
        raise UsageError(
            f"this player answers questions that start from a generated page, unlike {question.id}; keep the "
            "others out with tasks=['encyclopaedia-composition-2', 'encyclopaedia-inference-2']"
        )
    return formula["from"]["title"], formula["path"]


def _next(session: QuestionSearch, title: str, path: Sequence[str], length: int) -> tuple[str, str, str]:
    """Returns thought, query and answer, of which one is empty, as far as the pages found so far lead.

    Args:
        session: The session.
        title: Title of the first page.
        path: The relations to follow.
        length: Characters of a page that an agent sees.
    """
    name, query, thought = spoken_name(title), spoken_name(title), ", ".join(path)
    for relation in path:
        page = _find_page(session, name)
        if page is None:
            return thought, query, ""
        value = find_value(prompts.shorten_text(page, length), relation)
        if value is None:
            return relation, "", CANNOT_BE_ANSWERED[0]
        name, thought = value, relation
        query = f"town {value}" if LINKED.get(relation) == "town" else value  # others are named after their town
    return thought, "", name


def _find_page(session: QuestionSearch, name: str) -> str | None:
    """Returns the text of the page of this name if it was found."""
    pages = (session.library.content(number) for number in session.seen)
    return next((text for title, text in pages if speaks_of(name, title)), None)
