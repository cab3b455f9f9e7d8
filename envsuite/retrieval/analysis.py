"""Analyses text into search terms: the analyser of Anserini, and so of WebShop's search.

Words (``word_break``), without a final ``'s``, in lower case, without 33 frequent words of English, stemmed
(``porter``): Lucene 9's ``EnglishAnalyzer``.
"""

from __future__ import annotations

import functools

from envsuite.retrieval.porter import stem
from envsuite.retrieval.word_break import properties, words

STOP_WORDS = frozenset(
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this "
    "to was will with".split()
)
"""Lucene's English stop words."""


def analyze(text: str) -> list[str]:
    """Returns the terms of ``text`` in order, repeated ones included."""
    return [term for word in words(text) if (term := term_of(word)) is not None]


@functools.lru_cache(maxsize=1 << 14)
def term_of(word: str) -> str | None:
    """Returns the term for ``word``; ``None`` for a stop word."""
    if word[-2:-1] in ("'", "\u2019", "\uff07") and word[-1] in "sS":
        word = word[:-2]
    small = word.lower() if word.isascii() else word.translate(properties().lower)
    return None if small in STOP_WORDS else stem(small)
