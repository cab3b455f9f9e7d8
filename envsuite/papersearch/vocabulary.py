"""Words of the generated literature: those of a topic, and the names of its problems, methods and settings."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from envsuite.core.draws import Draw

FOLDER = Path(__file__).parent / "tables"
KINDS = ("problem", "method", "setting")
"""Kinds of concepts; each paper has one of each."""
NAMES = 3
"""Names of a concept, without a common word."""
MOST_CONCEPTS = 7
"""Most concepts of a kind in a topic."""
BACKGROUND = 16
"""Words of a topic that belong to none of its concepts."""


@dataclass(frozen=True, slots=True)
class Topic:
    """The words of a topic."""

    names: tuple[tuple[tuple[str, ...], ...], ...]
    """Names of each concept of each kind, in lower case but for invented words."""
    words: tuple[str, ...]
    """Words of no concept."""
    authors: tuple[str, ...]
    venues: tuple[str, ...]


@cache
def table(name: str) -> dict[str, tuple[str, ...]]:
    """Returns the lists of ``words.txt`` as words, or those of ``sentences.txt`` as lines, by their headings."""
    lists: dict[str, list[str]] = {}
    for line in (FOLDER / f"{name}.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            part = lists.setdefault(line.strip("[]"), [])
        elif line and not line.startswith("#"):
            part += line.split() if name == "words" else [line]
    return {heading: tuple(entries) for heading, entries in lists.items()}


def capital(text: str) -> str:
    """Returns ``text`` with a capital at its beginning."""
    return text[:1].upper() + text[1:]


def invent_word(draw: Draw) -> str:
    """Returns a made-up word, such as ``Straivexor``."""
    lists = table("words")
    parts = [draw.choose(lists["onsets"]) + draw.choose(lists["vowels"]) for _ in range(1 + draw.below(2))]
    return capital("".join(parts) + draw.choose(lists["codas"]))


def topic_of(key: str, concepts: int) -> Topic:
    """Returns the words of a topic; no word is in two of its names, nor in a name and in the background.

    Args:
        key: Determines them.
        concepts: Number of concepts of each kind.
    """
    draw, lists = Draw(key), table("words")
    counts = {"adjectives": 3, "nouns": 7, "tasks": 3, "devices": 2, "media": 3}
    stock = {name: draw.sample(lists[name], count * concepts) for name, count in counts.items()}
    inventions = set[str]()

    def new() -> str:
        while (word := invent_word(draw)) in inventions:
            pass
        inventions.add(word)
        return word

    def take(*names: str) -> str:
        return " ".join(stock[name].pop() for name in names)

    problems = tuple(
        (
            take("adjectives", "nouns", "tasks"),
            f"{take('nouns')} and {take('nouns', 'tasks')}",
            f"{new()} {take('tasks')}",
        )
        for _ in range(concepts)
    )
    methods = tuple(
        (new(), f"the {take('adjectives', 'nouns', 'devices')}", f"the {take('nouns', 'nouns', 'devices')}")
        for _ in range(concepts)
    )
    settings = tuple(
        (take("adjectives", "media"), take("nouns", "media"), f"{new()} {take('media')}") for _ in range(concepts)
    )
    used = {word for kind in (problems, methods, settings) for names in kind for name in names for word in name.split()}
    free = [word for word in lists["nouns"] if word not in used]
    words = (*draw.sample(free, BACKGROUND - 4), *(new().lower() for _ in range(4)))
    authors = tuple(f"{draw.choose(lists['given'])} {draw.choose(lists['family'])}" for _ in range(40))
    venues = tuple(
        f"{draw.choose(('Journal', 'Transactions', 'Letters', 'Proceedings', 'Annals'))} of "
        f"{capital(draw.choose(lists['adjectives']))} {capital(draw.choose(lists['tasks']))}"
        for _ in range(4)
    )
    return Topic((problems, methods, settings), words, authors, venues)
