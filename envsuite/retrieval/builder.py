"""Builds an index file from texts, with memory that does not grow with the texts.

The distinct terms, the keys and one run of words are in memory; full runs are sorted and stored on disk. The file
depends on the documents alone, not on their order.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from envsuite.core.errors import DataError
from envsuite.data.arrays import ArrayWriter
from envsuite.data.progress import ProgressReceiver, SilentProgress
from envsuite.retrieval.analysis import analyze
from envsuite.retrieval.bm25 import norm
from envsuite.retrieval.index import KIND, VERSION, encode_string

RUN = 1 << 22
"""Words in a run, and postings sorted at a time: building needs about 50 bytes of memory for each."""
_REMEMBERED = 1 << 18
_SHORT = 64
"""Characters of the longest piece that is cached."""
_NARROW_SPACE = "\u202f"

# An unsorted posting: term and document in one number, occurrences and length byte in another.
_POSTING = np.dtype([("place", "<u8"), ("pair", "<u4")])


class Pieces(dict[str, tuple[int, ...]]):
    """Maps a piece of text to the numbers of its terms; caches results, within bounds."""

    def __init__(self, terms: dict[str, int]) -> None:
        super().__init__()
        self._terms = terms

    def __missing__(self, piece: str) -> tuple[int, ...]:
        terms = self._terms
        numbers = tuple([terms.setdefault(term, len(terms)) for term in analyze(piece)])
        if len(self) >= _REMEMBERED:
            self.clear()
        if len(piece) <= _SHORT:
            self[piece] = numbers
        return numbers

    def numbers(self, text: str) -> Iterator[int]:
        """Yields the numbers of the terms of a text, in order; a new term gets the next number."""
        # White space ends every word, so the pieces between can be cached. One space does not: U+202F joins words.
        pieces = text.split() if _NARROW_SPACE not in text else text.split(" ")
        return itertools.chain.from_iterable(map(self.__getitem__, pieces))


class IndexBuilder:
    """Collects documents; ``write`` builds the index. As a context manager, it removes its files at the end."""

    def __init__(self, scratch: Path | None = None) -> None:
        """Starts without documents.

        Args:
            scratch: Parent of the folder for data that does not fit in memory, about 24 bytes for each distinct word of
                each document; by default the system's folder of temporary files.
        """
        self._folder = Path(tempfile.mkdtemp(prefix="index-", dir=scratch))
        self._keys: list[str] = []
        self._terms: dict[str, int] = {}
        self._pieces = Pieces(self._terms)
        self._run = array("I")
        self._ends: list[int] = []
        self._saved = 0
        self._norms = bytearray()
        self._documents = self._words = 0
        self._holding = np.zeros(0, dtype=np.int64)
        self._pairs = np.zeros(0, dtype=np.uint32)
        self._runs = 0

    def __enter__(self) -> IndexBuilder:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def keys(self) -> Sequence[str]:
        """The keys of the documents in the order in which they were added."""
        return self._keys

    def add(self, key: str, text: str) -> None:
        """Adds a document; hits of equal score are sorted by their keys (by code points)."""
        before = len(self._run)
        run = self._run
        run.extend(self._pieces.numbers(text))
        length = len(run) - before
        self._keys.append(key)
        self._ends.append(len(run))
        self._norms.append(norm(length))
        self._words += length
        self._documents += length > 0
        if len(run) >= RUN:
            self._save_run()

    def _save_run(self) -> None:
        """Writes the documents added since the last call to disk, as a run.

        Raises:
            DataError: A document repeats a word 16,777,216 times.
        """
        if not self._ends:
            return
        numbers = np.array(self._run, dtype=np.uint64)
        ends = np.array([0, *self._ends], dtype=np.int64)
        lengths = ends[1:] - ends[:-1]
        documents = np.repeat(np.arange(self._saved, len(self._keys), dtype=np.uint64), lengths)
        places = np.sort(numbers << np.uint64(32) | documents)
        at = np.flatnonzero(np.diff(places, prepend=~places[:1]))
        times = np.diff(at, append=len(places))
        if times.max(initial=0) >= 1 << 24:
            raise DataError("a document repeats one word 16,777,216 times or more, which the index cannot hold")
        postings = np.empty(len(at), dtype=_POSTING)
        postings["place"] = places[at]
        norms = np.frombuffer(self._norms, dtype=np.uint8)[(postings["place"] & np.uint64(0xFFFFFFFF)).astype(np.intp)]
        postings["pair"] = times.astype(np.uint32) << np.uint32(8) | norms
        with self._path(self._runs).open("wb") as file:
            postings.tofile(file)
        self._count(postings)
        self._run = array("I")
        self._ends = []

    def _count(self, postings: NDArray[Any]) -> None:
        """Adds a run on disk to the counts."""
        pairs = postings["pair"].astype(np.intp)
        if pairs.max(initial=0) < RUN:
            pairs = np.flatnonzero(np.bincount(pairs))  # faster than sorting them
        self._pairs = np.union1d(self._pairs, pairs).astype(np.uint32)
        holding = np.bincount((postings["place"] >> np.uint64(32)).astype(np.intp), minlength=len(self._terms))
        holding[: len(self._holding)] += self._holding
        self._holding = holding
        self._saved = len(self._keys)
        self._runs += 1

    def _path(self, run: int) -> Path:
        return self._folder / f"run-{run}"

    def write(self, file: BinaryIO, progress: ProgressReceiver | None = None) -> int:
        """Writes the index to ``file`` from its current position. Nothing can be added afterwards.

        Args:
            file: The output.
            progress: Receives the number of postings written.

        Returns:
            The offset of the index in the file, the next multiple of 64 bytes; ``Index`` takes it as ``offset``.

        Raises:
            DataError: Two documents have the same key.
        """
        progress = progress or SilentProgress()
        self._save_run()
        self._pieces.clear()
        order = sorted(range(len(self._keys)), key=self._keys.__getitem__)
        for i, j in itertools.pairwise(order):
            if self._keys[i] == self._keys[j]:
                raise DataError(f"two documents have the key {self._keys[i]!r}; give each its own")
        rank = np.empty(len(order), dtype=np.uint64)
        rank[order] = np.arange(len(order), dtype=np.uint64)
        words = sorted(self._terms)
        numbers = np.array([self._terms[word] for word in words], dtype=np.intp)
        term_rank = np.empty(len(words), dtype=np.uint64)
        term_rank[numbers] = np.arange(len(words), dtype=np.uint64)
        ends = np.cumsum(self._holding[numbers])

        writer = ArrayWriter(file, KIND, VERSION)
        writer.add_strings("keys", (encode_string(self._keys[i]) for i in order))
        writer.add_strings("terms", map(encode_string, words))
        writer.add("postings.at", "u8", [np.zeros(1, dtype=np.uint64), ends])
        writer.add("pairs.times", "u4", [self._pairs >> np.uint32(8)])
        writer.add("pairs.norm", "u1", [self._pairs & np.uint32(255)])
        buckets = self._scatter(rank, term_rank, ends)
        total = int(self._holding.sum())
        progress.start("index", total, 0)
        # The sorted postings are needed twice, so the codes are stored in a separate file.
        waiting = self._folder / "codes"
        code: np.dtype[Any] = np.dtype(np.uint16 if len(self._pairs) <= 1 << 16 else np.uint32)
        writer.add("postings.document", "u4", self._sort_postings(buckets, waiting, code, progress))
        progress.finish("index", total)
        writer.add("postings.pair", code, _parts(waiting, code))
        writer.close({"documents": self._documents, "words": self._words})
        return writer.offset

    def _scatter(self, rank: NDArray[np.uint64], term_rank: NDArray[np.uint64], ends: NDArray[np.int64]) -> list[Path]:
        """Distributes the postings of all runs to files, each for a range of terms."""
        bucket_of = np.maximum(ends - 1, 0) // RUN
        buckets = [self._folder / f"bucket-{i}" for i in range(int(bucket_of[-1]) + 1 if len(bucket_of) else 0)]
        for run in range(self._runs):
            for postings in _parts(self._path(run), _POSTING):
                term = term_rank[(postings["place"] >> np.uint64(32)).astype(np.intp)]
                document = rank[(postings["place"] & np.uint64(0xFFFFFFFF)).astype(np.intp)]
                postings["place"] = term << np.uint64(32) | document
                bucket = bucket_of[term.astype(np.intp)]
                for number in np.unique(bucket).tolist():
                    with open(buckets[number], "ab") as file:
                        postings[bucket == number].tofile(file)
        return buckets

    def _sort_postings(
        self, buckets: list[Path], codes: Path, code: np.dtype[Any], progress: ProgressReceiver
    ) -> Iterator[NDArray[np.uint32]]:
        """Yields the documents of all postings in order; writes the pair of each to the file ``codes``."""
        with open(codes, "wb") as file:
            for path in buckets:
                if not path.exists():
                    continue
                postings = np.fromfile(path, dtype=_POSTING)
                path.unlink()
                order = np.argsort(postings["place"])
                np.searchsorted(self._pairs, postings["pair"][order]).astype(code).tofile(file)
                yield (postings["place"][order] & np.uint64(0xFFFFFFFF)).astype(np.uint32)
                progress.advance(len(postings))


def _parts(path: Path, dtype: np.dtype[Any]) -> Iterator[NDArray[Any]]:
    """Yields the elements of a file, a part at a time."""
    with open(path, "rb") as file:
        while len(part := np.fromfile(file, dtype=dtype, count=RUN // 4)):
            yield part
