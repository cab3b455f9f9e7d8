"""Combines searches: fusion by scores or by ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from envsuite.core.errors import UsageError, unknown
from envsuite.retrieval.documents import Found, Retriever
from envsuite.retrieval.vectors import best

Fusion = Literal["convex", "rrf"]
CONSTANT = 60
"""The constant of reciprocal-rank fusion in the original."""
DEPTH = 1000
"""Documents that each search contributes by default."""


class Hybrid:
    """Several searches as one.

    ``"convex"``: the score is the weighted mean of the searches' scores, each normalised to [0, 1] by the lowest and
    the highest that the search found (Bruch, Gai & Ingber, An Analysis of Fusion Functions for Hybrid Retrieval, 2023;
    there of two searches).

    ``"rrf"``: it is the sum of weight / (k + rank) over the searches that find the document (Cormack, Clarke &
    Büttcher, Reciprocal Rank Fusion outperforms Condorcet and individual Rank Learning Methods, 2009; there all weights
    are 1).

    Args:
        retrievers: The searches, all over the same documents.
        weights: A weight for each search; by default 1.
        fusion: How they are fused.
        constant: The constant k of ``"rrf"``: the larger, the less the first ranks stand out.
        depth: Number of documents that each search contributes, or as many as are asked for if that is more.
        name: Name in tables; by default names and weights of the searches, in brackets those that are composed.

    Raises:
        UsageError: There is no search, not one weight for each, or a weight that is not a positive number.
        UnknownName: There is no such fusion.
    """

    def __init__(
        self,
        retrievers: Sequence[Retriever],
        weights: Sequence[float] | None = None,
        fusion: Fusion = "convex",
        constant: float = CONSTANT,
        depth: int = DEPTH,
        name: str | None = None,
    ) -> None:
        self._retrievers = tuple(retrievers)
        self._weights = tuple(weights) if weights is not None else (1.0,) * len(retrievers)
        if not retrievers or len(self._weights) != len(retrievers) or not all(0 < w < np.inf for w in self._weights):
            raise UsageError("a hybrid search needs at least one search and a positive weight for each")
        if fusion not in get_args(Fusion):
            raise unknown("fusion", str(fusion), get_args(Fusion))
        if constant < 0 or depth < 1:
            raise UsageError(f"constant is {constant} and depth {depth}; they must be at least 0 and 1")
        self._fusion, self._constant, self._depth = fusion, constant, depth
        self.name = self._own_name() if name is None else name

    def _own_name(self) -> str:
        equal = len({*self._weights}) == 1
        names = [f"({part.name})" if set(part.name) & set("+*>") else part.name for part in self._retrievers]
        pairs = zip(names, self._weights, strict=True)
        formula = "+".join(name if equal else f"{weight:g}*{name}" for name, weight in pairs)
        return formula if self._fusion == "convex" else f"{self._fusion}({formula})"

    def search(self, query: str, k: int, stop: int | None = None) -> Found:
        """Returns the best ``k`` documents by their fused scores; see :class:`Retriever`."""
        if k < 1:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32)
        depth = max(k, self._depth)
        rankings = [retriever.search(query, depth, stop) for retriever in self._retrievers]
        if self._fusion == "rrf":
            return fuse_rankings([numbers for numbers, _ in rankings], self._weights, self._constant, k)
        return combine_scores(*normalise_scores(rankings), self._weights, k)


def fuse_rankings(rankings: Sequence[NDArray[np.int64]], weights: Sequence[float], constant: float, k: int) -> Found:
    """Returns the best ``k`` of several rankings, each best first, by the sum of weight / (constant + rank).

    Ranks begin with 1; documents of equal score come in the order of their numbers.
    """
    numbers, where = np.unique(np.concatenate(rankings), return_inverse=True)
    parts = [weight / (constant + np.arange(1, len(r) + 1)) for r, weight in zip(rankings, weights, strict=True)]
    scores = np.bincount(where, np.concatenate(parts), minlength=len(numbers))
    return best(numbers.astype(np.int64), scores.astype(np.float32), k)


def normalise_scores(rankings: Sequence[Found]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Returns all documents that were found, and their scores by each search from 0 to 1.

    Of each search, the best document has 1 and the last one 0, as what it did not find, which would be further behind.
    Where all that it found have the same score, they have 1.

    Args:
        rankings: What each search found.

    Returns:
        Numbers of documents, ascending, shape [n], and scores, shape [searches, n].
    """
    numbers = np.unique(np.concatenate([numbers for numbers, _ in rankings])).astype(np.int64)
    rows = np.zeros((len(rankings), len(numbers)))
    for row, (mine, scores) in zip(rows, rankings, strict=True):
        if len(mine):
            exact = scores.astype(np.float64)
            low, high = exact.min(), exact.max()
            row[numbers.searchsorted(mine)] = (exact - low) / (high - low) if high > low else 1.0
    return numbers, rows


def combine_scores(numbers: NDArray[np.int64], scores: NDArray[np.float64], weights: Sequence[float], k: int) -> Found:
    """Returns the best ``k`` documents by the weighted mean of their normalised scores; equal ones by number.

    Args:
        numbers: The documents. Shape: [n].
        scores: Shape: [searches, n].
        weights: A weight for each search.
        k: Maximum number of documents.
    """
    shares = np.array(weights) / sum(weights)
    return best(numbers, (shares[:, None] * scores).sum(axis=0).astype(np.float32), k)
