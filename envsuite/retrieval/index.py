"""Searches an index file.

The postings of a term are two arrays: the documents that have it, ascending, and for each the number of a pair
(occurrences, length byte). A query processes the documents in blocks whose scores fit into the processor's cache.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import util
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from envsuite.core.errors import require_extra
from envsuite.data.arrays import Arrays
from envsuite.retrieval.analysis import analyze
from envsuite.retrieval.bm25 import contributions, length_factors, weight
from envsuite.retrieval.documents import Found

KIND = "search index"
VERSION = 1
REMEDY = "Build it again, or fetch it again."

Engine = Literal["auto", "numpy", "numba"]

_BLOCK = 1 << 16
_FEW = 64
"""Largest number of terms for block-wise processing. More are rare, and their tables would fill the memory."""
_REMEMBERED = 10_000
"""Number of terms whose place in the file is cached."""
_SMALL = 1 << 15
"""Largest number of documents of an index whose terms are kept in memory when they have been searched."""
_KEPT = 1_000_000
"""Postings that are kept so, of 16 bytes each."""
_LARGE = 50_000
"""Number of documents from which on importing numba pays."""

_GROUP = 64
"""Number of documents that the best of them represents in the first scan of a block."""
_LEAST: np.float32 = np.nextafter(np.float32(0), np.float32(1))

_NONE = np.zeros(0, dtype=np.uint32)

Doubles = NDArray[np.float64]
Adder = Callable[[Doubles, NDArray[np.uint32], NDArray[Any], Doubles, int], None]
"""Called with scores, documents, pairs, contribution of each pair, first document; adds a term to the scores."""


def encode_string(string: str) -> bytes:
    """Encodes a key or term as in the file; keeps the order."""
    return string.encode("utf-8", "surrogatepass")


@dataclass(frozen=True, slots=True)
class Hit:
    """A search result."""

    number: int
    """Position of its key among all keys in order."""
    key: str
    """The document's key."""
    score: float
    """BM25 score."""


@dataclass(frozen=True)
class _Term:
    start: int
    stop: int
    weight: np.float32


