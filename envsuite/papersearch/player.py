"""A player that searches and follows citations, or only searches: demonstrations for a small base model."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import gymnasium

from envsuite.core.players import unwrap_env
from envsuite.core.practice import FallibleTeacher
from envsuite.core.tools import Action, Move, ToolCall
from envsuite.papersearch.literature import PAIRS
from envsuite.papersearch.reading import is_searched, papers_of, query_of
from envsuite.papersearch.tasks import ENV_ID
from envsuite.papersearch.vocabulary import table

_WORD = re.compile(r"[^\W_]+(?:[-'][^\W_]+)*")


@dataclass(frozen=True)
class Scholar(FallibleTeacher):
    """Searches the query's subject, then expands the first paper shown that is not expanded, one a step.

    The subject is the query without the words of its sentence around it: ``signal detection in fracture mines`` of
    ``Which papers deal with signal detection in fracture mines?``. Where no paper is left to expand it searches the
    title of one. It sees what an agent sees, and nothing else.
    """

    rash: float = 0.0
    """Probability that the player follows no citation in an episode: at each step it searches a part of the subject,
    such as ``fracture mines``, whether it has done so before or not."""
    careless: float = 0.0
    """Probability, at each step, of such a search, or of the expansion of any paper shown, whose id may be misread: a
    slip, which is context for imitation and not its target."""

    def turns(self, env: gymnasium.Env[Any, Action], rng: random.Random) -> Iterator[Move]:
        """Yields each move in the current episode of ``env``, here or on a server; the caller steps ``env`` in between.

        Raises:
            UsageError: ``env`` is another environment.
        """
        inner = unwrap_env(env, ENV_ID)
        rash = self.rash > 0.0 and rng.random() < self.rash
        while True:
            task, text = inner.observation["task"], inner.observation["text"]
            if self.careless > 0.0 and rng.random() < self.careless:
                yield Move("", (_slip(task, text, rng),), slip=True)
            else:
                yield Move("", (_search_part(task, rng) if rash else _next_call(task, text),))


def subject_of(query: str) -> str:
    """Returns the query from the first to the last word that is not of its sentence; all of it if there is none."""
    own = [word for word in _WORD.finditer(query) if word[0].lower() not in _plain()]
    return query[own[0].start() : own[-1].end()] if own else query


def parts_of(query: str) -> list[str]:
    """Returns the runs of words that are not of the query's sentence; all of it if there is none."""
    parts: list[list[str]] = [[]]
    for word in _WORD.findall(query):
        if word.lower() not in _plain():
            parts[-1].append(word)
        elif parts[-1]:
            parts.append([])
    return [" ".join(part) for part in parts if part] or [query]


@cache
def _plain() -> frozenset[str]:
    """Returns the words of the sentences of queries."""
    lines = [re.sub(r"\{\w+\}", "", line) for kind in PAIRS for line in table("sentences")[kind]]
    return frozenset(word.lower() for line in lines for word in _WORD.findall(line))


def _next_call(task: str, text: str) -> ToolCall:
    subject, papers = subject_of(query_of(task)), papers_of(text)
    for paper in papers:
        if not paper.expanded:
            return ToolCall("expand", {"paper_id": paper.key})
    for query in (subject, *(paper.title for paper in papers)):
        if not is_searched(query, text):
            return ToolCall("search", {"query": query})
    return ToolCall("search", {"query": f"{subject} {text.count('search ')}"})


def _search_part(task: str, rng: random.Random) -> ToolCall:
    return ToolCall("search", {"query": rng.choice(parts_of(query_of(task)))})


def _slip(task: str, text: str, rng: random.Random) -> ToolCall:
    papers = papers_of(text)
    if not papers or rng.random() < 0.3:
        return _search_part(task, rng)
    key = rng.choice(papers).key
    place = rng.randrange(len(key))
    misread = key[:place] + str(rng.randrange(10)) + key[place + 1 :]
    return ToolCall("expand", {"paper_id": rng.choice((key, misread))})
