"""Latent semantic analysis: vectors fitted to the corpus itself, with NumPy alone.

Deerwester, Dumais, Furnas, Landauer & Harshman, Indexing by Latent Semantic Analysis, 1990; the decomposition is that
of Halko, Martinsson & Tropp, Finding Structure with Randomness, 2011, Algorithms 4.4 and 5.1. The same texts give the
same vectors on the same machine; elsewhere, up to the rounding of its linear algebra.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envsuite.core.errors import DataError
from envsuite.data.arrays import Arrays, ArrayWriter
from envsuite.retrieval.analysis import analyze
from envsuite.retrieval.builder import Pieces
from envsuite.retrieval.encoders import Role, Texts, unit
from envsuite.retrieval.index import encoded

DIMENSIONS = 256
"""Dimensions by default."""
SAMPLE = 32_768
"""Largest number of texts that are decomposed: evenly spaced ones of a larger corpus."""
TERMS = 1 << 16
"""Largest number of terms, the most frequent ones."""
_RARE = 2
"""Texts that a term must be in, or it relates nothing to anything."""
_SURPLUS = 16
_ROUNDS = 4
_TOGETHER = 1 << 16
"""Entries of a matrix that are multiplied at a time."""


@dataclass(frozen=True)
class Matrix:
    """A sparse matrix, row by row."""

    ends: NDArray[np.int64]
    """First entry of each row, and the number of entries. Shape: [rows + 1]."""
    columns: NDArray[np.int64]
    """Column of each entry, ascending in a row."""
    values: NDArray[np.float32]
    """Each entry."""

    def __matmul__(self, dense: NDArray[np.float32]) -> NDArray[np.float32]:
        """Returns the product with a dense matrix. Shape: [rows, dense columns]."""
        rows = np.flatnonzero(np.diff(self.ends))  # reduceat knows no empty sums
        starts = self.ends[rows]
        product = np.zeros((len(self.ends) - 1, dense.shape[1]), dtype=np.float32)
        first = 0
        while first < len(rows):
            last = int(np.searchsorted(starts, starts[first] + _TOGETHER))
            low, high = starts[first], self.ends[rows[last - 1] + 1]
            terms = dense[self.columns[low:high]]
            terms *= self.values[low:high, None]
            product[rows[first:last]] = np.add.reduceat(terms, starts[first:last] - low, axis=0)
            first = last
        return product

    def transposed(self, columns: int) -> Matrix:
        """Returns the transpose of a matrix that has so many columns."""
        order = np.argsort(self.columns, kind="stable")
        rows = np.repeat(np.arange(len(self.ends) - 1), np.diff(self.ends))
        ends = np.append(0, np.cumsum(np.bincount(self.columns, minlength=columns)))
        return Matrix(ends, rows[order], self.values[order])


def counts(numbers: Iterable[Iterable[int]]) -> Matrix:
    """Returns how often each term occurs in each text, from the terms' numbers; negative ones are left out."""
    flat: array[int] = array("q")
    ends = [0]
    for row in numbers:
        flat.extend(row)
        ends.append(len(flat))
    terms = np.array(flat, dtype=np.int64)
    texts = np.repeat(np.arange(len(ends) - 1), np.diff(ends))[terms >= 0]
    places, times = np.unique(texts << 32 | terms[terms >= 0], return_counts=True)
    lengths = np.bincount(places >> 32, minlength=len(ends) - 1)
    return Matrix(np.append(0, np.cumsum(lengths)), places & 0xFFFFFFFF, times.astype(np.float32))


