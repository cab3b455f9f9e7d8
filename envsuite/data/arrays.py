"""Named arrays in one memory-mapped file, which several processes read without copies.

A block consists of a preamble of 64 bytes, the arrays, each at a multiple of 64, checksums of everything before them,
and a table of names as JSON. A file can hold several blocks, at any offset. Preamble and table are checked when a block
is opened, the arrays in pieces when a piece is first read: so opening takes milliseconds, whatever the size, and yet no
damaged byte is ever used.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import orjson
from numpy.typing import DTypeLike, NDArray

from envsuite.core.errors import DataError

ALIGNMENT = 64
"""Alignment of the arrays in bytes."""
PIECE = 1 << 16
"""Number of bytes that share a checksum."""
_PREAMBLE = struct.Struct("<8s16sIQQIQI")  # magic, kind, version, table at, size, crc, block size, crc of all this
_MAGIC = b"EnvArray"
_SPAN = struct.Struct("<2Q")


class ArrayWriter:
    """Writes a block of arrays to ``file`` from its current position, one array after the other."""

    def __init__(self, file: BinaryIO, kind: str, version: int) -> None:
        """Begins a block; readers must name the same ``kind`` (at most 16 ASCII letters) and ``version``."""
        self._file, self._kind, self._version = file, kind.encode("ascii"), version
        self._file.write(bytes(-file.tell() % ALIGNMENT))
        self.offset = file.tell()
        """Offset of the block in the file: a multiple of 64."""
        self._size = 0
        self._arrays: dict[str, tuple[str, int, int]] = {}
        self._sums: list[int] = []
        self._sum = 0
        # The preamble stays empty until the end, so that a half-written block is not valid.
        self._put(bytes(ALIGNMENT), checksum=False)

    def add(self, name: str, dtype: DTypeLike, parts: Iterable[NDArray[Any]]) -> None:
        """Writes an array whose elements come in ``parts``, which need not fit in memory together."""
        kind = np.dtype(dtype).newbyteorder("<")
        self._put(bytes(-self._size % ALIGNMENT))
        at = self._size
        for part in parts:
            self._put(np.ascontiguousarray(part, dtype=kind).tobytes())
        self._arrays[name] = (kind.str, at, (self._size - at) // kind.itemsize)

    def add_strings(self, name: str, strings: Iterable[bytes]) -> None:
        """Writes strings end to end with their offsets: two arrays, ``name.text`` and ``name.at``."""
        ends = array("Q", [0])

        def parts() -> Iterator[NDArray[np.uint8]]:
            waiting = bytearray()
            for string in strings:
                waiting += string
                ends.append(ends[-1] + len(string))
                if len(waiting) >= PIECE:
                    yield np.frombuffer(bytes(waiting), dtype=np.uint8)
                    waiting.clear()
            yield np.frombuffer(bytes(waiting), dtype=np.uint8)

        self.add(f"{name}.text", "u1", parts())
        self.add(f"{name}.at", "u8", [np.frombuffer(ends, dtype=np.uint64)])

    def close(self, facts: dict[str, Any]) -> None:
        """Ends the block; ``facts`` is further information for readers, as JSON."""
        if (self._size - ALIGNMENT) % PIECE:
            self._sums.append(self._sum)
        data_end = self._size
        names = {"arrays": self._arrays, "facts": facts}
        table = np.array(self._sums, dtype="<u4").tobytes() + orjson.dumps(names, option=orjson.OPT_SORT_KEYS)
        self._put(table, checksum=False)
        fields = (_MAGIC, self._kind, self._version, data_end, len(table), zlib.crc32(table), self._size)
        preamble = _PREAMBLE.pack(*fields, 0)[:-4]
        self._file.seek(self.offset)
        self._file.write(preamble + struct.pack("<I", zlib.crc32(preamble)))
        self._file.seek(self.offset + self._size)

    def _put(self, content: bytes, checksum: bool = True) -> None:
        self._file.write(content)
        view = memoryview(content)
        while checksum and view:
            room = PIECE - (self._size - ALIGNMENT) % PIECE
            self._sum = zlib.crc32(view[:room], self._sum)
            self._size += len(view[:room])
            if (self._size - ALIGNMENT) % PIECE == 0:
                self._sums.append(self._sum)
                self._sum = 0
            view = view[room:]
        if not checksum:
            self._size += len(content)


@dataclass(frozen=True)
class _Place:
    dtype: np.dtype[Any]
    at: int
    length: int


class Arrays:
    """The arrays of a block, read-only.

    Any number of threads and processes may read; they share the system's pages. An instance can be pickled: the
    receiver opens the file itself.
    """

    def __init__(self, path: Path, kind: str, version: int, remedy: str, offset: int = 0) -> None:
        """Opens the block that begins at byte ``offset`` of ``path``.

        Args:
            path: The file.
            kind: The kind that the writer named.
            version: The version that the writer named.
            remedy: A sentence for errors: how to get a usable block.
            offset: Offset of the block in the file.

        Raises:
            DataError: The file is missing, has another kind or version of block, is truncated or damaged.
        """
        self._source = (path, kind, version, remedy, offset)
        try:
            with open(path, "rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise self._error(f"cannot be read ({error})") from error
        view = memoryview(self._map)[offset:]
        head = bytes(view[: _PREAMBLE.size])
        if len(head) < _PREAMBLE.size or head[: len(_MAGIC)] != _MAGIC:
            raise self._error(f"holds no {kind}, or a half-written one")
        _, kind_read, version_read, table_at, table_size, table_sum, size, head_sum = _PREAMBLE.unpack(head)
        if zlib.crc32(head[:-4]) != head_sum:
            raise self._error("is damaged in its first bytes")
        if kind_read.rstrip(b"\0") != kind.encode("ascii"):
            raise self._error(f"holds a {kind_read.rstrip(bytes(1)).decode('ascii', 'replace')}, not a {kind}")
        if version_read != version:
            raise self._error(f"is of version {version_read}, and this program reads version {version}")
        if size > len(view):
            raise self._error(f"is truncated: {len(view):,} of {size:,} bytes")
        table = bytes(view[table_at : table_at + table_size])
        if zlib.crc32(table) != table_sum:
            raise self._error("is damaged in its table")
        self._read_table(table, view[:table_at])

    def _read_table(self, table: bytes, data: memoryview) -> None:
        pieces = -(-(len(data) - ALIGNMENT) // PIECE)
        names = orjson.loads(table[4 * pieces :])
        self._data = data
        self._sums = np.frombuffer(table, "<u4", pieces).tolist()
        self._seen = bytearray(pieces)
        self._unseen = pieces
        self._places = {name: _Place(np.dtype(kind), at, size) for name, (kind, at, size) in names["arrays"].items()}
        self.facts: dict[str, Any] = names["facts"]

    def __reduce__(self) -> tuple[Any, ...]:
        return Arrays, self._source

    def length(self, name: str) -> int:
        """Returns the number of elements of an array."""
        return self._places[name].length

    def read(self, name: str, start: int, stop: int) -> NDArray[Any]:
        """Returns elements ``start`` to ``stop`` of an array, as a view of the file.

        Raises:
            DataError: The file is damaged there.
        """
        place = self._places[name]
        first = place.at + start * place.dtype.itemsize
        if self._unseen:
            self._check(first, first + (stop - start) * place.dtype.itemsize)
        return np.frombuffer(self._data, place.dtype, stop - start, first)

    def strings(self, name: str) -> int:
        """Returns the number of strings that ``add_strings`` wrote."""
        return self.length(f"{name}.at") - 1

    def string(self, name: str, number: int) -> bytes:
        """Returns string ``number``, counted from 0.

        Raises:
            DataError: The file is damaged there.
        """
        at = self._places[f"{name}.at"].at + 8 * number
        text = self._places[f"{name}.text"].at
        if self._unseen:
            self._check(at, at + 16)
        start, stop = _SPAN.unpack_from(self._data, at)
        if self._unseen:
            self._check(text + start, text + stop)
        return bytes(self._data[text + start : text + stop])

    def find(self, name: str, target: bytes) -> int | None:
        """Returns the number of a string, or ``None``; the strings must have been written in order."""
        count = self.strings(name)
        place = bisect_left(range(count), target, key=lambda number: self.string(name, number))
        return place if place < count and self.string(name, place) == target else None

    def _check(self, first: int, end: int) -> None:
        """Verifies the checksums of a range of bytes, each piece once."""
        low, high = (first - ALIGNMENT) // PIECE, (end - ALIGNMENT - 1) // PIECE + 1
        piece = self._seen.find(0, low, high)
        while piece >= 0:
            at = ALIGNMENT + piece * PIECE
            if zlib.crc32(self._data[at : at + PIECE]) != self._sums[piece]:
                raise self._error(f"is damaged between its bytes {at:,} and {at + PIECE:,}")
            self._seen[piece] = 1
            self._unseen = self._seen.count(0)
            piece = self._seen.find(0, piece + 1, high)

    def _error(self, what: str) -> DataError:
        path, _, _, remedy, _ = self._source
        return DataError(f"{path} {what}. {remedy}")
