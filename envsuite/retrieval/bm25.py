"""BM25 as Lucene 9 computes it: in single precision, with document lengths of one byte.

Robertson & Zaragoza, The Probabilistic Relevance Framework: BM25 and Beyond, 2009, without the factor ``k1 + 1``, which
changes no order.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

K1 = np.float32(0.9)
"""How soon more occurrences of a term stop to count; Anserini's value."""
B = np.float32(0.4)
"""How much a document's length counts; Anserini's value."""

_EXACT = 24
"""Lengths below are kept as they are; of longer ones four binary digits (Lucene's SmallFloat)."""


def norm(length: int) -> int:
    """The byte that stands for a document of ``length`` terms."""
    if length < _EXACT:
        return length
    rest = length - _EXACT
    shift = max(0, rest.bit_length() - 4)
    return _EXACT + (rest if rest < 8 else (shift + 1 << 3) | (rest >> shift & 7))


def length_of(norm: int) -> int:
    """The length, rounded down, that the byte ``norm`` stands for."""
    if norm < _EXACT:
        return norm
    shift = (norm - _EXACT >> 3) - 1
    digits = norm - _EXACT & 7
    return _EXACT + (digits if shift < 0 else (digits | 8) << shift)


def length_factors(documents: int, terms: int) -> NDArray[np.float32]:
    """What the number of occurrences is multiplied with, for each of the 256 lengths.

    Args:
        documents: Documents that have a term.
        terms: Terms of all documents, repeated ones included.
    """
    lengths = np.array([length_of(byte) for byte in range(256)], dtype=np.float32)
    mean = np.float32(terms / max(1, documents))
    return np.float32(1) / (K1 * ((np.float32(1) - B) + B * lengths / max(mean, np.float32(1))))


def weight(documents: int, holding: int, times: int) -> np.float32:
    """The weight of a query's term: its rarity (idf) times how often the query has it.

    Args:
        documents: Documents that have a term.
        holding: Documents that have this one.
        times: Its occurrences in the query.
    """
    rarity = math.log(1 + (documents - holding + 0.5) / (holding + 0.5))
    return np.float32(times) * np.float32(rarity)


def contributions(
    weight: np.float32, occurrences: NDArray[np.float32], factors: NDArray[np.float32]
) -> NDArray[np.float64]:
    """What a term adds to a document's score.

    Args:
        weight: The term's weight.
        occurrences: Its occurrences in the document. Shape: [n].
        factors: The factor of the document's length. Shape: [n].

    Returns:
        Shape: [n]; values of single precision, in double since they are added up so.
    """
    single: NDArray[np.float32] = weight - weight / (np.float32(1) + occurrences * factors)
    return single.astype(np.float64)
