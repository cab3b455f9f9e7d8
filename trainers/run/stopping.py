"""Stopping a run on Ctrl-C or SIGTERM without losing it."""

from __future__ import annotations

import contextlib
import logging
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Self, TypeVar

from accelerate import Accelerator

from envsuite.exits import PAUSED
from envsuite.playing.activity import ACTIVITY
from envsuite.playing.engine import EngineFailed
from envsuite.playing.manager import Watcher
from envsuite.vector import Wait
from trainers.processes.distributed import all_gather_object
from trainers.processes.memory import ran_out
from trainers.run.progress import RunProgress
from trainers.run.shortage import OutOfMemory, describe_shortage

T = TypeVar("T")
_LOG = logging.getLogger(__name__)
_SHOWN_SECONDS = 2.0
"""How long a wait lasts before the display shows it."""


class Interrupted(Exception):
    """A signal asked the run to stop; a checkpoint has been written."""

    def __init__(self, signal_number: int, folder: Path) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name}; go on with --resume (checkpoint {folder})")
        self.exit_code = 128 + signal_number


class Paused(Interrupted):
    """An alarm paused the run; a checkpoint has been written."""

    def __init__(self, message: str) -> None:
        Exception.__init__(self, message)
        self.exit_code = PAUSED


class Abandoned(Exception):
    """Raised to abandon the current phase of a run that is to stop; partial results are discarded."""


class Stopping:
    """Stops all processes of a run at the same point, whichever of them a signal reached.

    It remembers the first SIGINT or SIGTERM until the next safe point; a second SIGINT interrupts at once. A context
    manager; it restores the earlier handlers at its end.

    Args:
        accelerator: The run's accelerator.
        progress: Display.
    """

    def __init__(self, accelerator: Accelerator, progress: RunProgress) -> None:
        self.accelerator = accelerator
        self.progress = progress
        self.signal: int | None = None
        """Number of the signal that was received; ``None`` before."""
        self._interrupts = 0
        self._failure: tuple[type[EngineFailed], str] | None = None
        """Why the engine of this process failed; ``None`` while it has not."""
        self._lacking: str | None = None
        """In what memory of this process ran out; ``None`` while it has not."""

    def __enter__(self) -> Self:
        """Installs the signal handlers."""
        self._old = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        """Restores the earlier handlers."""
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def abandon(self) -> None:
        """Raises if a signal was received; called where work can be abandoned at no cost.

        Raises:
            Abandoned: A signal was received.
        """
        if self.signal is not None:
            raise Abandoned

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._interrupts += number == signal.SIGINT
        if self._interrupts > 1:
            raise KeyboardInterrupt
        if self.signal is None:
            self.signal = number
            _LOG.warning("%s: stopping at the next safe point", signal.Signals(number).name)

    @property
    def number(self) -> int:
        """Number of the signal that stopped the run, in any process; every process must read this."""
        return next(number for number in all_gather_object(self.accelerator, self.signal) if number is not None)

    def phase(self, name: str, total: int, part: Callable[[Watcher], T]) -> T:
        """Runs a part of the run that a signal can abandon, and returns its result; every process must call this.

        Args:
            name: Stage shown on the display.
            total: Number of episodes that this process plays in it.
            part: The work; it calls its argument regularly to report progress.

        Raises:
            Abandoned: A signal reached some process; raised in all of them.
            EngineFailed: The engine of some process failed; raised in all of them.
            OutOfMemory: Memory of some process ran out; raised in all of them.
        """
        self.progress.stage(name, total)
        result: list[T] = []
        with contextlib.suppress(Abandoned):
            self.abandon()
            try:
                result.append(part(self._watcher()))
            except EngineFailed as error:
                self._failure = type(error), str(error)
            except (RuntimeError, MemoryError) as error:
                if not ran_out(error):
                    raise
                self._lacking = describe_shortage(name, error)
            finally:
                ACTIVITY.outstanding(None)
        self.point()
        return result[0]

    def point(self) -> None:
        """Marks a point where the run can stop; every process must call this.

        Raises:
            Abandoned: A signal reached some process; raised in all of them.
            EngineFailed: The engine of some process failed in the last phase; raised in all of them.
            OutOfMemory: Memory of some process ran out in the last phase; raised in all of them.
        """
        reports = all_gather_object(self.accelerator, (self.signal is not None, self._failure, self._lacking))
        signals, failures, lacking = zip(*reports, strict=True)
        if failure := next((failure for failure in failures if failure is not None), None):
            raise failure[0](failure[1])
        if lack := next((lack for lack in lacking if lack is not None), None):
            raise OutOfMemory(lack)
        if any(signals):
            raise Abandoned

    def _watcher(self) -> Watcher:
        last_count = 0

        def watch(done: int, wait: Wait | None) -> None:
            nonlocal last_count
            self.abandon()
            ACTIVITY.outstanding(wait)
            long = wait is not None and time.monotonic() - wait.since >= _SHOWN_SECONDS
            self.progress.advance(done - last_count, str(wait) if long else "")
            last_count = done

        return watch