class Index:
    """A memory-mapped index, which any number of threads and processes may search at once.

    An instance can be pickled: the receiver opens the file itself.
    """

    def __init__(self, path: Path, offset: int = 0, engine: Engine = "auto", remedy: str = REMEDY) -> None:
        """Opens the index that begins at byte ``offset`` of ``path``.

        Args:
            path: The file.
            offset: The value that ``IndexBuilder.write`` returned.
            engine: Implementation of the sums; both give bit-identical results. ``"auto"`` uses numba if it is
                installed and the index is large.
            remedy: A sentence for errors: how to get a usable index.

        Raises:
            DataError: The file is missing, not an index, of another version, truncated or damaged. A search may raise
                it, too, since postings are checked when they are first read.
            MissingExtra: ``engine`` is ``"numba"``, which is not installed.
        """
        self._source = (path, offset, engine, remedy)
        self._arrays = Arrays(path, KIND, VERSION, remedy, offset)
        self._size = self._arrays.strings("keys")
        self._documents: int = self._arrays.facts["documents"]
        pairs = self._arrays.length("pairs.times")
        factors = length_factors(self._documents, self._arrays.facts["words"])
        self._times = self._arrays.read("pairs.times", 0, pairs).astype(np.float32)
        self._factors = factors[self._arrays.read("pairs.norm", 0, pairs)]
        self._edges = np.append(np.arange(0, self._size, _BLOCK), self._size)
        self._places: dict[str, tuple[int, ...]] = {}
        self._kept: dict[_Term, tuple[NDArray[np.intp], NDArray[np.float64]]] = {}
        self._kept_postings = 0
        self._add = _adder(engine, self._size)

    def __reduce__(self) -> tuple[Any, ...]:
        return Index, self._source

    def __len__(self) -> int:
        """Returns the number of documents."""
        return self._size

    def key(self, number: int) -> str:
        """Returns the key of document ``number``, counted in the order of keys.

        Raises:
            IndexError: There are fewer documents.
        """
        if not 0 <= number < self._size:
            raise IndexError(f"no document {number}; there are {self._size}")
        return self._arrays.string("keys", number).decode("utf-8", "surrogatepass")

    def number(self, key: str) -> int | None:
        """Returns the number of the document with this key; ``None`` if there is none."""
        return self._arrays.find("keys", encode_string(key))

    def frequent(self, count: int) -> list[str]:
        """Returns the ``count`` terms that most documents have, the most frequent first."""
        ends = self._arrays.read("postings.at", 0, self._arrays.length("postings.at"))
        first = np.argsort(-np.diff(ends.astype(np.int64)), kind="stable")[:count]
        return [self._arrays.string("terms", number).decode("utf-8", "surrogatepass") for number in first.tolist()]

    def having(self, term: str) -> NDArray[np.uint32]:
        """Returns the numbers of the documents that have an analysed term, ascending. Shape: [n]."""
        terms = self._find_terms({term: 1})
        return self._arrays.read("postings.document", terms[0].start, terms[0].stop) if terms else _NONE

    def search(self, query: str, k: int = 10) -> list[Hit]:
        """Returns the best ``k`` documents for the words of ``query``, best first; equal scores in the order of keys.

        The query has no operators: every character is text. A repeated word counts repeatedly. A query of words that no
        document has returns nothing.
        """
        numbers, scores = self.best(Counter(analyze(query)), k)
        return [Hit(n, self.key(n), s) for n, s in zip(numbers.tolist(), scores.tolist(), strict=True)]

    def best(self, terms: Mapping[str, int], k: int, stop: int | None = None) -> Found:
        """Returns the numbers and scores of the best ``k`` documents, best first.

        Args:
            terms: Analysed terms with their multiplicity.
            k: Maximum number of documents.
            stop: Considers the documents with smaller numbers only; scores are those of the whole index.

        Returns:
            Numbers of documents, shape [m], and their scores, shape [m]; m is k, or fewer where fewer have a term.
        """
        query_terms = self._find_terms(terms)
        best = _Best(k)
        if not query_terms or k < 1 or (stop is not None and stop < 1):
            return best.result()
        if self._size <= _SMALL:
            best.offer(0, self._sums(query_terms, self._size if stop is None else min(stop, self._size)))
            return best.result()
        few = len(query_terms) <= _FEW
        edges = self._edges if few else self._edges[[0, -1]]
        if stop is not None and stop < self._size:
            edges = np.append(edges[edges < stop], stop)
        documents = [self._arrays.read("postings.document", term.start, term.stop) for term in query_terms]
        pairs = [self._arrays.read("postings.pair", term.start, term.stop) for term in query_terms]
        tables = [contributions(term.weight, self._times, self._factors) for term in query_terms] if few else []
        cuts = [np.searchsorted(numbers, edges.astype(np.uint32)).tolist() for numbers in documents]
        total = np.empty(min(int(edges[1]), self._size), dtype=np.float64)
        for block, (low, high) in enumerate(pairwise(edges.tolist())):
            scores = total[: high - low]
            scores.fill(0)
            has_hits = False
            for i, term in enumerate(query_terms):
                first, end = cuts[i][block], cuts[i][block + 1]
                if first < end:
                    table = tables[i] if few else contributions(term.weight, self._times, self._factors)
                    self._add(scores, documents[i][first:end], pairs[i][first:end], table, low)
                    has_hits = True
            if has_hits:
                best.offer(low, scores.astype(np.float32))
        return best.result()

    def _sums(self, query_terms: Sequence[_Term], stop: int) -> NDArray[np.float32]:
        """Returns the scores of the documents of a small index, whose terms it keeps in memory. Shape: [stop].

        The sums are those of a large index, bit by bit.
        """
        total = np.zeros(stop)
        for term in query_terms:
            postings = self._kept.get(term)
            if postings is None:
                documents = self._arrays.read("postings.document", term.start, term.stop).astype(np.intp)
                pairs = self._arrays.read("postings.pair", term.start, term.stop)
                postings = documents, contributions(term.weight, self._times, self._factors).take(pairs)
                self._kept_postings += len(documents)
                if self._kept_postings > _KEPT:
                    self._kept.clear()
                    self._kept_postings = len(documents)
                self._kept[term] = postings
            documents, addends = postings
            end = len(documents) if stop == self._size else int(documents.searchsorted(stop))
            total[documents[:end]] += addends[:end]
        return total.astype(np.float32)

    def _find_terms(self, terms: Mapping[str, int]) -> list[_Term]:
        """Returns the query's terms that occur, in a fixed order, so that sums do not depend on the query's order."""
        query_terms = []
        for term in sorted(terms):
            place = self._places.get(term)
            if place is None:
                number = self._arrays.find("terms", encode_string(term))
                read = self._arrays.read
                place = (0, 0) if number is None else tuple(read("postings.at", number, number + 2).tolist())
                if len(self._places) >= _REMEMBERED:
                    self._places.clear()
                self._places[term] = place
            start, stop = place
            if start < stop:
                query_terms.append(_Term(start, stop, weight(self._documents, stop - start, terms[term])))
        return query_terms


