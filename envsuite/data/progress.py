"""What a person sees of what takes long: a download, a build."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, TextIO


class Progress(Protocol):
    """Is told how something goes that is counted in bytes, products or the like."""

    def start(self, name: str, total: int | None, offset: int) -> None:
        """``name`` begins, or goes on after ``offset`` of ``total``."""

    def advance(self, size: int) -> None:
        """``size`` more have come, or have been done."""

    def note(self, text: str) -> None:
        """Something happened that explains a delay."""

    def done(self, name: str, size: int) -> None:
        """``name`` is there, with its whole ``size``."""


class Silent:
    """Says nothing."""

    def start(self, name: str, total: int | None, offset: int) -> None:
        """Nothing."""

    def advance(self, size: int) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""

    def done(self, name: str, size: int) -> None:
        """Nothing."""


class Shown:
    """On a terminal one line that moves (size, rate, time left), elsewhere one line a name; notes are lines, too.

    Args:
        out: Where it is written.
        clock: Seconds.
        unit: How a size is written; as bytes by default.
    """

    def __init__(
        self, out: TextIO, clock: Callable[[], float] = time.monotonic, unit: Callable[[int], str] | None = None
    ) -> None:
        self._out = out
        self._clock = clock
        self._sized = unit if unit is not None else sized
        self._live = out.isatty()
        self._name = ""
        self._total: int | None = None
        self._start = self._now = 0
        self._since = self._shown = 0.0
        self._width = 0

    def start(self, name: str, total: int | None, offset: int) -> None:
        """Begin the line."""
        self._name, self._total = name, total
        self._start = self._now = offset
        self._since = self._clock()
        self._shown = 0.0

    def advance(self, size: int) -> None:
        """Move the line, five times a second at most."""
        self._now += size
        now = self._clock()
        if self._live and now - self._shown >= 0.2:
            self._shown = now
            self._line(self._moving(now - self._since))

    def _moving(self, seconds: float) -> str:
        rate = (self._now - self._start) / seconds if seconds > 0 else 0.0
        of = "" if self._total is None else f" of {self._sized(self._total)}"
        parts = [self._name, f"{self._sized(self._now)}{of}"]
        if seconds > 1 and rate > 0:
            parts.append(f"{self._sized(int(rate))}/s")
            if self._total is not None:
                parts.append(f"{_time(max(0, self._total - self._now) / rate)} left")
        return "  ".join(parts)

    def note(self, text: str) -> None:
        """Write a line, above the moving one."""
        self._line("")
        self._out.write(f"{text}\n")
        self._out.flush()

    def done(self, name: str, size: int) -> None:
        """Write the line that stays."""
        self.note(f"{name}  {self._sized(size)}")

    def _line(self, text: str) -> None:
        if self._live:
            self._out.write(f"\r{text:{self._width}}" + ("" if text else "\r"))
            self._out.flush()
            self._width = len(text)


def sized(size: int) -> str:
    """Bytes for people, e.g. ``"68.7 MiB"``."""
    if size < 1024:
        return f"{size} B"
    amount = float(size)
    for unit in ("KiB", "MiB", "GiB"):
        amount /= 1024
        if amount < 1024 or unit == "GiB":
            break
    return f"{amount:.1f} {unit}"


def _time(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes}:{rest:02}"
