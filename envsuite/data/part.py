"""Unfinished downloads, with the information needed to resume them."""

from __future__ import annotations

import hashlib
import os
import tarfile
import zipfile
from dataclasses import asdict, dataclass
from email.message import Message
from pathlib import Path
from typing import IO

import orjson

from envsuite.data.catalog import RemoteFile
from envsuite.data.files import flush_to_disk, write_atomically
from envsuite.data.unpack import DAMAGE


@dataclass(frozen=True)
class DownloadOrigin:
    """The origin of an unfinished file."""

    url: str = ""
    version: str | None = None
    """Identifies the server's version of the file: a strong ``ETag``, or ``Last-Modified``."""
    total: int | None = None
    """Size in bytes of the complete file, if the server reported it."""


@dataclass(frozen=True)
class PartFile:
    """A file ``.NAME.part`` and, beside it, its :class:`DownloadOrigin`."""

    path: Path

    @property
    def _notes(self) -> Path:
        return self.path.with_name(f"{self.path.name}.json")

    def size(self) -> int:
        """Returns the size so far in bytes."""
        return self.path.stat().st_size if self.path.exists() else 0

    def origin(self) -> DownloadOrigin:
        """Returns the origin that was noted; an empty one if it cannot be read."""
        try:
            return DownloadOrigin(**orjson.loads(self._notes.read_bytes()))
        except (OSError, orjson.JSONDecodeError, TypeError):
            return DownloadOrigin()

    def resumable(self, file: RemoteFile, url: str) -> tuple[int, str | None]:
        """Returns the offset from which to resume at ``url``, and the version that this requires, if any.

        Without a known checksum to judge the result by, only the version that was begun with can be resumed.
        """
        size, origin = self.size(), self.origin()
        condition = origin.version if origin.url == url else None
        limit = file.size if file.size is not None else file.at_most
        if 0 < size <= limit and (condition is not None or file.sha256 is not None):
            return size, condition
        return 0, None

    def total(self, file: RemoteFile) -> int | None:
        """Returns the size in bytes of the complete file, if known."""
        return file.size if file.size is not None else self.origin().total

    def begin(self, origin: DownloadOrigin, offset: int) -> None:
        """Notes the origin of what is written from ``offset`` on; at 0, drops everything before."""
        if offset == 0:
            self.drop()  # first, so that bytes of one version are never stored with the note of another
        write_atomically(self._notes, orjson.dumps(asdict(origin)))

    def open(self, offset: int) -> IO[bytes]:
        """Opens the file for writing from ``offset`` on."""
        out = self.path.open("r+b" if offset else "wb")
        out.seek(offset)
        out.truncate()
        return out

    def drop(self) -> None:
        """Removes the file and its note."""
        self.path.unlink(missing_ok=True)
        self._notes.unlink(missing_ok=True)

    def finish(self, target: Path) -> None:
        """Moves the file to ``target``; an existing file there gets the suffix ``.old``."""
        flush_to_disk(self.path)
        if target.exists():
            os.replace(target, target.with_name(f"{target.name}.old"))
        os.replace(self.path, target)
        self._notes.unlink(missing_ok=True)


def version_of(headers: Message) -> str | None:
    """Returns the header value by which a server can later identify this version, if it sent one."""
    tag = headers.get("ETag", "")
    return tag if tag.startswith('"') else headers.get("Last-Modified")


def sha256_of(path: Path) -> str:
    """Returns the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def shape_trouble(path: Path, name: str) -> str | None:
    """Returns what is visibly wrong with a file of unknown checksum; ``None`` if nothing is."""
    try:
        if name.endswith(".zip"):
            with path.open("rb") as file, zipfile.ZipFile(file) as zip_file:
                file.seek(-22 - len(zip_file.comment), os.SEEK_END)  # the last record, which zipfile searches backwards
                return None if file.read(4) == b"PK\x05\x06" else "an archive with something behind its end"
        if ".tar" in name:
            with tarfile.open(path) as archive:
                return None if archive.getmembers() else "an archive without a file"
        if name.endswith(".json"):
            return None if _is_whole_json(path) else "JSON that is cut off"
    except (*DAMAGE, OSError) as error:
        return f"an archive that is cut off or damaged ({error})"
    return None


def _is_whole_json(path: Path) -> bool:
    with path.open("rb") as file:
        first = file.read(64).lstrip()[:1]
        file.seek(max(0, path.stat().st_size - 64))
        return first + file.read().rstrip()[-1:] in (b"[]", b"{}")
