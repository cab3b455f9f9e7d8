"""Vectors of all documents in one block of a file, and exact search in them.

A component is stored as a 16-bit integer: unit vectors have components from -1 to 1, of which these keep 15 binary
digits; half-precision numbers keep 11 of a component's own, and take five times as long to read with NumPy.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from envsuite.core.errors import DataError
from envsuite.data.arrays import Arrays, ArrayWriter
from envsuite.data.progress import ProgressReceiver, SilentProgress
from envsuite.retrieval.documents import Found
from envsuite.retrieval.encoders import Encoder, Texts
from envsuite.retrieval.sentence import SentenceEncoder


def encoder(name: str) -> Encoder:
    """Returns the encoder for a name that a user typed.

    Args:
        name: The folder of a sentence-transformers model.

    Raises:
        DataError: There is no such folder.
        MissingExtra: sentence-transformers is not installed.
    """
    if Path(name).is_dir():
        return SentenceEncoder(Path(name))
    raise DataError(f"no encoder {name!r}: give the folder of a sentence-transformers model")


def open_encoder(facts: dict[str, Any]) -> Encoder:
    """Returns the encoder that was written with a block of vectors.

    Raises:
        DataError: The program has no such encoder, or its model is gone.
        MissingExtra: It needs a package that is not installed.
    """
    if facts["kind"] == "sentence":
        return SentenceEncoder(Path(facts["model"]), facts["query"], facts["passage"], facts["name"], facts["dtype"])
    raise DataError(f"vectors of an encoder of kind {facts['kind']!r} need it: Vectors(path, offset, encoder)")


KIND = "vectors"
VERSION = 1
REMEDY = "Build it again, or fetch it again."
SCALE = 32767
"""The integer that stands for 1."""
PROBE = "Which methods find the shortest path between two places?"
"""Text by which :class:`Vectors` notices that a model is not the one that encoded the documents."""
_ALIKE = 0.98
"""Least cosine of two vectors of the probe; rounding in half precision stays above 0.999."""
_BATCH = 256
"""Texts that are encoded at a time."""
_BLOCK = 1024
"""Vectors that are multiplied at a time: as many as stay in the processor's cache."""


def write_vectors(file: BinaryIO, encoder: Encoder, texts: Texts, progress: ProgressReceiver | None = None) -> int:
    """Encodes the texts, and writes their vectors to ``file`` from its current position.

    Args:
        file: The output.
        encoder: Encodes the texts.
        texts: A text for each document, in the order of the documents' numbers.
        progress: Receives the progress.

    Returns:
        The offset of the block, which :class:`Vectors` takes.

    Raises:
        DataError: The encoder returned something that is no vector.
    """
    progress = progress or SilentProgress()
    progress.start(f"vectors ({encoder.name})", len(texts), 0)
    writer = ArrayWriter(file, KIND, VERSION)
    count = 0

    def parts() -> Iterator[NDArray[np.int16]]:
        nonlocal count
        remaining_texts = iter(texts)
        while batch := list(islice(remaining_texts, _BATCH)):
            vectors = encoder.encode(batch, "passage")
            if vectors.shape != (len(batch), encoder.dimensions) or not np.isfinite(vectors).all():
                raise DataError(f"the encoder {encoder.name} returned vectors of shape {vectors.shape}, or not finite")
            yield np.rint(np.clip(vectors, -1, 1) * np.float32(SCALE)).astype(np.int16)
            count += len(batch)
            progress.advance(len(batch))

    writer.add("vectors", "i2", parts())
    facts = encoder.write(writer)
    writer.add("probe", "f4", [encoder.encode([PROBE], "query")[0]])
    writer.close({"name": encoder.name, "dimensions": encoder.dimensions, "size": count, "encoder": facts})
    progress.finish(f"vectors ({encoder.name})", count)
    return writer.offset