class _Best:
    """Keeps the best documents so far."""

    def __init__(self, k: int) -> None:
        self._k = k
        self._least = np.float32(0)
        self._numbers = np.zeros(0, dtype=np.int64)
        self._scores = np.zeros(0, dtype=np.float32)

    def offer(self, first: int, scores: NDArray[np.float32]) -> None:
        """Adds documents that beat the worst of the best so far. Later documents lose ties."""
        if scores.max() <= self._least:
            return
        better = np.flatnonzero(scores >= self._enough(scores) if self._least == 0 else scores > self._least)
        self._numbers = np.concatenate([self._numbers, better + first])
        self._scores = np.concatenate([self._scores, scores[better]])
        if len(self._scores) > self._k:
            self._least = np.partition(self._scores, -self._k)[-self._k]
            places = np.flatnonzero(self._scores >= self._least)
            # Of those with the lowest score, the first ones stay.
            surplus = len(places) - self._k
            if surplus:
                equal = np.flatnonzero(self._scores[places] == self._least)
                places = np.delete(places, equal[len(equal) - surplus :])
            self._numbers, self._scores = self._numbers[places], self._scores[places]

    def _enough(self, scores: NDArray[np.float32]) -> np.float32:
        """Returns a positive score that at least ``k`` of these documents reach: lower ones can be skipped.

        The score is the k-th largest of the groups' maxima, which k groups reach.
        """
        groups = len(scores) // _GROUP
        if groups < self._k:
            return _LEAST
        best = scores[: groups * _GROUP].reshape(_GROUP, groups).max(axis=0)
        enough: np.float32 = np.partition(best, -self._k)[-self._k]
        return max(enough, _LEAST)

    def result(self) -> Found:
        """Returns numbers and scores, best first, then by number."""
        order = np.lexsort((self._numbers, -self._scores))
        return self._numbers[order], self._scores[order]


def _add_numpy(scores: Doubles, documents: NDArray[np.uint32], pairs: NDArray[Any], table: Doubles, first: int) -> None:
    scores[np.subtract(documents, first, dtype=np.intp)] += table.take(pairs)


def _adder(engine: Engine, documents: int) -> Adder:
    if engine == "numpy" or (engine == "auto" and (documents < _LARGE or util.find_spec("numba") is None)):
        return _add_numpy
    with require_extra("engine 'numba' needs numba", "fast"):
        from envsuite.retrieval.fast import add
    return add
