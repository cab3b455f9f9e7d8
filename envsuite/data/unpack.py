"""Extracts files from an archive that may be damaged or malicious."""

from __future__ import annotations

import hashlib
import lzma
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO

from envsuite.core.errors import DataError
from envsuite.data.catalog import Unpack
from envsuite.data.connection import CHUNK
from envsuite.data.places import WRITABLE
from envsuite.data.progress import ProgressReceiver, format_size

DAMAGE = (
    zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, NotImplementedError,
    ValueError, IndexError, OverflowError,  # raised by zipfile and tarfile for damaged names and numbers
)  # fmt: skip
"""Exceptions that reading a damaged archive can raise."""


@dataclass(frozen=True)
class Entry:
    """The expected size and checksum of a file."""

    size: int
    sha256: str


@dataclass(frozen=True)
class _Member:
    name: str
    size: int
    regular: bool
    content: zipfile.ZipInfo | tarfile.TarInfo


def unpack(archive: Path, spec: Unpack, into: Path, progress: ProgressReceiver) -> dict[str, Entry]:
    """Extracts the members that ``spec`` selects to ``into``.

    Args:
        archive: A zip or tar file, compressed or not.
        spec: Selects members and limits their size.
        into: A folder to which nobody else writes meanwhile.
        progress: Receives the progress of each file.

    Returns:
        Paths below ``into`` (with ``/``) -> size and checksum.

    Raises:
        DataError: The file is not an archive, or is damaged or encrypted; a selected member is missing, occurs twice or
            is not a plain file; a path is absolute or has ``..``; the members are too large; the disk is full. Files
            extracted so far stay: the caller removes ``into``.
    """
    kind = _Zip if zipfile.is_zipfile(archive) else _Tar
    try:
        with closing(kind(archive)) as reader:
            return _unpack(archive, reader, spec, into, progress)
    except DataError:  # which is a ValueError, too
        raise
    except DAMAGE as error:
        raise DataError(f"{archive}: cut off, damaged, or no archive ({error})") from error
    except OSError as error:
        raise DataError(f"{archive}: cannot be unpacked into {into} ({error.strerror or error}). {WRITABLE}") from error


def _unpack(archive: Path, reader: _Zip | _Tar, spec: Unpack, to: Path, progress: ProgressReceiver) -> dict[str, Entry]:
    members: dict[str, _Member] = {}
    for member in reader.members():
        parts = _parts(archive, member.name)
        if not any(_matches(parts, pattern.split("/")) for pattern in spec.wanted):
            continue
        path = "/".join(parts[spec.strip :])
        if not member.regular:
            raise DataError(f"{archive}: {member.name!r} is a link or a device; nothing was unpacked")
        if path in members:
            raise DataError(f"{archive}: {member.name!r} is in it twice; nothing was unpacked")
        members[path] = member
    if not members:
        raise DataError(f"{archive}: has no member like {' or '.join(spec.wanted)}; is it the right file?")
    # No member yields more than its announced size: zipfile and tarfile read no further.
    if (total := sum(member.size for member in members.values())) > spec.at_most:
        raise DataError(f"{archive}: unpacks to {format_size(total)}; at most {format_size(spec.at_most)} can be right")
    progress.start(f"unpacking {archive.name}", total, 0)
    entries = {}
    for path, member in members.items():
        target = to / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with reader.open(member) as source, target.open("xb") as out:
            entries[path] = _copy(source, out)
        progress.advance(entries[path].size)
    progress.finish(f"unpacked {len(entries)} files of {archive.name}", sum(entry.size for entry in entries.values()))
    return entries


def _copy(source: IO[bytes], out: IO[bytes]) -> Entry:
    digest, size = hashlib.sha256(), 0
    while chunk := source.read(CHUNK):
        out.write(chunk)
        digest.update(chunk)
        size += len(chunk)
    return Entry(size, digest.hexdigest())


def _parts(archive: Path, name: str) -> list[str]:
    parts = name.rstrip("/").split("/")
    if "\\" in name or "\0" in name or ":" in parts[0] or any(part in ("", ".", "..") for part in parts):
        raise DataError(f"{archive}: the path {name!r} in it is not one below a folder; nothing was unpacked")
    return parts


def _matches(parts: list[str], pattern: list[str]) -> bool:
    return len(parts) == len(pattern) and all(map(fnmatchcase, parts, pattern))


class _Zip:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = zipfile.ZipFile(path)

    def members(self) -> Iterator[_Member]:
        for info in self._file.infolist():
            if not info.is_dir():
                kind = stat.S_IFMT(info.external_attr >> 16)
                yield _Member(info.orig_filename, info.file_size, kind in (0, stat.S_IFREG), info)

    def open(self, member: _Member) -> IO[bytes]:
        assert isinstance(member.content, zipfile.ZipInfo)
        if member.content.flag_bits & 1:
            raise DataError(f"{self._path}: {member.name!r} is encrypted")
        return self._file.open(member.content)

    def close(self) -> None:
        self._file.close()


class _Tar:
    def __init__(self, path: Path) -> None:
        self._file = tarfile.open(path)

    def members(self) -> Iterator[_Member]:
        for info in self._file:
            if not info.isdir():
                # GNU tar writes "./name" when it packs the current folder
                yield _Member(info.name.removeprefix("./"), info.size, info.isreg() and not info.issparse(), info)

    def open(self, member: _Member) -> IO[bytes]:
        assert isinstance(member.content, tarfile.TarInfo)
        source = self._file.extractfile(member.content)
        assert source is not None, "a regular file"
        return source

    def close(self) -> None:
        self._file.close()
