"""Answers to calls of a session that wait for its guard: for memory and threads that no limit of the kernel bounds."""

from __future__ import annotations

import contextlib
import errno
import os

from envsuite.interpreter.inside import kernel
from envsuite.interpreter.inside.settings import MemoryMeter
from envsuite.interpreter.inside.syscalls import machine

_SHARE = 15 / 16
"""Share of the memory up to which is granted: with all of it, the next look would end the session."""


class Grants:
    """Grants to the processes of a session.

    Shared memory without a file stays in the kernel while a page of it is mapped anywhere, and in no process's figures
    where the others are not. When it is given back cannot be seen, so all that was ever granted counts.

    Args:
        listener: Descriptor from :func:`envsuite.interpreter.inside.kernel.filter_calls`.
        memory: Most bytes of shared memory and of what the meter counts, together.
        meter: Counts the rest of the session's memory.
        process: The process whose threads are counted, with no others; ``None`` where the kernel counts them.
        threads: Most threads of it.
    """

    def __init__(
        self, listener: int, memory: int, meter: MemoryMeter, process: int | None = None, threads: int = 0
    ) -> None:
        self.listener, self._memory, self._meter = listener, memory, meter
        self._process, self._threads = process, threads
        self.shared = 0

    def answer(self) -> None:
        """Answers the call that waits, if it still does."""
        with contextlib.suppress(OSError):
            call, number, arguments = kernel.waiting_call(self.listener)
            if number == machine().numbers["clone"]:
                refusal = 0 if self._may_start_thread() else errno.EAGAIN
            else:  # the second argument of mmap and of shmget is the size
                left = int(self._memory * _SHARE) - self.shared - arguments[1]
                refusal = errno.ENOMEM if left < 0 or self._meter.exceeds(left) else 0
                self.shared += 0 if refusal else arguments[1]
            kernel.answer_call(self.listener, call, refusal)

    def _may_start_thread(self) -> bool:
        try:
            return len(os.listdir(f"/proc/{self._process}/task")) < self._threads
        except OSError:
            return False
