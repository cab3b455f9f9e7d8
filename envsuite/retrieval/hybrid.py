"""Combines searches of the same documents by their scores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from envsuite.retrieval.documents import Found, Retriever
from envsuite.retrieval.vectors import best

DEPTH = 1000
"""Documents that each search contributes, or as many as are asked for if that is more."""


class Hybrid:
    """Several searches as one, whose score is the mean of theirs.

    The scores of a search are stretched from 0 to 1 over the documents that it finds, the last one and others having 0
    (Bruch, Gai & Ingber, An Analysis of Fusion Functions for Hybrid Retrieval, 2023). Where all that it finds have the
    same score, they have 1. Equal means come in the order of the documents' numbers.

    Args:
        retrievers: The searches, all over the same documents.
    """

    def __init__(self, retrievers: Sequence[Retriever]) -> None:
        self._retrievers = tuple(retrievers)
        self.name = "+".join(part.name for part in retrievers)

    def search(self, query: str, k: int, stop: int | None = None) -> Found:
        """Returns the best ``k`` documents by their mean scores; see :class:`Retriever`."""
        rankings = [part.search(query, max(k, DEPTH), stop) for part in self._retrievers]
        numbers = np.unique(np.concatenate([numbers for numbers, _ in rankings])).astype(np.int64)
        rows = np.zeros((len(rankings), len(numbers)))
        for row, (mine, scores) in zip(rows, rankings, strict=True):
            if len(mine):
                exact = scores.astype(np.float64)
                low, high = exact.min(), exact.max()
                row[numbers.searchsorted(mine)] = (exact - low) / (high - low) if high > low else 1.0
        return best(numbers, rows.mean(axis=0).astype(np.float32), max(k, 0))
