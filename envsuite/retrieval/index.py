"""Search in an index file.

The postings of a term are two arrays: the documents that hold it, ascending, and for each the number of a pair (how
often, length byte). A query goes through the documents in blocks whose scores fit into the processor's cache.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from envsuite.core.errors import MissingExtra
from envsuite.data.arrays import Arrays
from envsuite.retrieval.analysis import analyze
from envsuite.retrieval.bm25 import contributions, length_factors, weight

KIND = "search index"
VERSION = 1
REMEDY = "Build it again, or fetch it again."

Engine = Literal["auto", "numpy", "numba"]

_BLOCK = 1 << 16
_FEW = 64
"""Terms up to which a query goes block by block. More are rare, and their tables would fill the memory."""
_REMEMBERED = 10_000
"""Terms whose place in the file is kept."""
_LARGE = 50_000
"""Documents from which on importing numba pays."""

Adder = Callable[[NDArray[np.float64], NDArray[np.uint32], NDArray[Any], NDArray[np.float64], int], None]
"""(scores, documents, pairs, contribution of each pair, first document): adds what a term contributes to scores."""


def encoded(string: str) -> bytes:
    """A key or term as the file has it; their order is the same."""
    return string.encode("utf-8", "surrogatepass")


@dataclass(frozen=True, slots=True)
class Hit:
    """A document that was found."""

    number: int
    """Its place among all keys in order."""
    key: str
    """Its key."""
    score: float
    """BM25."""


@dataclass(frozen=True)
class _Term:
    start: int
    stop: int
    weight: np.float32


class Index:
    """A memory-mapped index; any number of threads and processes may search in it at once.

    An instance can be pickled: the receiver opens the file itself.
    """

    def __init__(self, path: Path, offset: int = 0, engine: Engine = "auto", remedy: str = REMEDY) -> None:
        """Open the index that begins at byte ``offset`` of ``path``.

        Args:
            path: The file.
            offset: What ``IndexBuilder.write`` returned.
            engine: What adds up scores; both give the same results, bit for bit. ``"auto"`` takes numba where it is
                installed and the index large.
            remedy: What to do where the index cannot be used, as a sentence for the error.

        Raises:
            DataError: The file is missing, no index, of another version, truncated or damaged. A search may raise it,
                too, since postings are checked when they are first read.
            MissingExtra: ``engine`` is ``"numba"``, and that is not installed.
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
        self._add = _adder(engine, self._size)

    def __reduce__(self) -> tuple[Any, ...]:
        return Index, self._source

    def __len__(self) -> int:
        """How many documents there are."""
        return self._size

    def key(self, number: int) -> str:
        """The key of document ``number``, counted in the order of keys.

        Raises:
            IndexError: There are fewer documents.
        """
        if not 0 <= number < self._size:
            raise IndexError(f"no document {number}; there are {self._size}")
        return self._arrays.string("keys", number).decode("utf-8", "surrogatepass")

    def number(self, key: str) -> int | None:
        """The number of the document with this key; None where there is none."""
        return self._arrays.find("keys", encoded(key))

    def frequent(self, count: int) -> list[str]:
        """The ``count`` terms that most documents have, the most frequent first."""
        ends = self._arrays.read("postings.at", 0, self._arrays.length("postings.at"))
        first = np.argsort(-np.diff(ends.astype(np.int64)), kind="stable")[:count]
        return [self._arrays.string("terms", number).decode("utf-8", "surrogatepass") for number in first.tolist()]

    def search(self, query: str, k: int = 10) -> list[Hit]:
        """The best ``k`` documents for the words of ``query``, best first; of equal ones the first key.

        Every character is text: there are no operators. A word counts as often as it occurs. A query without a word
        that some document has, finds nothing.
        """
        numbers, scores = self.best(Counter(analyze(query)), k)
        return [Hit(n, self.key(n), s) for n, s in zip(numbers.tolist(), scores.tolist(), strict=True)]

    def best(self, terms: Mapping[str, int], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The numbers and scores of the best ``k`` documents, best first.

        Args:
            terms: Analysed terms, and how often each counts.
            k: How many documents at most.

        Returns:
            Numbers of documents, shape [m], and their scores, shape [m]; m is k, or fewer where fewer have a term.
        """
        known = self._known(terms)
        best = _Best(k)
        if not known or k < 1:
            return best.result()
        few = len(known) <= _FEW
        edges = self._edges if few else self._edges[[0, -1]]
        documents = [self._arrays.read("postings.document", term.start, term.stop) for term in known]
        pairs = [self._arrays.read("postings.pair", term.start, term.stop) for term in known]
        tables = [contributions(term.weight, self._times, self._factors) for term in known] if few else []
        cuts = [np.searchsorted(numbers, edges.astype(np.uint32)).tolist() for numbers in documents]
        total = np.empty(min(int(edges[1]), self._size), dtype=np.float64)
        for block, (low, high) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)):
            scores = total[: high - low]
            scores.fill(0)
            touched = False
            for i, term in enumerate(known):
                first, end = cuts[i][block], cuts[i][block + 1]
                if first < end:
                    table = tables[i] if few else contributions(term.weight, self._times, self._factors)
                    self._add(scores, documents[i][first:end], pairs[i][first:end], table, low)
                    touched = True
            if touched:
                best.offer(low, scores.astype(np.float32))
        return best.result()

    def _known(self, terms: Mapping[str, int]) -> list[_Term]:
        """The terms that occur, in an order of their own, so that sums do not depend on the query's."""
        known = []
        for term in sorted(terms):
            place = self._places.get(term)
            if place is None:
                number = self._arrays.find("terms", encoded(term))
                read = self._arrays.read
                place = (0, 0) if number is None else tuple(read("postings.at", number, number + 2).tolist())
                if len(self._places) >= _REMEMBERED:
                    self._places.clear()
                self._places[term] = place
            start, stop = place
            if start < stop:
                known.append(_Term(start, stop, weight(self._documents, stop - start, terms[term])))
        return known


class _Best:
    """The best documents so far."""

    def __init__(self, k: int) -> None:
        self._k = k
        self._least = np.float32(0)
        self._numbers = np.zeros(0, dtype=np.int64)
        self._scores = np.zeros(0, dtype=np.float32)

    def offer(self, first: int, scores: NDArray[np.float32]) -> None:
        """Take what is better than the last of the best so far. Later documents lose where scores are equal."""
        if scores.max() <= self._least:
            return
        better = np.flatnonzero(scores > self._least)
        self._numbers = np.concatenate([self._numbers, better + first])
        self._scores = np.concatenate([self._scores, scores[better]])
        if len(self._scores) > self._k:
            self._least = np.partition(self._scores, -self._k)[-self._k]
            kept = np.flatnonzero(self._scores >= self._least)
            # Of those with the least score the first ones stay.
            surplus = len(kept) - self._k
            if surplus:
                equal = np.flatnonzero(self._scores[kept] == self._least)
                kept = np.delete(kept, equal[len(equal) - surplus :])
            self._numbers, self._scores = self._numbers[kept], self._scores[kept]

    def result(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Numbers and scores, best first, then by number."""
        order = np.lexsort((self._numbers, -self._scores))
        return self._numbers[order], self._scores[order]


def _add_numpy(
    scores: NDArray[np.float64],
    documents: NDArray[np.uint32],
    pairs: NDArray[Any],
    table: NDArray[np.float64],
    first: int,
) -> None:
    at = np.subtract(documents, first, dtype=np.intp)
    scores[at] += table.take(pairs)


def _adder(engine: Engine, documents: int) -> Adder:
    if engine == "numpy" or (engine == "auto" and (documents < _LARGE or util.find_spec("numba") is None)):
        return _add_numpy
    try:
        from envsuite.retrieval.fast import add
    except ModuleNotFoundError as error:
        raise MissingExtra(f"engine 'numba' needs numba ({error}): pip install 'envsuite[fast]'") from error
    return add
