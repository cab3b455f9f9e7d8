"""Unfinished files, and what must be known to go on with them."""

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
from envsuite.data.files import write_atomically
from envsuite.data.unpack import DAMAGE


@dataclass(frozen=True)
class Origin:
    """Where an unfinished file comes from."""

    url: str = ""
    version: str | None = None
    """By which the server tells whether its file is still the same: a strong ``ETag``, or ``Last-Modified``."""
    total: int | None = None
    """Bytes that the whole file has, if the server told."""


@dataclass(frozen=True)
class Part:
    """A file ``.NAME.part`` and, beside it, its :class:`Origin`."""

    path: Path

    @property
    def _notes(self) -> Path:
        return self.path.with_name(f"{self.path.name}.json")

    def size(self) -> int:
        """Bytes that are there."""
        return self.path.stat().st_size if self.path.exists() else 0

    def origin(self) -> Origin:
        """What was noted; nothing where that cannot be read."""
        try:
            return Origin(**orjson.loads(self._notes.read_bytes()))
        except (OSError, orjson.JSONDecodeError, TypeError):
            return Origin()

    def resumable(self, file: RemoteFile, url: str) -> tuple[int, str | None]:
        """From which byte to go on at ``url``, and on condition of which version.

        Where no checksum is known to judge the result by, only with the version that was begun with.
        """
        size, origin = self.size(), self.origin()
        condition = origin.version if origin.url == url else None
        limit = file.size if file.size is not None else file.at_most
        if 0 < size <= limit and (condition is not None or file.sha256 is not None):
            return size, condition
        return 0, None

    def total(self, file: RemoteFile) -> int | None:
        """Bytes that the whole file will have, if that is known."""
        return file.size if file.size is not None else self.origin().total

    def begin(self, origin: Origin, offset: int) -> None:
        """Note what is written from ``offset`` on; from 0 on, nothing of what was there stays."""
        if offset == 0:
            self.drop()  # first, so that bytes of one version never stand beside the note of another
        write_atomically(self._notes, orjson.dumps(asdict(origin)))

    def open(self, offset: int) -> IO[bytes]:
        """Open for writing from ``offset`` on."""
        out = self.path.open("r+b" if offset else "wb")
        out.seek(offset)
        out.truncate()
        return out

    def drop(self) -> None:
        """Remove it."""
        self.path.unlink(missing_ok=True)
        self._notes.unlink(missing_ok=True)

    def finish(self, target: Path) -> None:
        """Give it its own name; another file of that name gets the suffix ``.old``."""
        with self.path.open("rb") as file:
            os.fsync(file.fileno())
        if target.exists():
            os.replace(target, target.with_name(f"{target.name}.old"))
        os.replace(self.path, target)
        self._notes.unlink(missing_ok=True)


def version_of(headers: Message) -> str | None:
    """By what a server can be asked later whether its file is still the same, if by anything."""
    tag = headers.get("ETag", "")
    return tag if tag.startswith('"') else headers.get("Last-Modified")


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def shape_trouble(path: Path, name: str) -> str | None:
    """What is wrong with a file whose checksum nobody knows, as far as its kind shows; ``None`` if nothing."""
    try:
        if name.endswith(".zip"):
            with path.open("rb") as file, zipfile.ZipFile(file) as packed:
                file.seek(-22 - len(packed.comment), os.SEEK_END)  # its last record, which zipfile looks for further up
                return None if file.read(4) == b"PK\x05\x06" else "an archive with something behind its end"
        if ".tar" in name:
            with tarfile.open(path) as archive:
                return None if archive.getmembers() else "an archive without a file"
        if name.endswith(".json"):
            return None if _closed(path) else "JSON that is cut off"
    except (*DAMAGE, OSError) as error:
        return f"an archive that is cut off or damaged ({error})"
    return None


def _closed(path: Path) -> bool:
    with path.open("rb") as file:
        first = file.read(64).lstrip()[:1]
        file.seek(max(0, path.stat().st_size - 64))
        return first + file.read().rstrip()[-1:] in (b"[]", b"{}")
