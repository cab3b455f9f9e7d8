"""Reads files of lines, gzipped or not, whatever is in them."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import orjson

from envsuite.core.errors import DataError
from envsuite.data.files import file_errors
from envsuite.data.part import sha256_of
from envsuite.retrieval.documents import Document, DocumentProblems

LONGEST_LINE = 2**24
"""Bytes of the longest line that is read."""
Tell = Callable[[str, str], None]
"""Receives the kind of a problem and its place."""
_GZIP = b"\x1f\x8b"
_NOT_UTF8 = "a line that is not UTF-8 (left out)"


class PaperReader(ABC):
    """Papers in files, in their order: what sources (:class:`~envsuite.retrieval.documents.Source`) of files share.

    Args:
        paths: The files.
        strict: Whether the first problem is an error.
    """

    reader: ClassVar[str]
    """Name and version of what reads the files; part of the digest."""
    size: int | None = None
    """Not known before the files are read."""

    def __init__(self, paths: Sequence[Path], strict: bool) -> None:
        self.problems = DocumentProblems(strict)
        self._paths = paths

    def digest(self) -> str:
        """Returns the SHA-256 (hex) of the files."""
        return digest_of(self._paths, self.reader)

    def documents(self) -> Iterator[Document]:
        """Yields the papers in the order of the files."""
        return self._read(self.problems.add)

    @abstractmethod
    def _read(self, tell: Tell) -> Iterator[Document]:
        """Yields all papers."""


def digest_of(paths: Sequence[Path], reader: str) -> str:
    """Returns the SHA-256 (hex) of what is in the files, and of the name and version of their reader.

    Raises:
        DataError: A file cannot be read.
    """
    total = hashlib.sha256(reader.encode())
    for path in paths:
        with file_errors(path):
            total.update(bytes.fromhex(sha256_of(path)))
    return total.hexdigest()


def lines(path: Path, tell: Tell) -> Iterator[tuple[str, bytes]]:
    """Yields the place (file and line number) and the bytes of each line that is not blank.

    A gzipped file is known by its first bytes. Where one is damaged, its rest is not read; that is a problem, as is a
    line of more than :data:`LONGEST_LINE` bytes, which is left out.

    Raises:
        DataError: The file cannot be read.
    """
    number = 0
    try:
        with _open(path) as file:
            while line := file.readline(LONGEST_LINE + 1):
                number += 1
                place = f"{path.name}:{number}"
                if len(line) > LONGEST_LINE:
                    tell(f"a line of more than {LONGEST_LINE:,} bytes (left out)", place)
                    while line and not line.endswith(b"\n"):
                        line = file.readline(LONGEST_LINE)
                elif line.strip():
                    yield place, line
    except (EOFError, gzip.BadGzipFile, zlib.error):
        tell("a damaged gzip file (its rest is not read)", f"{path.name}:{number + 1}")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error


def _open(path: Path) -> BinaryIO | gzip.GzipFile:
    with path.open("rb") as file:
        start = file.read(len(_GZIP))
    return gzip.open(path, "rb") if start == _GZIP else path.open("rb")


def text_lines(path: Path, tell: Tell) -> Iterator[tuple[str, str]]:
    """Yields the place and the text of each line that is not blank, without its line end; as :func:`lines`."""
    for place, line in lines(path, tell):
        try:
            yield place, line.decode().rstrip("\r\n")
        except UnicodeDecodeError:
            tell(_NOT_UTF8, place)


def records(path: Path, tell: Tell) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the place and the object of each line of JSON; other lines are problems, and left out.

    Raises:
        DataError: The file cannot be read.
    """
    for place, line in lines(path, tell):
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError:
            tell(_why(line), place)
            continue
        if isinstance(record, dict):
            yield place, record
        else:
            tell("a line that is not a JSON object (left out)", place)


def _why(line: bytes) -> str:
    """Returns the kind of problem of a line that is not JSON."""
    try:
        line.decode()
    except UnicodeDecodeError:
        return _NOT_UTF8
    return "a line that is not JSON (left out)"


def clean(text: object) -> str:
    """Returns a text in one line, with single blanks; empty for what is no text."""
    return " ".join(text.replace("\0", " ").split()) if isinstance(text, str) else ""
