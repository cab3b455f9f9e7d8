"""A corpus: documents, their dates and links, their search index and the tasks on them, in one memory-mapped file.

Documents are numbered by date, then by key. So a cut-off date is a bound on the numbers, which search and links take
without another look at any document. :mod:`envsuite.retrieval.corpus_build` writes the file: the block of the search
index, that of the corpus, and in the last 16 bytes where the latter begins.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from envsuite.core.errors import DataError
from envsuite.data.arrays import Arrays
from envsuite.data.files import file_errors
from envsuite.retrieval.analysis import analyze
from envsuite.retrieval.documents import Document, Found
from envsuite.retrieval.index import Index

KIND = "corpus"
FORMAT = 1
"""Format of the file; increased with every change of its meaning."""
REMEDY = "Build it anew: envsuite data build --help"
TRAILER = struct.Struct("<8sQ")
MAGIC = b"EnvCorps"
DATE_DIGITS = 8
"""Digits of the date that begins a key of the index."""


class Corpus:
    """A corpus file, opened for reading; any number of threads and processes may share it.

    An instance can be pickled: the receiver opens the file itself.

    Args:
        path: The file.

    Raises:
        DataError: The file is missing, half-built, damaged, no corpus, or of another version. Other methods may raise
            it, too, since parts are checked when they are first read.
    """

    name = "bm25"
    """Name of the search: BM25, as Lucene ranks."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._arrays = Arrays(path, KIND, FORMAT, REMEDY, _begin(path))
        facts = self._arrays.facts
        self.source: str = facts["source"]
        """Name of the source, for people."""
        self.digest: str = facts["digest"]
        """Identity of the documents and tasks."""
        self.problems: dict[str, int] = facts["problems"]
        """Kind of problem in the source -> number of times."""
        self.index = Index(path, facts["index"], remedy=REMEDY)
        """The search index; its keys begin with the date."""
        self.vectors: dict[str, int] = facts["vectors"]
        """Names of the vectors in the file -> their offsets, for :class:`~envsuite.retrieval.vectors.Vectors`."""
        self._dates = self._arrays.read("dates", 0, self._arrays.length("dates"))

    def __reduce__(self) -> tuple[Any, ...]:
        return Corpus, (self.path,)

    def __len__(self) -> int:
        """Returns the number of documents."""
        return len(self._dates)

    def document(self, number: int) -> Document:
        """Returns a document.

        Raises:
            IndexError: There are fewer documents.
        """
        key = self.key(number)
        title, text, facts = orjson.loads(self._arrays.string("documents", number))
        links = tuple(self.key(link) for link in self.links(number).tolist())
        return Document(key, title, text, self.date(number), links, facts)

    def title(self, number: int) -> str:
        """Returns the title of a document."""
        return self.content(number)[0]

    def content(self, number: int) -> tuple[str, str]:
        """Returns title and text of a document; faster than :meth:`document`."""
        title, text, _ = orjson.loads(self._arrays.string("documents", number))
        return title, text

    def key(self, number: int) -> str:
        """Returns the key of a document.

        Raises:
            IndexError: There are fewer documents.
        """
        return self.index.key(number)[DATE_DIGITS:]

    def number(self, key: str) -> int | None:
        """Returns the number of the document with this key; ``None`` if there is none."""

        def number_at(place: int) -> int:
            return int(self._arrays.read("by_key", place, place + 1)[0])

        place = bisect_left(range(len(self)), key, key=lambda place: self.key(number_at(place)))
        return number_at(place) if place < len(self) and self.key(number_at(place)) == key else None

    def date(self, number: int) -> int:
        """Returns the date of a document as YYYYMMDD; 0 if it has none."""
        return int(self._dates[number])

    def stop(self, date: int) -> int:
        """Returns the number of documents dated ``date`` or earlier: the ``stop`` of a search on that day."""
        return int(np.searchsorted(self._dates, date, side="right"))

    def links(self, number: int) -> NDArray[np.uint32]:
        """Returns the numbers of the documents that a document cites, ascending. Shape: [n]."""
        return self._row("links", number)

    def linked_by(self, number: int) -> NDArray[np.uint32]:
        """Returns the numbers of the documents that cite a document, ascending. Shape: [n]."""
        return self._row("linked_by", number)

    def _row(self, name: str, number: int) -> NDArray[np.uint32]:
        start, stop = self._arrays.read(f"{name}.at", number, number + 2).tolist()
        return self._arrays.read(name, start, stop)

    @property
    def number_of_links(self) -> int:
        """Number of links between documents of the corpus."""
        return self._arrays.length("links")

    def tasks(self) -> list[dict[str, Any]]:
        """Returns the tasks that came with the documents, as plain JSON, in their order."""
        return [orjson.loads(self._arrays.string("tasks", i)) for i in range(self._arrays.strings("tasks"))]

    def search(self, query: str, k: int, stop: int | None = None) -> Found:
        """Returns the best ``k`` documents by BM25 over title and text; equal scores in the order of numbers.

        See :class:`~envsuite.retrieval.documents.Retriever`.
        """
        return self.index.best(Counter(analyze(query)), k, stop)


def _begin(path: Path) -> int:
    """Returns the offset of the corpus's block.

    Raises:
        DataError: The file does not end as a corpus does.
    """
    with file_errors(path, remedy=REMEDY), path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - TRAILER.size))
        end = file.read(TRAILER.size)
    if len(end) < TRAILER.size or end[: len(MAGIC)] != MAGIC:
        raise DataError(f"{path} is no corpus, or a truncated one. {REMEDY}")
    begin: int = TRAILER.unpack(end)[1]
    return min(begin, size)
