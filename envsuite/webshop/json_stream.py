"""Streams large JSON files: yields the elements of an array or the members of an object one by one.

The standard library's decoder reads one value in the middle of a text and returns where it ended; a value that is cut
off is decoded again with more text. This needs no package, decodes exactly as ``json.load`` does, and holds at most one
piece of the file and one entry.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from envsuite.core.errors import DataError
from envsuite.data.files import file_errors

PIECE = 1 << 22
"""Number of characters read at a time."""
LONGEST = 1 << 28
"""Limit of an entry in characters; product files have none that long."""
_BLANKS = " \t\n\r"
_OF_NUMBERS = "0123456789.eE+-"
_DECODER = json.JSONDecoder()


def elements(path: Path) -> Iterator[Any]:
    """Yields the elements of the array in the file ``path``.

    Raises:
        DataError: The file is missing, not UTF-8, truncated, or something else than a JSON array.
    """
    with _open_text(path) as file:
        text = _JsonText(path, file)
        text.expect("[", "a JSON array of products")
        if text.peek() != "]":
            yield text.value()
            while text.peek() == ",":
                text.advance()
                yield text.value()
        text.end("]")


def members(path: Path) -> Iterator[tuple[str, Any]]:
    """Yields the members of the object in the file ``path``; a name may occur twice, as in JSON.

    Raises:
        DataError: The file is missing, not UTF-8, truncated, or something else than a JSON object.
    """
    with _open_text(path) as file:
        text = _JsonText(path, file)
        text.expect("{", "a JSON object with an entry for each product")
        more = text.peek() != "}"
        while more:
            name = text.value()
            if not isinstance(name, str):
                raise text.error(f"a name was expected, not {type(name).__name__}")
            text.expect(":", "a name followed by a colon")
            yield name, text.value()
            if more := text.peek() == ",":
                text.advance()
        text.end("}")


def _open_text(path: Path) -> IO[str]:
    with file_errors(path):
        return path.open(encoding="utf-8")


class _JsonText:
    """A file, read piece by piece, with a current position."""

    def __init__(self, path: Path, file: IO[str]) -> None:
        self._path = path
        self._file = file
        self._text = ""
        self._at = 0
        self._before = 0

    def error(self, why: str) -> DataError:
        """Returns an error with the position in the file."""
        return DataError(f"{self._path}, character {self._before + self._at:,}: {why}")

    def peek(self) -> str:
        """Returns the next character that is not a blank; ``""`` at the end of the file."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in _BLANKS:
                self._at += 1
            if self._at < len(self._text) or not self._more():
                return self._text[self._at : self._at + 1]

    def advance(self) -> None:
        """Skips the character that :meth:`peek` has returned."""
        self._at += 1

    def expect(self, character: str, what: str) -> None:
        """Skips ``character``, which begins or separates ``what``."""
        if (symbol := self.peek()) != character:
            raise self.error(f"{what} was expected, found {symbol!r}" if symbol else f"the file ends before {what}")
        self.advance()

    def end(self, closing: str) -> None:
        """Skips the last character of the file."""
        self.expect(closing, f"a comma or {closing!r}")
        if extra := self.peek():
            raise self.error(f"there is more after the end, beginning with {extra!r}")

    def value(self) -> Any:
        """Returns the next value."""
        self.peek()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                problem = error.msg
            except RecursionError as error:
                raise self.error("the JSON is nested too deeply") from error
            else:
                # A number at the end of a piece may continue in the next; other values have a definite end.
                cut = isinstance(value, int | float) and not self._text[end : end + 8].strip(_OF_NUMBERS)
                if not cut or end + 8 < len(self._text) or not self._more():
                    self._at = end
                    return value
                continue
            if len(self._text) - self._at > LONGEST:
                raise self.error(f"an entry of more than {LONGEST:,} characters, or not JSON: {problem}")
            if not self._more():
                raise self.error(f"truncated, or not JSON: {problem}")

    def _more(self) -> bool:
        """Reads a further piece, or doubles an unfinished entry; returns ``False`` at the end of the file."""
        pending = self._text[self._at :]
        try:
            piece = self._file.read(max(PIECE, len(pending)))
        except UnicodeDecodeError as error:
            raise self.error(f"not UTF-8 text ({error.reason})") from error
        self._before += self._at
        self._at = 0
        self._text = pending + piece
        return bool(piece)
