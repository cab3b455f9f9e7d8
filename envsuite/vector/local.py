"""Runs many episodes in this process."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from types import FrameType

from envsuite.core.boundary import Overdue
from envsuite.core.errors import UsageError
from envsuite.core.tools import Action
from envsuite.vector.base import Description, EnvFactory, Vector, VectorEvent, VectorSnapshot, Wait, failure
from envsuite.vector.runner import CallRunner


class LocalVector(Vector):
    """Executes each call immediately, in this process.

    The cheapest way to run worlds that are fast and do not crash: one that crashes the interpreter ends the program. A
    call past its deadline is interrupted in the main thread, if it executes Python or waits there, and nobody else uses
    the alarm signal; elsewhere it blocks the caller. A :class:`~envsuite.vector.workers.WorkerVector` has no such
    limit. Environments whose steps take microseconds have no deadline, which would cost as much as a step.

    Args:
        factories: The environments.
        slots: Number of concurrent episodes.
        deadline: Limit in seconds of one call, the making of its environment included.
        snapshots: Take a snapshot with each answer.

    Raises:
        UsageError: An environment cannot be made, or ``deadline`` is not positive.
    """

    def __init__(
        self, factories: Sequence[EnvFactory], slots: int, deadline: float = 60.0, snapshots: bool = False
    ) -> None:
        super().__init__(factories, slots, deadline, snapshots)
        self._env: dict[int, int] = {}
        self._runner = CallRunner(self.factories, snapshots)
        self._events: list[VectorEvent] = []
        self._closed = False
        self._descriptions = [check_description(f, self._runner.describe(i)) for i, f in enumerate(self.factories)]

    def poll(self, timeout: float | None = None) -> list[VectorEvent]:
        """Returns the events of all calls since the last poll; never waits."""
        events, self._events = self._events, []
        return self._finish_calls(events)

    def waiting_for(self) -> Wait | None:
        """Returns ``None``: no call is ever outstanding."""
        return None

    def close(self) -> None:
        """Closes every environment."""
        self._closed = True
        self._runner.close()

    def _reset(self, slot: int, env: int, task_id: str | None, seed: int | None) -> None:
        self._env[slot] = env
        self._execute("reset", slot, lambda: self._runner.reset(slot, env, task_id, seed))

    def _restore(self, slot: int, env: int, snapshot: VectorSnapshot) -> None:
        self._env[slot] = env
        self._execute("restore", slot, lambda: self._runner.restore(slot, env, snapshot))

    def _step(self, slot: int, action: Action) -> None:
        self._execute("step", slot, lambda: self._runner.step(slot, action))

    def _execute(self, call: str, slot: int, execute: Callable[[], VectorEvent]) -> None:
        try:
            with nullcontext() if self._quick[self._env[slot]] else _alarm(self.deadline):
                event = execute()
        except Overdue:
            env = self._env[slot]
            with suppress(Overdue), _alarm(self.deadline):
                self._runner.drop(slot, env)
            what = f"{call} of slot {slot} ({self.factories[env].env_id})"
            event = failure(slot, f"DeadlineExceeded: {what} took more than {self.deadline:g} s")
        self._events.append(event)

    def _admit(self, slot: int, call: str) -> None:
        if self._closed:
            raise UsageError(f"{call} of a vector that is closed; make another one")
        super()._admit(slot, call)


def _ring(number: int, frame: FrameType | None) -> None:
    raise Overdue


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Raises :class:`Overdue` in a block that takes longer, where that is possible.

    Signals are handled in the main thread only; another use of the alarm is left alone.
    """
    main = threading.current_thread() is threading.main_thread()
    if sys.platform == "win32" or not main or signal.getsignal(signal.SIGALRM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGALRM, _ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def check_description(factory: EnvFactory, description: Description | str) -> Description:
    """Returns the description; raises :class:`UsageError` if it is an error message."""
    if isinstance(description, str):
        raise UsageError(f"{factory.env_id} cannot be made: {description}")
    return description
