"""BM25 as Lucene 9 computes it: in single precision, with document lengths of one byte.

Robertson & Zaragoza, The Probabilistic Relevance Framework: BM25 and Beyond, 2009, without the factor ``k1 + 1``, which
changes no order.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

K1 = np.float32(0.9)
"""Saturation of the term frequency; Anserini's value."""
B = np.float32(0.4)
"""Weight of the document length; Anserini's value."""

_EXACT = 24
"""Lengths below are stored exactly; of longer ones, the four leading binary digits (Lucene's SmallFloat)."""


def norm(length: int) -> int:
    """Returns the byte that encodes a document length of ``length`` terms."""
    if length < _EXACT:
        return length
    excess = length - _EXACT
    shift = max(0, excess.bit_length() - 4)
    return _EXACT + (excess if excess < 8 else (shift + 1 << 3) | (excess >> shift & 7))


def length_of(norm: int) -> int:
    """Returns the length, rounded down, that the byte ``norm`` encodes."""
    if norm < _EXACT:
        return norm
    shift = (norm - _EXACT >> 3) - 1
    digits = norm - _EXACT & 7
    return _EXACT + (digits if shift < 0 else (digits | 8) << shift)


def length_factors(documents: int, terms: int) -> NDArray[np.float32]:
    """Returns the factor of the term frequency for each of the 256 encoded lengths.

    Args:
        documents: Number of documents that have a term.
        terms: Number of terms in all documents, repeated ones included.
    """
    lengths = np.array([length_of(byte) for byte in range(256)], dtype=np.float32)
    mean = np.float32(terms / max(1, documents))
    return np.float32(1) / (K1 * ((np.float32(1) - B) + B * lengths / max(mean, np.float32(1))))


def weight(documents: int, holding: int, times: int) -> np.float32:
    """Returns the weight of a query term: its inverse document frequency times its occurrences in the query.

    Args:
        documents: Number of documents that have a term.
        holding: Number of documents that have this term.
        times: Number of occurrences in the query.
    """
    rarity = math.log(1 + (documents - holding + 0.5) / (holding + 0.5))
    return np.float32(times) * np.float32(rarity)


def contributions(weight: np.float32, counts: NDArray[np.float32], factors: NDArray[np.float32]) -> NDArray[np.float64]:
    """Returns the contribution of a term to the scores of documents.

    Args:
        weight: The term's weight.
        counts: Its occurrences in each document. Shape: [n].
        factors: The factor of each document's length. Shape: [n].

    Returns:
        Shape: [n]; values of single precision in a double array, since sums are in double precision.
    """
    single: NDArray[np.float32] = weight - weight / (np.float32(1) + counts * factors)
    return single.astype(np.float64)