class Vectors:
    """A block of vectors, opened for exact search; any number of threads and processes may share it.

    An instance can be pickled: the receiver opens the file itself. The scores are cosines; each is computed by itself
    in double precision, so that equal vectors have equal scores whatever the cut-off, and come in the order of their
    numbers.

    Args:
        path: The file.
        offset: The value that :func:`write_vectors` returned.
        encoder: Encodes queries; by default that of the file, whose model must still lie where it was.
        remedy: A sentence for errors: how to get a usable file.

    Raises:
        DataError: The file is missing, damaged, or has no such block there. A search may raise it, too, since parts
            are checked when they are first read.
    """

    def __init__(self, path: Path, offset: int = 0, encoder: Encoder | None = None, remedy: str = REMEDY) -> None:
        self._source = (path, offset, encoder, remedy)
        self._arrays = Arrays(path, KIND, VERSION, remedy, offset)
        facts = self._arrays.facts
        self.name: str = facts["name"]
        """The encoder's name."""
        self.dimensions: int = facts["dimensions"]
        """Length of a vector."""
        self._size: int = facts["size"]
        self._encoder: Encoder | None = None
        self._opening = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return Vectors, self._source

    def __len__(self) -> int:
        """Returns the number of documents."""
        return self._size

    def search(self, query: str, k: int, stop: int | None = None) -> Found:
        """Returns the ``k`` documents nearest to the query; none where the encoder knows nothing of it.

        See :class:`~envsuite.retrieval.documents.Retriever`.

        Raises:
            DataError: The encoder's model is missing, or another one than that of the documents.
            MissingExtra: The encoder needs a package that is not installed.
        """
        return self.nearest(self.encode(query), k, stop)

    def encode(self, query: str) -> NDArray[np.float32]:
        """Returns the vector of a query. Shape: [d]. Errors as for :meth:`search`."""
        with self._opening:
            if self._encoder is None:
                self._encoder = self._open_encoder()
        vector: NDArray[np.float32] = self._encoder.encode([query], "query")[0]
        return vector

    def _open_encoder(self) -> Encoder:
        path, _, encoder, _ = self._source
        encoder = encoder or open_encoder(self._arrays.facts["encoder"])
        before = self._arrays.read("probe", 0, self.dimensions)
        now = encoder.encode([PROBE], "query")[0]
        if now.shape != before.shape or (before.any() and float(now @ before) < _ALIKE):
            raise DataError(f"{path}: its vectors are those of another model than {encoder.name!r} is now")
        return encoder

    def nearest(self, vector: NDArray[np.float32], k: int, stop: int | None = None) -> Found:
        """Returns the ``k`` documents nearest to a vector; none for zeros.

        Args:
            vector: A vector of length 1. Shape: [d].
            k: Maximum number of documents.
            stop: Returns documents with smaller numbers only.
        """
        size = self._size if stop is None else max(0, min(stop, self._size))
        if k < 1 or not size or not vector.any():
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32)
        # Rounding in single precision errs by at most this for either of two scores.
        candidates = _Candidates(k, self.dimensions * 2.0**-23)
        query = vector / np.float32(SCALE)
        block = np.empty((_BLOCK, self.dimensions), dtype=np.float32)
        scores = np.empty(_BLOCK, dtype=np.float32)
        for low in range(0, size, _BLOCK):
            high = min(low + _BLOCK, size)
            rows, products = block[: high - low], scores[: high - low]
            rows[:] = self._rows(low, high)
            np.dot(rows, query, out=products)
            candidates.offer(low, products)
        numbers = candidates.numbers()
        return best(numbers, self.scores(vector, numbers), k)

    def scores(self, vector: NDArray[np.float32], numbers: NDArray[np.int64]) -> NDArray[np.float32]:
        """Returns the cosines of documents with a vector. Shape: [n]."""
        cosines = np.empty(len(numbers), dtype=np.float32)
        exact = vector.astype(np.float64) / SCALE
        for low in range(0, len(numbers), _BLOCK):
            part = numbers[low : low + _BLOCK].tolist()
            rows = np.array([self._rows(number, number + 1)[0] for number in part], dtype=np.float64)
            cosines[low : low + _BLOCK] = (rows * exact).sum(axis=1)
        return cosines

    def rows(self, start: int, stop: int) -> NDArray[np.float32]:
        """Returns the vectors of documents ``start`` to ``stop``. Shape: [n, d]."""
        return self._rows(start, stop).astype(np.float32) / np.float32(SCALE)

    def _rows(self, start: int, stop: int) -> NDArray[np.int16]:
        d = self.dimensions
        return self._arrays.read("vectors", start * d, stop * d).reshape(-1, d)


def best(numbers: NDArray[np.int64], scores: NDArray[np.float32], k: int) -> Found:
    """Returns the ``k`` documents with the highest scores, best first; equal scores by number."""
    order = np.lexsort((numbers, -scores))[:k]
    return numbers[order], scores[order]


class _Candidates:
    """Keeps the documents that may be among the best ``k``: scores are known up to half of ``margin``."""

    def __init__(self, k: int, margin: float) -> None:
        self._k, self._margin = k, np.float32(margin)
        self._least = np.float32(-np.inf)
        self._numbers: list[NDArray[np.int64]] = []
        self._scores: list[NDArray[np.float32]] = []
        self._waiting = 0

    def offer(self, first: int, scores: NDArray[np.float32]) -> None:
        """Adds documents numbered from ``first`` on."""
        good = np.flatnonzero(scores >= self._least)
        if len(good):
            self._numbers.append(good + first)
            self._scores.append(scores[good])
            self._waiting += len(good)
            if self._waiting > self._k:
                self._sift()

    def _sift(self) -> None:
        scores = np.concatenate(self._scores)
        self._least = np.partition(scores, -self._k)[-self._k] - self._margin
        is_kept = scores >= self._least
        self._numbers = [np.concatenate(self._numbers)[is_kept]]
        self._scores = [scores[is_kept]]
        self._waiting = 0  # sifted again after k more

    def numbers(self) -> NDArray[np.int64]:
        """Returns the documents' numbers."""
        return np.concatenate(self._numbers).astype(np.int64)
