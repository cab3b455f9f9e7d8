"""Builds a corpus: streamed and atomic.

A build reads the source once. It keeps the keys in memory, some 250 bytes for each document, and the rest in a folder
beside the result.
"""

from __future__ import annotations

import logging
import mmap
import os
import re
import shutil
from array import array
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np
import orjson
from numpy.typing import NDArray

from envsuite.core.boundary import text as encodable
from envsuite.core.errors import DataError
from envsuite.data.arrays import ArrayWriter
from envsuite.data.files import file_errors
from envsuite.data.locks import hold_lock
from envsuite.data.places import WRITABLE, cache_root
from envsuite.data.progress import ProgressReceiver, SilentProgress, track
from envsuite.data.room import GENERATED, bound_generated
from envsuite.retrieval.builder import IndexBuilder
from envsuite.retrieval.corpus import DATE_DIGITS, FORMAT, KIND, MAGIC, TRAILER, Corpus
from envsuite.retrieval.documents import LONGEST_KEY, UNDATED, Document, Source
from envsuite.retrieval.encoders import Encoder
from envsuite.retrieval.vectors import write_vectors

LOG = logging.getLogger(__name__)
LONGEST_TEXT = 100_000
"""Characters of the longest text; longer ones are cut."""
OPEN = 8
"""Generated corpora, and others, that a process keeps open for each environment when no environment uses them."""
LAST_DATE = 9999_12_31
_CONTROL = re.compile(r"[\x00-\x1f\x7f\u2028\u2029]")


def build(
    source: Source, out: Path, progress: ProgressReceiver | None = None, encoders: Sequence[Encoder] = ()
) -> Path:
    """Builds the corpus ``out``; replaces an existing file.

    It is written in the folder ``.NAME.building`` beside ``out`` and renamed once complete; the next build removes what
    a killed one has left there. A second build of the same file waits for the first. What is wrong with single
    documents is counted in ``source.problems``.

    Args:
        source: The documents and tasks.
        out: Path of the corpus.
        progress: Receives the progress.
        encoders: Their vectors of all documents are stored, too.

    Returns:
        ``out``.

    Raises:
        DataError: The source cannot be read or has no document, or ``out`` cannot be written.
    """
    with _lock(out):
        _build(source, out, progress or SilentProgress(), encoders)
    return out


def ensure_corpus(source: Source) -> Path:
    """Returns the corpus of ``source`` in the cache; one process builds it for all if it is missing."""
    path = place(source)
    _ensure(source, path)
    return path


def place(source: Source, is_generated: bool = False) -> Path:
    """Returns the path of the corpus of ``source`` in the cache; with ``is_generated``, of one that is generated."""
    folder = cache_root() / "corpora"
    return (folder / "generated" if is_generated else folder) / f"{FORMAT}-{source.digest()[:20]}.corpus"


def open_generated(source: Source) -> Corpus:
    """Opens the corpus of ``source``, which is generated; one process builds it for all if it is missing.

    Of generated data the cache keeps :data:`GENERATED` bytes: those that were opened last, and always the one returned.
    """
    path = place(source, is_generated=True)
    while True:
        if path.is_file():
            with suppress(OSError):  # of a cache that cannot be written, nothing is removed
                os.utime(path)
        else:
            try:
                _ensure(source, path)
            finally:
                bound_generated(path, GENERATED)
        try:
            return Corpus(path)
        except DataError:
            if path.is_file():
                raise  # else it was removed before it was open


def _ensure(source: Source, path: Path) -> None:
    """Builds the corpus ``path`` if it is missing."""
    if not path.is_file():
        with _lock(path):
            if not path.is_file():
                LOG.warning("building the corpus %s once", path)
                _build(source, path, SilentProgress())


