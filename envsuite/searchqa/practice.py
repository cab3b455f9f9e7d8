"""The teacher to imitate on SearchQA, and the words that it takes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from envsuite.core.practice import Practice, Spelling
from envsuite.prompting.phrases import phrases
from envsuite.searchqa import prompts
from envsuite.searchqa.entities import DATES, LINKED, PROFESSIONS, table
from envsuite.searchqa.env import SearchQAEnv
from envsuite.searchqa.pages import MONTHS
from envsuite.searchqa.player import Reader


def practice() -> Practice:
    """Returns teacher and vocabulary."""
    return Practice(Reader, texts, fresh="corpus_seed", spelling=Spelling(parts=syllables()))


def texts() -> list[str]:
    """Returns the texts of the generated encyclopaedia without the names that are made of syllables."""
    names = {name: texts for name, texts in table("names").items() if name not in _ENDINGS}
    return [
        *(re.sub(r"\{\w*\}", " ", text) for text in _strings([names, table("pages"), table("questions")])),
        *(noun.lower() for noun in names["nouns"]),
        *(*MONTHS, *LINKED, *LINKED.values(), *DATES, *(profession for profession, _ in PROFESSIONS)),
        *(prompts.task("x", True), prompts.NOTHING, prompts.EMPTY_QUERY, prompts.EMPTY_ANSWER),
        *(prompts.search_line("x", 3, 2, again=True), prompts.refusal_line("search", "x", "x")),
        prompts.view(["[x]"], 3, "x"),
        *_ENCYCLOPAEDIA.splitlines(),
        *phrases(SearchQAEnv.tools),
    ]


def syllables() -> list[str]:
    """Returns the syllables of the encyclopaedia's names, but for the first ones, which are words."""
    return [syllable for name in _ENDINGS for syllable in table("names")[name]]


def _strings(texts: Any) -> Iterator[str]:
    """Yields the strings in lists and mappings."""
    if isinstance(texts, str):
        yield texts
        return
    for part in texts.values() if isinstance(texts, dict) else texts:
        yield from _strings(part)


_ENDINGS = ("middle", "surnames", "towns", "rivers", "countries")
_ENCYCLOPAEDIA = """
search[x] answer[x] 1,234 km "x" (x) & He he She she His his Her her him wife husband an a's
year founded population length currency town person country river university company film song novel museum
Invalid action: unknown tool 'x'; known: search, answer. Tools: search, answer. unanswerable Doc 1(Title: "x")
"""
