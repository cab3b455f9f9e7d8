"""Selectors score papers against a query in [0, 1], for rewards and the final list; no agent can call them."""

from __future__ import annotations

from collections import OrderedDict
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from envsuite.core.errors import UsageError, unknown
from envsuite.papersearch.question import CorpusQuery, Scorer
from envsuite.retrieval.analysis import analyze
from envsuite.retrieval.bm25 import weight
from envsuite.retrieval.corpus import Corpus

Scores = NDArray[np.float64]
NAMES = ("gold", "lexical")
_REMEMBERED = 256
_MOST_SCORES = 100_000


class Selector(Protocol):
    """Scores papers."""

    @property
    def name(self) -> str:
        """Name in infos and results."""

    @property
    def is_visible(self) -> bool:
        """Whether agents may see which papers it prefers, and that it discards some."""

    def scores(self, question: CorpusQuery, papers: NDArray[np.int64]) -> Scores:
        """Returns a score in [0, 1] for each paper. Shape: as ``papers``, the papers' numbers."""


class GoldSelector:
    """Scores by the annotations: 1 for a gold paper, else 0.

    Its order would tell the agent what is gold, so it is not shown.
    """

    name = "gold"
    is_visible = False

    def scores(self, question: CorpusQuery, papers: NDArray[np.int64]) -> Scores:
        """Returns 1 for each gold paper."""
        gold = question.gold
        return np.array([number in gold for number in papers.tolist()], dtype=np.float64)


class LexicalSelector:
    """Scores by words: the share of the query's words that title and abstract have, weighted as BM25 weights them.

    Words that no paper of the corpus has do not count.
    """

    name = "lexical"
    is_visible = True

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus
        self._terms = lru_cache(maxsize=_REMEMBERED)(self._terms_of)

    def _terms_of(self, query: str) -> tuple[tuple[NDArray[np.uint32], float], ...]:
        """Returns the papers that have each term of the query, and the share of its weight."""
        index = self._corpus.index
        having = [numbers for term in sorted({*analyze(query)}) if len(numbers := index.having(term))]
        weights = [float(weight(len(self._corpus), len(numbers), 1)) for numbers in having]
        total = sum(weights)
        return tuple((numbers, term_weight / total) for numbers, term_weight in zip(having, weights, strict=True))

    def scores(self, question: CorpusQuery, papers: NDArray[np.int64]) -> Scores:
        """Returns the weighted share of the query's words."""
        return self.shares(question.text, papers)

    def shares(self, query: str, papers: NDArray[np.int64]) -> Scores:
        """Returns the weighted share of a query's words that each paper has. Shape: as ``papers``."""
        total = np.zeros(len(papers))
        documents = papers.astype(np.uint32)
        for numbers, share in self._terms(query):
            place = numbers.searchsorted(documents)
            place[place == len(numbers)] = 0
            total += (numbers[place] == documents) * share
        return np.minimum(total, 1.0)


class ModelSelector:
    """Scores by a function, such as a model of sequences; each paper once for a query.

    Args:
        corpus: The papers.
        scorer: The function.
        name: Name in infos and results.
    """

    is_visible = True

    def __init__(self, corpus: Corpus, scorer: Scorer, name: str) -> None:
        self.name = name
        self._corpus, self._scorer = corpus, scorer
        self._known: OrderedDict[tuple[str, int], float] = OrderedDict()

    def scores(self, question: CorpusQuery, papers: NDArray[np.int64]) -> Scores:
        """Returns what the function says.

        Raises:
            UsageError: It returns other than a number in [0, 1] for each paper.
        """
        query, numbers = question.text, papers.tolist()
        missing = [number for number in numbers if (query, number) not in self._known]
        score_of = {(query, number): self._known[query, number] for number in numbers if (query, number) in self._known}
        if missing:
            scores = [float(score) for score in self._scorer(query, [self._corpus.content(n) for n in missing])]
            if len(scores) != len(missing) or not all(0.0 <= score <= 1.0 for score in scores):
                raise UsageError(f"the selector {self.name} must return a number from 0 to 1 for each paper")
            new = {(query, number): score for number, score in zip(missing, scores, strict=True)}
            score_of |= new
            self._known.update(new)
            while len(self._known) > _MOST_SCORES:
                self._known.popitem(last=False)
        return np.array([score_of[query, number] for number in numbers], dtype=np.float64)


def selector_of(selector: str | Path | Scorer, corpus: Corpus, words: LexicalSelector) -> Selector:
    """Returns a selector.

    Args:
        selector: ``"gold"``, ``"lexical"``, the path of a language model that judges papers
            (:func:`envsuite.papersearch.model_selector.scorer_of`), or a function.
        corpus: The papers.
        words: The selector ``lexical``.

    Raises:
        UnknownName: There is no such selector, nor such a folder.
        MissingExtra: The libraries for models are not installed.
    """
    if selector == "gold":
        return GoldSelector()
    if selector == "lexical":
        return words
    if not isinstance(selector, str | Path):
        return ModelSelector(corpus, selector, getattr(selector, "__name__", type(selector).__name__))
    folder = Path(selector)
    if not (folder / "config.json").is_file():
        raise unknown("selector of PaperSearch-v0 (or the folder of a model)", str(selector), NAMES)
    from envsuite.papersearch.model_selector import scorer_of

    return ModelSelector(corpus, scorer_of(folder), folder.name)