def _build(source: Source, out: Path, progress: ProgressReceiver, encoders: Sequence[Encoder] = ()) -> None:
    folder = out.parent / f".{out.name}.building"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        with closing(_Stage(folder, source)) as stage, (folder / "corpus").open("wb") as file:
            stage.fill(progress)
            stage.write(file, progress, encoders)
            file.flush()
            os.fsync(file.fileno())
        os.replace(folder / "corpus", out)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Stage:
    """The documents that were read so far, in the new folder ``folder``."""

    def __init__(self, folder: Path, source: Source) -> None:
        self._folder, self._source = folder, source
        self._index = IndexBuilder(folder)
        self._texts, self._links = ((folder / name).open("wb") for name in ("texts", "links"))
        self._numbers: dict[str, int] = {}
        """Key -> number in the order of reading."""
        self._ends = array("Q", [0])
        """Ends of the documents' lines in the file of texts."""

    def close(self) -> None:
        """Closes the files."""
        self._texts.close()
        self._links.close()

    def fill(self, progress: ProgressReceiver) -> None:
        """Reads the documents.

        Raises:
            DataError: The source cannot be read, or has no document.
        """
        progress.start("documents", self._source.size, 0)
        for document in self._source.documents():
            self._add(document)
            progress.advance(1)
        if not self._numbers:
            raise DataError("; ".join((f"{self._source.name}: has no document", *self._source.problems.lines())))
        progress.finish("documents", len(self._numbers))

    def _add(self, document: Document) -> None:
        problems = self._source.problems
        key, title, text = (encodable(part) for part in (document.key, document.title, document.text))
        if not 0 < len(key) <= LONGEST_KEY or key != key.strip() or _CONTROL.search(key):
            problems.add("a key that is not one line of 1 to 200 characters (left out)", repr(key[:80]))
            return
        if key in self._numbers:
            problems.add("another document with the same key (left out)", key)
            return
        if len(text) > LONGEST_TEXT:
            problems.add(f"a text of more than {LONGEST_TEXT:,} characters (cut)", key)
            text = text[:LONGEST_TEXT]
        date = document.date
        if not 0 <= date <= LAST_DATE:
            problems.add("a date that is not YYYYMMDD (taken as unknown)", key)
            date = UNDATED
        number = self._numbers[key] = len(self._numbers)
        self._index.add(f"{date:0{DATE_DIGITS}d}{key}", f"{title}\n{text}")
        line = orjson.dumps([title, text, dict(document.facts)]) + b"\n"
        self._ends.append(self._ends[-1] + len(line))
        self._texts.write(line)
        if document.links:
            self._links.write(orjson.dumps([number, [encodable(link) for link in document.links]]) + b"\n")

    def write(self, file: BinaryIO, progress: ProgressReceiver, encoders: Sequence[Encoder]) -> None:
        """Writes the corpus to ``file``, which is empty."""
        keys = self._index.keys
        order = sorted(range(len(keys)), key=keys.__getitem__)
        rank = np.empty(len(order), dtype=np.uint32)
        rank[order] = np.arange(len(order), dtype=np.uint32)
        dates = np.array([int(keys[i][:DATE_DIGITS]) for i in order], dtype=np.uint32)
        by_key = rank[[self._numbers[key] for key in sorted(self._numbers)]]
        self._texts.close()
        edges = self._edges(rank, progress)
        index = self._index.write(file, progress)
        texts = _Texts(self._folder / "texts", order, self._ends)
        vectors = {encoder.name: write_vectors(file, encoder, texts, progress) for encoder in encoders}
        writer = ArrayWriter(file, KIND, FORMAT)
        writer.add("dates", "u4", [dates])
        writer.add("by_key", "u4", [by_key])
        writer.add_strings("documents", track(texts.lines(), "texts", len(order), progress))
        for name, ends in (("links", edges), ("linked_by", edges << np.uint64(32) | edges >> np.uint64(32))):
            self._add_rows(writer, name, ends, len(order))
        tasks = (orjson.dumps(dict(task), option=orjson.OPT_SORT_KEYS) for task in self._source.tasks())
        writer.add_strings("tasks", track(tasks, "tasks", None, progress))
        facts = {"source": self._source.name, "digest": self._source.digest(), "index": index, "vectors": vectors}
        writer.close({**facts, "problems": dict(sorted(self._source.problems.counts.items()))})
        file.write(TRAILER.pack(MAGIC, writer.offset))

    def _edges(self, rank: NDArray[np.uint32], progress: ProgressReceiver) -> NDArray[np.uint64]:
        """Returns the links as numbers: the citing document in the upper half of each, the cited one in the lower."""
        problems, keys = self._source.problems, self._index.keys
        ends: array[int] = array("I")
        progress.start("links", None, 0)
        self._links.close()
        with (self._folder / "links").open("rb") as file:
            for line in file:
                number, links = orjson.loads(line)
                for link in links:
                    there = self._numbers.get(link)
                    if there is None:
                        problems.add("a link to a document that is not there (left out)", keys[number][DATE_DIGITS:])
                    elif there == number:
                        problems.add("a link to itself (left out)", link)
                    else:
                        ends.extend((number, there))
                progress.advance(len(links))
        pairs = rank[np.frombuffer(ends, dtype=np.uint32)].reshape(-1, 2).astype(np.uint64)
        edges: NDArray[np.uint64] = np.unique(pairs[:, 0] << np.uint64(32) | pairs[:, 1])
        progress.finish("links", len(edges))
        return edges

    def _add_rows(self, writer: ArrayWriter, name: str, edges: NDArray[np.uint64], size: int) -> None:
        edges = np.sort(edges)
        counts = np.bincount((edges >> np.uint64(32)).astype(np.intp), minlength=size)
        writer.add(f"{name}.at", "u8", [np.zeros(1, dtype=np.uint64), np.cumsum(counts)])
        writer.add(name, "u4", [edges & np.uint64(0xFFFFFFFF)])


class _Texts:
    """Title and text of each document, as encoders take them."""

    def __init__(self, path: Path, order: list[int], ends: array[int]) -> None:
        self._path, self._order, self._ends = path, order, ends

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[str]:
        for line in self.lines():
            title, text, _ = orjson.loads(line)
            yield f"{title}\n{text}"

    def lines(self) -> Iterator[bytes]:
        """Yields the line of each document in the file, without its line end."""
        with self._path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as lines:
            for number in self._order:
                yield lines[self._ends[number] : self._ends[number + 1] - 1]


@contextmanager
def _lock(out: Path) -> Iterator[None]:
    """Prevents other builds of ``out`` meanwhile.

    Raises:
        DataError: The folder cannot be written.
    """
    with file_errors(out, "written", WRITABLE), hold_lock(out.parent / f".{out.name}.lock"):
        yield
