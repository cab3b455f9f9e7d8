"""The escaper of text that models, environments and agents wrote, for terminals, logs and tables.

A command escapes all that it writes to standard output and error (:func:`streams`). What draws on a terminal itself
writes to the stream behind (:func:`raw`), and escapes the texts in its drawing.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

_HIDDEN = re.compile(
    "\r(?!\n)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]"
)
"""Controls of terminals, marks of direction, further ends of lines, halves of surrogate pairs."""


def escape_controls(text: str) -> str:
    """Returns a text in which a terminal obeys nothing but ends of lines and tabs."""
    return _HIDDEN.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def escape_lines(text: str) -> str:
    """Returns an escaped text whose further lines are indented, so that none looks like the first line of another."""
    return escape_controls(text).replace("\n", "\n  ")


class Stream:
    """A text stream that escapes what is written to it.

    Args:
        raw: The stream behind.
    """

    def __init__(self, raw: TextIO) -> None:
        self.raw = raw

    def write(self, text: str) -> int:
        """Writes a text, escaped; returns its length."""
        self.raw.write(escape_controls(text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Writes texts, escaped."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        """Returns an attribute of the stream behind."""
        return getattr(self.raw, name)


def raw(stream: TextIO) -> TextIO:
    """Returns the stream behind one that escapes, for drawings of our own."""
    return stream.raw if isinstance(stream, Stream) else stream


@contextmanager
def streams() -> Iterator[None]:
    """Escapes what is written to standard output and error; after an error, its traceback too."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast(TextIO, Stream(raw(stream))) for stream in before)
    yield
    sys.stdout, sys.stderr = before


class LogFormatter(logging.Formatter):
    """Formats records of which each begins a line, and no text in them does."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the record."""
        return escape_lines(super().format(record))


def log_to_stderr(level: int, form: str) -> None:
    """Writes records from ``level`` on to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(LogFormatter(form))
    logging.basicConfig(level=level, handlers=[handler])


def cell(value: object) -> object:
    """Returns a cell of a CSV file: of a text that a spreadsheet would compute, with an apostrophe before it."""
    if not isinstance(value, str):
        return value
    formula = value.lstrip()[:1] in ("=", "+", "-", "@") or value[:1] in ("\t", "\r")
    return f"'{escape_controls(value)}" if formula else escape_controls(value)