class Lsa:
    """LSA with logarithmic term frequencies and inverse document frequencies.

    Args:
        dimensions: Number of dimensions; fewer where the corpus has fewer texts or terms.
    """

    name = "lsa"

    def __init__(self, dimensions: int = DIMENSIONS) -> None:
        self.dimensions = dimensions
        self._terms: dict[str, int] = {}
        self._pieces = Pieces(self._terms)
        self._row_of = np.zeros(0, dtype=np.int64)
        """Row of each term in the projection, or -1."""
        self._projection = np.zeros((0, dimensions), dtype=np.float32)

    def fit(self, texts: Texts) -> None:
        """Chooses the terms, and decomposes the matrix of texts and terms.

        Raises:
            DataError: No term is in two texts.
        """
        apart = -(-len(texts) // SAMPLE) or 1
        matrix = counts(self._pieces.numbers(text) for i, text in enumerate(texts) if i % apart == 0)
        size = len(matrix.ends) - 1
        holding = np.bincount(matrix.columns, minlength=len(self._terms))
        words = sorted(self._terms)
        numbers = np.array([self._terms[word] for word in words], dtype=np.int64)
        order = np.argsort(-holding[numbers], kind="stable")[:TERMS]
        chosen = np.sort(order[holding[numbers[order]] >= _RARE])  # as positions among the sorted words
        if not len(chosen):
            raise DataError("no word is in two of the texts, so there is nothing that LSA can be fitted to")
        self._words = [words[i] for i in chosen.tolist()]
        self._row_of = np.full(len(words), -1, dtype=np.int64)
        self._row_of[numbers[chosen]] = np.arange(len(chosen))
        rarity = np.log((1 + size) / (1 + holding[numbers[chosen]])).astype(np.float32) + 1
        columns = self._row_of[matrix.columns]
        kept = columns >= 0
        rows = np.repeat(np.arange(size), np.diff(matrix.ends))[kept]
        order = np.lexsort((columns[kept], rows))
        ends = np.append(0, np.cumsum(np.bincount(rows, minlength=size)))
        weights = (1 + np.log(matrix.values[kept])) * rarity[columns[kept]]
        lengths = np.sqrt(np.bincount(rows, weights.astype(np.float64) ** 2, minlength=size)).astype(np.float32)
        normed = (weights / lengths[rows])[order].astype(np.float32)
        directions = decomposed(Matrix(ends, columns[kept][order], normed), len(chosen), self.dimensions)
        self._projection = directions * rarity[:, None]
        self.dimensions = directions.shape[1]

    def encode(self, texts: Sequence[str], role: Role) -> NDArray[np.float32]:
        """Returns the vectors of texts; queries and passages are treated alike."""
        known = len(self._row_of)
        rows = (
            [int(self._row_of[number]) if number < known else -1 for number in self._pieces.numbers(text)]
            for text in texts
        )
        return projected(counts(rows), self._projection)

    def write(self, writer: ArrayWriter) -> dict[str, Any]:
        """Adds the terms and their rows of the projection."""
        writer.add_strings("encoder.terms", map(encoded, self._words))
        writer.add("encoder.projection", "f4", [self._projection.ravel()])
        return {"kind": self.name}


class StoredLsa:
    """A fitted LSA in a file: a query reads the rows of its own terms and no others."""

    name = "lsa"

    def __init__(self, arrays: Arrays, facts: dict[str, Any]) -> None:
        self._arrays = arrays
        self.dimensions = arrays.length("encoder.projection") // max(1, arrays.strings("encoder.terms"))

    def fit(self, texts: Texts) -> None:
        """Does nothing: it is fitted."""

    def encode(self, texts: Sequence[str], role: Role) -> NDArray[np.float32]:
        """Returns the vectors of texts.

        Raises:
            DataError: The file is damaged there.
        """
        vectors = np.zeros((len(texts), self.dimensions), dtype=np.float32)
        for vector, text in zip(vectors, texts, strict=True):
            for term, times in sorted(Counter(analyze(text)).items()):
                row = self._arrays.find("encoder.terms", encoded(term))
                if row is not None:
                    first = row * self.dimensions
                    read = self._arrays.read("encoder.projection", first, first + self.dimensions)
                    vector += np.float32(1 + math.log(times)) * read
        return unit(vectors)

    def write(self, writer: ArrayWriter) -> dict[str, Any]:
        """Adds the same terms and rows to another block."""
        arrays = self._arrays
        terms = (arrays.string("encoder.terms", i) for i in range(arrays.strings("encoder.terms")))
        writer.add_strings("encoder.terms", terms)
        rows = arrays.read("encoder.projection", 0, arrays.length("encoder.projection"))
        writer.add("encoder.projection", "f4", [rows])
        return {"kind": self.name}


def projected(occurrences: Matrix, projection: NDArray[np.float32]) -> NDArray[np.float32]:
    """Returns the unit vectors of texts from their terms' counts. Shape: [texts, d]."""
    weights = (1 + np.log(occurrences.values)).astype(np.float32)
    return unit(Matrix(occurrences.ends, occurrences.columns, weights) @ projection)


def decomposed(matrix: Matrix, columns: int, dimensions: int) -> NDArray[np.float32]:
    """Returns the right singular vectors of a matrix that belong to the largest singular values.

    Args:
        matrix: The matrix.
        columns: Number of its columns.
        dimensions: Number of singular vectors; fewer where the rank is lower.

    Returns:
        Shape: [columns, dimensions]. The largest entry of each vector is positive.
    """
    turned = matrix.transposed(columns)
    rows = len(matrix.ends) - 1
    width = min(dimensions + _SURPLUS, rows, columns)
    start = np.random.Generator(np.random.PCG64(0)).standard_normal((columns, width), dtype=np.float32)
    basis = np.linalg.qr(matrix @ start)[0]
    for _ in range(_ROUNDS):
        basis = np.linalg.qr(matrix @ np.linalg.qr(turned @ basis)[0])[0]
    _, sizes, directions = np.linalg.svd((turned @ basis).T, full_matrices=False)
    rank = max(1, int((sizes > sizes[0] * 1e-5).sum()))
    directions = directions[: min(dimensions, rank)]
    largest = directions[np.arange(len(directions)), np.abs(directions).argmax(axis=1)]
    return np.ascontiguousarray((directions * np.sign(largest)[:, None]).T, dtype=np.float32)
