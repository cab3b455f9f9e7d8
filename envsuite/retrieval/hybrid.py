"""Combines searches: fusion by reciprocal ranks, and reranking of the best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from envsuite.core.errors import UsageError
from envsuite.retrieval.documents import Found, Retriever
from envsuite.retrieval.vectors import best

CONSTANT = 60
"""The constant of the original."""
DEPTH = 1000
"""Documents that each search contributes by default, as in the original."""


class Hybrid:
    """Reciprocal-rank fusion: a document's score is the sum of weight / (k + rank) over the searches that find it.

    Cormack, Clarke & Büttcher, Reciprocal Rank Fusion outperforms Condorcet and individual Rank Learning Methods, 2009;
    there all weights are 1.

    Args:
        retrievers: The searches, all over the same documents.
        weights: A weight for each search; by default 1.
        constant: The constant k: the larger, the less the first ranks stand out.
        depth: Number of documents that each search contributes, or as many as are asked for if that is more.
        name: Name in tables; by default the names of the searches, joined by ``+``.

    Raises:
        UsageError: There is no search, not one weight for each, or a weight that is not positive.
    """

    def __init__(
        self,
        retrievers: Sequence[Retriever],
        weights: Sequence[float] | None = None,
        constant: float = CONSTANT,
        depth: int = DEPTH,
        name: str | None = None,
    ) -> None:
        self.name = "+".join(retriever.name for retriever in retrievers) if name is None else name
        self._retrievers = tuple(retrievers)
        self._weights = tuple(weights) if weights is not None else (1.0,) * len(retrievers)
        if not retrievers or len(self._weights) != len(retrievers) or not all(w > 0 for w in self._weights):
            raise UsageError("a hybrid search needs at least one search and a positive weight for each")
        if constant < 0 or depth < 1:
            raise UsageError(f"constant is {constant} and depth {depth}; they must be at least 0 and 1")
        self._constant, self._depth = constant, depth

    def search(self, query: str, k: int, stop: int | None = None) -> Found:
        """Returns the best ``k`` documents by their fused scores; see :class:`Retriever`."""
        if k < 1:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32)
        depth = max(k, self._depth)
        rankings = [retriever.search(query, depth, stop)[0] for retriever in self._retrievers]
        return fused(rankings, self._weights, self._constant, k)


def fused(rankings: Sequence[NDArray[np.int64]], weights: Sequence[float], constant: float, k: int) -> Found:
    """Returns the best ``k`` of several rankings, each best first, by the sum of weight / (constant + rank).

    Ranks begin with 1; documents of equal score come in the order of their numbers.
    """
    numbers, where = np.unique(np.concatenate(rankings), return_inverse=True)
    parts = [weight / (constant + np.arange(1, len(r) + 1)) for r, weight in zip(rankings, weights, strict=True)]
    scores = np.bincount(where, np.concatenate(parts), minlength=len(numbers))
    return best(numbers.astype(np.int64), scores.astype(np.float32), k)


class Reranker(Protocol):
    """Scores texts against a query, one by one."""

    @property
    def name(self) -> str:
        """Name in tables and infos."""

    def scores(self, query: str, texts: Sequence[str]) -> NDArray[np.float32]:
        """Returns a score for each text, higher for better ones. Shape: [n]."""


class Reranked:
    """The best documents of a search, in the order of a reranker's scores; the others follow as they were found.

    Args:
        retriever: Finds the documents.
        reranker: Scores them.
        text: Returns the text of a document.
        depth: Number of documents that are reranked.
    """

    def __init__(self, retriever: Retriever, reranker: Reranker, text: Callable[[int], str], depth: int = 50) -> None:
        self.name = f"{retriever.name}>{reranker.name}"
        self._retriever, self._reranker, self._text, self._depth = retriever, reranker, text, depth

    def search(self, query: str, k: int, stop: int | None = None) -> Found:
        """Returns the best ``k`` documents with the reranker's scores; those after ``depth`` have the lowest of these.

        See :class:`Retriever`.
        """
        numbers, _ = self._retriever.search(query, max(k, self._depth), stop)
        first, rest = numbers[: self._depth], numbers[self._depth :]
        scores = self._reranker.scores(query, [self._text(number) for number in first.tolist()])
        first, scores = best(first, scores, len(first))
        scores = np.concatenate([scores, np.repeat(scores[-1:], len(rest))])
        return np.concatenate([first, rest])[: max(0, k)], scores[: max(0, k)]
