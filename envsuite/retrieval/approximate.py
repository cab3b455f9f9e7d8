"""Approximate search among vectors by faiss, for corpora whose exact search takes too long.

Needs faiss: ``pip install 'envsuite[faiss]'``. The index is a file beside the vectors: an inverted file over clusters
of vectors, in which each component takes a byte. It proposes documents; their scores are computed from the vectors.

The file is faiss's, followed by 72 bytes: what identifies the vectors, the SHA-256 of all before it, and a magic word.
faiss itself does not notice damage, and may read outside its arrays; so the file is checked once before it opens it.
"""

from __future__ import annotations

import hashlib
import math
import struct
import threading
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envsuite.core.errors import DataError, require_extra
from envsuite.data.files import atomic_file, file_errors
from envsuite.data.progress import ProgressReceiver, SilentProgress
from envsuite.retrieval.documents import Found
from envsuite.retrieval.vectors import Vectors, best

PROBES = 128
"""Clusters that a query visits by default."""
SMALL = 100_000
"""Number of documents up to which the exact search is as fast, and is used."""
_SHARE = 40
"""Vectors for each cluster that the clustering learns from."""
_BLOCK = 1 << 16
_SURPLUS = 4
"""Proposals for each document that is asked for."""
_TRAILER = struct.Struct("<32s32s8s")
"""Identity of the vectors, SHA-256 of the index and the identity, and the magic word."""
_MAGIC = b"EnvFaiss"
_REMEDY = "Build it again with build_index (docs/retrieval.md)"


