"""Writes the titles, abstracts and queries of the generated literature."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from envsuite.core.draws import Draw
from envsuite.papersearch.vocabulary import NAMES, Topic, capital, table

SLOTS = ("p", "m", "s", "p2", "m2", "s2", "o", "q", "w", "v", "u", "n", "k", "name", "year", "P", "M", "S", "W")
"""Slots of a sentence; the last four are those that begin one."""
SHORTEST, LONGEST = 60, 120
"""Words of an abstract."""
_SLOT = re.compile(r"\{(\w+)\}")
Sentence = tuple[str, Callable[[Sequence[Any]], Any]]
"""A format, and what takes its arguments from the values of :data:`SLOTS`."""


def _compile_sentence(line: str) -> Sentence:
    if line.startswith("{"):
        line = _SLOT.sub(lambda match: f"{{{match[1].upper()}}}" if match[1] in "pmsw" else match[0], line, count=1)
    places = [SLOTS.index(name) for name in _SLOT.findall(line)]
    return _SLOT.sub("%s", line), itemgetter(*places) if places else lambda values: ()


ROLES = {role: [_compile_sentence(line) for line in lines] for role, lines in table("sentences").items()}
"""The sentences of each role."""
BRIDGES = tuple(
    {"p2": "problem", "m2": "method", "s2": "setting"}[next(name for name in _SLOT.findall(line) if name.endswith("2"))]
    for line in table("sentences")["bridges"]
)
"""Kind of the concept of which each sentence of the role ``bridges`` gives another name."""
_SYLLABLES = (tuple(map(capital, table("words")["onsets"])), table("words")["vowels"], table("words")["codas"])


@dataclass(frozen=True, slots=True)
class Fill:
    """The words of a topic, ready for sentences."""

    topic: Topic
    capitals: tuple[tuple[tuple[str, ...], ...], ...]
    """Names as at the beginning of a sentence."""
    capital_words: tuple[str, ...]

    @classmethod
    def of(cls, topic: Topic) -> Fill:
        """Returns the words of ``topic``."""
        capitals = tuple(tuple(tuple(map(capital, names)) for names in kind) for kind in topic.names)
        return cls(topic, capitals, tuple(map(capital, topic.words)))


def write_paper(
    fill: Fill, concept: Sequence[int], name: Sequence[int], bridge: int, year: int, numbers: Sequence[int]
) -> tuple[str, str, dict[str, Any]]:
    """Returns title, abstract, and further fields of a paper.

    Args:
        fill: The words of its topic.
        concept: Its concept of each kind.
        name: Which of its names it uses.
        bridge: Number of a sentence of the role ``bridges``, which gives the next name of a concept; -1 for none.
        year: Its year.
        numbers: 32 random numbers of 32 bits.
    """
    topic = fill.topic
    problems, methods, settings = topic.names
    a, b, c = concept
    i, j, k = name
    words = topic.words
    size = len(words)
    word_number = numbers[0]
    first = word_number % size
    onsets, vowels, codas = _SYLLABLES
    name_number = numbers[1]
    values = (
        problems[a][i],
        methods[b][j],
        settings[c][k],
        problems[a][(i + 1) % NAMES],
        methods[b][(j + 1) % NAMES],
        settings[c][(k + 1) % NAMES],
        methods[(b + 1 + numbers[2] % (len(methods) - 1)) % len(methods)][numbers[3] % NAMES],
        problems[(a + 1 + numbers[4] % (len(problems) - 1)) % len(problems)][numbers[5] % NAMES],
        words[first],
        words[(first + 1 + (word_number >> 8) % (size - 2)) % size],
        words[(first + size - 1) % size],
        20 + numbers[6] % 79,
        3 + numbers[7] % 16,
        onsets[name_number % len(onsets)]
        + vowels[(name_number >> 8) % len(vowels)]
        + codas[(name_number >> 16) % len(codas)],
        year,
        fill.capitals[0][a][i],
        fill.capitals[1][b][j],
        fill.capitals[2][c][k],
        fill.capital_words[first],
    )
    roles = ["openings", "gaps", "methods", "details", "experiments", "results", "closings"]
    which = numbers[8]
    if which % 5 == 0:
        del roles[1]

    def sentence(role: str, number: int) -> str:
        text, take = ROLES[role][number % len(ROLES[role])]
        return str(text % take(values))

    sentences = [sentence(role, numbers[at]) for at, role in enumerate(roles, start=9)]
    at = 9 + len(roles)
    if bridge >= 0:
        sentences.insert(3 if which % 5 else 2, sentence("bridges", bridge))
    abstract = " ".join(sentences)
    length = abstract.count(" ") + 1
    if length > LONGEST:
        abstract, length = " ".join(sentences[:-1]), 0
    while 0 < length < SHORTEST:
        sentences.append(sentence("details" if at % 2 else "results", numbers[at] + 1))
        abstract = " ".join(sentences)
        length = abstract.count(" ") + 1
        at += 1
    authors = topic.authors
    people = [authors[number % len(authors)] for number in numbers[21 : 22 + numbers[26] % 5]]
    facts = {"authors": list(dict.fromkeys(people)), "venue": topic.venues[numbers[27] % len(topic.venues)]}
    return sentence("titles", numbers[20]), abstract, facts


def write_query(kind: str, names: Mapping[str, str], draw: Draw) -> str:
    """Returns the words of a query.

    Args:
        kind: A role of ``sentences.txt``.
        names: Name of the problem (``p``), the method (``m``) or the setting (``s``).
        draw: Source of randomness.
    """
    return capital(_SLOT.sub(lambda match: names[match[1]], draw.choose(table("sentences")[kind])))
