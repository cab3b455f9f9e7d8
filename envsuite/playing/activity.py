"""The present activity of this process: its phase, and what it waits for. Its watchdog and other processes read it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from envsuite.vector import Wait

Cause = Literal["sync", "other_processes"]
"""Causes of waits whose durations are summed."""


@dataclass(frozen=True)
class ActivityState:
    """The activity of a process at one moment; in durations, because the clocks of machines differ."""

    phase: str
    phase_s: float
    """Seconds since the phase began."""
    waits_for: str = ""
    """Empty while the process computes."""
    wait_s: float = 0.0
    """Seconds since the wait began."""
    exchanges: int = 0
    """Exchanges with the other processes that have begun; all processes make the same ones in the same order."""
    exchanging: bool = False
    """Whether it waits for other processes."""

    def later(self, seconds: float) -> ActivityState:
        """Returns the activity ``seconds`` later, if nothing has changed."""
        wait_s = self.wait_s + seconds if self.waits_for else 0.0
        return replace(self, phase_s=self.phase_s + seconds, wait_s=wait_s)

    def __str__(self) -> str:
        """The phase and the wait, with their durations."""
        waits = f", waits for {self.waits_for} ({duration(self.wait_s)})" if self.waits_for else ""
        return f"{self.phase} ({duration(self.phase_s)}){waits}"


class Activity:
    """The phase of this process, and what it waits for within it.

    The main thread writes; any thread reads. Each change is one assignment, so no reader sees half of one.
    """

    def __init__(self) -> None:
        self._phase = Wait("start", time.monotonic())
        self._waits: tuple[Wait, ...] = ()
        self._outstanding: Wait | None = None
        self._exchanges = 0
        self._exchange: Wait | None = None
        self._spent: dict[Cause, float] = {"sync": 0.0, "other_processes": 0.0}
        self._causes: list[Cause] = []
        self._booked = 0.0

    def begin(self, phase: str) -> None:
        """Begins a phase, such as ``"rollout"``."""
        self._phase, self._outstanding = Wait(phase, time.monotonic()), None

    def outstanding(self, wait: Wait | None) -> None:
        """Sets the oldest unanswered call, in a phase with many calls at a time."""
        self._outstanding = wait

    @contextlib.contextmanager
    def waiting(self, what: str, cause: Cause | None = None) -> Iterator[None]:
        """Marks a block that waits for something; of nested blocks, the innermost counts.

        Args:
            what: Worded to follow "waits for".
            cause: Where the duration is summed; ``None``: nowhere.
        """
        before = self._waits
        self._waits = (*before, Wait(what, time.monotonic()))
        if cause is not None:
            self._book()
            self._causes.append(cause)
        try:
            yield
        finally:
            self._waits = before
            if cause is not None:
                self._book()
                self._causes.pop()

    @contextlib.contextmanager
    def exchanging(self) -> Iterator[None]:
        """Marks a block that all processes of the run execute together."""
        self._exchanges += 1
        with self.waiting(OTHERS, "other_processes"):
            self._exchange = self._waits[-1]
            try:
                yield
            finally:
                self._exchange = None

    def spent(self) -> dict[Cause, float]:
        """Returns the seconds of all waits that have ended, by cause; no second is in two of them."""
        return dict(self._spent)

    def _book(self) -> None:
        now = time.monotonic()
        if self._causes:
            self._spent[self._causes[-1]] += now - self._booked
        self._booked = now

    def now(self) -> ActivityState:
        """Returns the present activity."""
        now, phase, waits = time.monotonic(), self._phase, self._waits
        wait = waits[-1] if waits else self._outstanding
        if wait is None:
            return ActivityState(phase.what, now - phase.since, exchanges=self._exchanges)
        exchanging = wait is self._exchange
        return ActivityState(phase.what, now - phase.since, wait.what, now - wait.since, self._exchanges, exchanging)


OTHERS = "the other processes"
ACTIVITY = Activity()
"""The activity of this process."""


def duration(seconds: float) -> str:
    """``seconds`` for people: in seconds below two minutes, else in minutes."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
