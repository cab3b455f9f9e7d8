"""Shows the progress of long operations: downloads, builds."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol, TextIO, TypeVar

from envsuite.core.escaping import escape_lines, raw

T = TypeVar("T")


class ProgressReceiver(Protocol):
    """Receives the progress of an operation counted in bytes, products or the like."""

    def start(self, name: str, total: int | None, offset: int) -> None:
        """Called when ``name`` begins, or resumes after ``offset`` of ``total``."""

    def advance(self, size: int) -> None:
        """Called when ``size`` more units are done."""

    def note(self, text: str) -> None:
        """Called with an explanation of a delay."""

    def finish(self, name: str, size: int) -> None:
        """Called when ``name`` is complete, with its total ``size``."""


class SilentProgress:
    """Ignores all progress."""

    def start(self, name: str, total: int | None, offset: int) -> None:
        """Does nothing."""

    def advance(self, size: int) -> None:
        """Does nothing."""

    def note(self, text: str) -> None:
        """Does nothing."""

    def finish(self, name: str, size: int) -> None:
        """Does nothing."""


class TerminalLine:
    """A line at the end of a terminal that is written over; where there is no terminal it is not written.

    Args:
        out: Output stream.
    """

    def __init__(self, out: TextIO) -> None:
        self._out = raw(out)
        self.live = out.isatty()
        """Whether there is a terminal."""
        self._width = 0

    def show(self, text: str) -> None:
        """Writes the line anew, cut to the width of the terminal."""
        if self.live:
            text = escape_lines(text)[: columns()]
            self._out.write(f"\r{text:{self._width}}")
            self._out.flush()
            self._width = len(text)

    def note(self, text: str) -> None:
        """Writes a whole line in its place."""
        if self.live:
            self._out.write(f"\r{'':{self._width}}\r")
            self._width = 0
        self._out.write(f"{escape_lines(text)}\n")
        self._out.flush()


class DownloadDisplay:
    """Writes an updating line on a terminal (size, rate, time left), elsewhere one line for each name and note.

    Args:
        out: Output stream.
        clock: Returns the time in seconds.
        unit: Formats a size; by default as bytes.
        delay: Seconds until the line is shown.
    """

    def __init__(
        self,
        out: TextIO,
        clock: Callable[[], float] = time.monotonic,
        unit: Callable[[int], str] | None = None,
        delay: float = 0.0,
    ) -> None:
        self._line = TerminalLine(out)
        self._clock = clock
        self._format = unit if unit is not None else format_size
        self._delay = delay
        self._name = ""
        self._total: int | None = None
        self._start = self._now = 0
        self._since = self._shown = 0.0

    def start(self, name: str, total: int | None, offset: int) -> None:
        """Begins the line."""
        self._name, self._total = name, total
        self._start = self._now = offset
        self._since = self._clock()
        self._shown = 0.0

    def advance(self, size: int) -> None:
        """Updates the line, at most five times a second."""
        self._now += size
        now = self._clock()
        if now - self._shown >= 0.2 and now - self._since >= self._delay:
            self._shown = now
            self._line.show(self._moving(now - self._since))

    def _moving(self, seconds: float) -> str:
        rate = (self._now - self._start) / seconds if seconds > 0 else 0.0
        of = "" if self._total is None else f" of {self._format(self._total)}"
        parts = [self._name, f"{self._format(self._now)}{of}"]
        if seconds > 1 and rate > 0:
            parts.append(f"{self._format(int(rate))}/s")
            if self._total is not None:
                parts.append(f"{format_duration(max(0, self._total - self._now) / rate)} left")
        return "  ".join(parts)

    def note(self, text: str) -> None:
        """Writes a line above the one that is updated."""
        self._line.note(text)

    def finish(self, name: str, size: int) -> None:
        """Writes the final line."""
        if not self._delay or self._clock() - self._since >= self._delay:
            self.note(f"{name}  {self._format(size)}")


@contextmanager
def resumable() -> Iterator[None]:
    """Lets Ctrl-C in the block say that the same command resumes the work."""
    try:
        yield
    except KeyboardInterrupt:
        sys.stderr.write("\n")  # after a line that moved
        raise KeyboardInterrupt("the same command resumes where this one stopped") from None


def track(pieces: Iterable[T], name: str, total: int | None, display: ProgressReceiver | None = None) -> Iterator[T]:
    """Passes ``pieces`` on, and shows their number.

    Args:
        pieces: The results of the work, one after the other.
        name: Name of the work.
        total: Number of pieces; ``None`` if it is not known.
        display: Shows it; by default standard error, where it is a terminal and the work takes over a second.
    """
    if display is None:
        display = (
            DownloadDisplay(sys.stderr, unit="{:,}".format, delay=1.0) if sys.stderr.isatty() else SilentProgress()
        )
    count = 0
    display.start(name, total, 0)
    for piece in pieces:
        yield piece
        count += 1
        display.advance(1)
    display.finish(name, count)


def columns() -> int:
    """Returns the characters that a line of the terminal may have."""
    return max(20, shutil.get_terminal_size().columns - 1)


def format_size(size: int) -> str:
    """Formats a number of bytes for people, e.g. ``"68.7 MiB"``."""
    if size < 1024:
        return f"{size} B"
    amount = float(size)
    for unit in ("KiB", "MiB", "GiB"):
        amount /= 1024
        if amount < 1024 or unit == "GiB":
            break
    return f"{amount:.1f} {unit}"


def format_duration(seconds: float) -> str:
    """Formats a duration for people."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02} min"
