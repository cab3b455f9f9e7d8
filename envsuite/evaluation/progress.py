"""Shows how an evaluation goes, and how long it may take."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TextIO

from envsuite.data.progress import TerminalLine, columns, format_duration
from envsuite.evaluation.results import EpisodeResult

_LIVE_SECONDS = 0.2
_SPARSE_SECONDS = 60.0
_SAME_SECONDS = 30.0
_LABEL = 12  # least characters of the label
_WAITS = 21  # characters of what is waited for that are worth more than the label's
_PATIENCE = 10.0  # seconds without an episode that ends, after which is said what is waited for


class EvaluationDisplay:
    """One line that is updated on a terminal; elsewhere a line at the beginning, every minute, and at the end.

    Args:
        out: Where to write.
        clock: Returns the time in seconds.
    """

    def __init__(self, out: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._line = TerminalLine(out)
        self._clock = clock
        self._every = _LIVE_SECONDS if self._line.live else _SPARSE_SECONDS
        self._label = ""
        self._total = self._there = self._played = self._solved = self._broken = 0
        self._since = self._shown = self._last = 0.0

    def begin(self, label: str, total: int, there: int) -> None:
        """Begins an evaluation.

        Args:
            label: Environment, split and policy.
            total: Number of its episodes.
            there: Number of those that are there already.
        """
        self._label, self._total, self._there = label, total, there
        self._played = self._solved = self._broken = 0
        self._since = self._last = self._clock()
        self._shown = 0.0 if self._line.live else self._since
        if not self._line.live:
            self._line.note(self._text(None))

    def add_result(self, result: EpisodeResult) -> None:
        """Counts an episode."""
        self._played += 1
        self._solved += result.success
        self._broken += result.broken is not None
        self._last = self._clock()

    def waits(self, what: str | None) -> None:
        """Shows the line, if it is time to."""
        now = self._clock()
        if now - self._shown >= self._every:
            self._shown = now
            self._write(self._text(what if now - self._last > _PATIENCE else None))

    def end(self) -> None:
        """Leaves the last line."""
        self._line.note(self._text(None))

    def note(self, text: str) -> None:
        """Writes a line of its own."""
        self._line.note(text)

    def _text(self, what: str | None) -> str:
        """Returns the line; on a terminal that is too narrow the label is shortened, not what changes."""
        counts = f": {', '.join(self._parts())}"
        waits = "" if what is None else f", waits for {what}"
        room = columns() - len(counts) - min(len(waits), _WAITS) if self._line.live else len(self._label)
        label = self._label if len(self._label) <= room else self._label[: max(_LABEL, room) - 1].rstrip(" ,") + "…"
        return label + counts + waits

    def _parts(self) -> list[str]:
        parts = [f"{self._there + self._played} of {self._total} episodes"]
        if sound := self._played - self._broken:
            parts.append(f"{100 * self._solved / sound:.1f} % of {sound} solved")
        if self._broken:
            parts.append(f"{self._broken} broken")
        remainder = self._total - self._there - self._played
        if self._played and remainder:
            parts.append(f"about {format_duration(remainder * (self._clock() - self._since) / self._played)} left")
        return parts

    def _write(self, text: str) -> None:
        if self._line.live:
            self._line.show(text)
        else:
            self._line.note(text)


class Notes(logging.Handler):
    """Gives warnings to the display, which writes them above its line.

    Many requests at a time fail alike, again and again: a warning that is the previous one up to its last semicolon is
    left out for half a minute.

    Args:
        display: The display.
        clock: Returns the time in seconds.
    """

    def __init__(self, display: EvaluationDisplay, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(logging.WARNING)
        self._display = display
        self._clock = clock
        self._last = ("", 0.0)

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a record, if it is not the previous one again."""
        text, now = record.getMessage(), self._clock()
        what = text.rpartition("; ")[0] or text
        if what == self._last[0] and now - self._last[1] < _SAME_SECONDS:
            return
        self._last = what, now
        self._display.note(f"{record.levelname.lower()}: {text}")