def build_index(vectors: Vectors, path: Path, progress: ProgressReceiver | None = None) -> Path:
    """Builds the index of all vectors; replaces an existing file.

    Args:
        vectors: The vectors.
        path: The index file.
        progress: Receives the progress.

    Returns:
        ``path``.

    Raises:
        MissingExtra: faiss is not installed.
        DataError: There is no vector.
    """
    faiss = _faiss()
    size = len(vectors)
    if not size:
        raise DataError("an index needs at least one vector")
    progress = progress or SilentProgress()
    progress.start(f"index ({vectors.name})", size, 0)
    clusters = max(1, min(round(2 * math.sqrt(size)), size // 64))
    quantizer = faiss.IndexFlatIP(vectors.dimensions)
    byte = faiss.ScalarQuantizer.QT_8bit
    index = faiss.IndexIVFScalarQuantizer(quantizer, vectors.dimensions, clusters, byte, faiss.METRIC_INNER_PRODUCT)
    index.train(_sample(vectors, clusters * _SHARE))
    for low in range(0, size, _BLOCK):
        high = min(low + _BLOCK, size)
        index.add(vectors.rows(low, high))
        progress.advance(high - low)
    identity = _identity(vectors)
    hasher = hashlib.sha256()
    with atomic_file(path) as file:

        def write(content: bytes) -> int:
            hasher.update(content)
            return file.write(content)

        faiss.write_index(index, faiss.PyCallbackIOWriter(write))
        hasher.update(identity)
        file.write(_TRAILER.pack(identity, hasher.digest(), _MAGIC))
    progress.finish(f"index ({vectors.name})", size)
    return path


def _sample(vectors: Vectors, size: int) -> NDArray[np.float32]:
    """Returns evenly spaced vectors, at most ``size``."""
    apart = max(1, -(-len(vectors) // size))
    lows = range(0, len(vectors), _BLOCK)
    return np.concatenate([vectors.rows(low, min(low + _BLOCK, len(vectors)))[-low % apart :: apart] for low in lows])


def _identity(vectors: Vectors) -> bytes:
    """Returns 32 bytes that tell these vectors from others."""
    size = len(vectors)
    sample = np.unique(np.linspace(0, size - 1, min(size, 256)).astype(np.int64)).tolist()
    rows = np.concatenate([vectors.rows(number, number + 1) for number in sample])
    return hashlib.sha256(f"{vectors.name} {size} ".encode() + rows.astype("<f4").tobytes()).digest()


def _trailer(path: Path) -> tuple[bytes, bytes]:
    """Returns identity and SHA-256 at the end of an index file.

    Raises:
        DataError: It cannot be read, or is no index, or one of an earlier version.
    """
    with file_errors(path, remedy=_REMEDY), path.open("rb") as file:
        file.seek(max(0, file.seek(0, 2) - _TRAILER.size))
        end = file.read(_TRAILER.size)
    if len(end) < _TRAILER.size or end[-len(_MAGIC) :] != _MAGIC:
        raise DataError(f"{path} is no index, a truncated one, or one without a checksum, as before. {_REMEDY}")
    identity, digest, _ = _TRAILER.unpack(end)
    return identity, digest


def _digest(path: Path) -> bytes:
    """Returns the SHA-256 of an index file up to that which it has of itself.

    Raises:
        DataError: It cannot be read.
    """
    hasher = hashlib.sha256()
    with file_errors(path, remedy=_REMEDY), path.open("rb") as file:
        bytes_left = file.seek(0, 2) - (_TRAILER.size - 32)
        file.seek(0)
        while bytes_left > 0:
            content = file.read(min(bytes_left, 1 << 20))
            hasher.update(content)
            bytes_left -= len(content) or bytes_left
    return hasher.digest()


class Approximate:
    """The search of :class:`Vectors`, by way of an index; any number of threads may share it.

    Up to :data:`SMALL` documents, also where a cut-off leaves so few, the search is exact. Above, it misses some of the
    nearest documents, the fewer the more clusters it visits; the scores of those it finds are exact.

    Args:
        vectors: The vectors.
        path: The index that :func:`build_index` built of them.
        probes: Number of clusters that a query visits.

    Raises:
        MissingExtra: faiss is not installed.
        DataError: The index is missing, none of this version, or of other vectors. A search may raise it, too, since
            the file is checked when it is first needed.
    """

    def __init__(self, vectors: Vectors, path: Path, probes: int = PROBES) -> None:
        self.name = f"{vectors.name}-ivf"
        self._vectors, self._path, self._probes = vectors, path, probes
        self._small = SMALL
        identity, self._sum = _trailer(path)
        if identity != _identity(vectors):
            raise DataError(f"{path} is no index of these vectors. {_REMEDY}")
        self._faiss = _faiss()
        self._opening = threading.Lock()
        self._index: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Approximate, (self._vectors, self._path, self._probes)

    def search(self, query: str, k: int, stop: int | None = None) -> Found:
        """Returns about the ``k`` nearest documents; see :meth:`Vectors.search`."""
        return self.nearest(self._vectors.encode(query), k, stop)

    def nearest(self, vector: NDArray[np.float32], k: int, stop: int | None = None) -> Found:
        """Returns about the ``k`` documents nearest to a vector; see :meth:`Vectors.nearest`."""
        size = len(self._vectors) if stop is None else max(0, min(stop, len(self._vectors)))
        if size <= self._small or k < 1 or not vector.any():
            return self._vectors.nearest(vector, k, stop)
        faiss = self._faiss
        options = {"nprobe": self._probes}
        if size < len(self._vectors):
            options["sel"] = faiss.IDSelectorRange(0, size)
        parameters = faiss.SearchParametersIVF(**options)
        _, proposals = self._open_index().search(vector[None].astype(np.float32), _SURPLUS * k, params=parameters)
        numbers = np.sort(proposals[0])
        numbers = numbers[(numbers >= 0) & (numbers < size)].astype(np.int64)
        return best(numbers, self._vectors.scores(vector, numbers), k)

    def _open_index(self) -> Any:
        """Returns the index, which is checked and memory-mapped on first use."""
        with self._opening:
            if self._index is None:
                if _digest(self._path) != self._sum:
                    raise DataError(f"{self._path} is damaged. {_REMEDY}")
                try:
                    self._index = self._faiss.read_index(str(self._path), self._faiss.IO_FLAG_MMAP)
                except RuntimeError as error:
                    raise DataError(f"{self._path} cannot be read by faiss ({error}). {_REMEDY}") from error
        return self._index


def _faiss() -> Any:
    with require_extra("approximate search needs faiss", "faiss"):
        import faiss
    return faiss
