"""The contract of interpreters: :class:`Interpreter`, :class:`InterpreterSession`, :class:`CodeResult`."""

from __future__ import annotations

import threading
import weakref
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, Self, get_args

from envsuite.core.errors import UsageError

Status = Literal["ok", "error", "timeout", "memory", "died"]
"""How a call ended: it ran through; raised; was stopped by the clock; had no memory left; lost its process."""

STATUSES: tuple[str, ...] = get_args(Status)
SOURCE = 2**20
"""Most characters of a call's code."""


@dataclass(frozen=True)
class Limits:
    """Bounds of what the code of a session may use.

    Raises:
        UsageError: A bound is out of range.
    """

    seconds: float = 5.0
    """Wall-clock time of a call."""
    memory: int = 512 * 2**20
    """Bytes of memory of a session."""
    processes: int = 8
    """Processes and threads of a session."""
    disk: int = 16 * 2**20
    """Bytes that a session may keep in files."""
    output: int = 8192
    """Characters kept of stdout, and of stderr, of a call."""

    def __post_init__(self) -> None:
        for name, value, least, most in (
            ("seconds", self.seconds, 0.01, 3600),
            ("memory", self.memory, 2**24, 2**40),
            ("processes", self.processes, 1, 1024),
            ("disk", self.disk, 2**16, 2**40),
            ("output", self.output, 256, 2**22),
        ):
            if not least <= value <= most:
                raise UsageError(f"the limit {name} of an interpreter is {value}; it must be from {least} to {most}")


@dataclass(frozen=True)
class CodeResult:
    """Output of a call of :meth:`InterpreterSession.run`, and how the call ended."""

    stdout: str
    """At most ``Limits.output`` characters; what was left out is said at the place of the cut."""
    stderr: str
    """The traceback, or the message of a limit; cut as ``stdout``."""
    status: Status = "ok"


class InterpreterSession(ABC):
    """One interpreter state: what a call defines, later calls see. A context manager that closes it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._number = 0
        self._closed = False

    def run(self, code: str) -> CodeResult:
        """Runs ``code`` as a notebook runs a cell: the value of a last expression is printed.

        Whatever the code does ends as a :class:`CodeResult`. After ``timeout``, ``memory`` and ``died`` the state is
        lost, which ``stderr`` says, and the next call begins with a fresh one.

        Raises:
            UsageError: The session is closed.
            WorkerLost: The sandbox itself failed, not the code.
        """
        if (refusal := unfit(code)) is not None:
            return refusal
        with self._lock:
            if self._closed:
                raise UsageError("the session is closed; open another one")
            return self._run(code)

    @abstractmethod
    def _run(self, code: str) -> CodeResult:
        """Runs code that fits, in a session that is open; one call at a time."""

    @abstractmethod
    def close(self) -> None:
        """Ends the session's processes and removes its files; may be called twice."""

    def __enter__(self) -> Self:
        """Returns the session."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes the session."""
        self.close()


class Interpreter(ABC):
    """Opens sessions that share warm processes, never state. Any thread may open, run and close."""

    name: str
    """The name by which it is chosen."""
    isolation: tuple[str, ...]
    """Separation of sessions from the machine and each other, in words, e.g. ``"no network"``."""

    def __init__(self) -> None:
        self._sessions: weakref.WeakSet[InterpreterSession] = weakref.WeakSet()
        self._closed = False

    def open(self) -> InterpreterSession:
        """Returns a new session, in the same state as every other new one (hash seed, time zone, folder).

        Raises:
            UsageError: The interpreter is closed, or its limits are not allowed.
            WorkerLost: No session can be opened now.
        """
        if self._closed:
            raise UsageError("the interpreter is closed")
        session = self._open_session()
        self._sessions.add(session)
        return session

    @abstractmethod
    def _open_session(self) -> InterpreterSession:
        """Returns a new session."""

    def forget(self, session: InterpreterSession) -> None:
        """Notes that a session is closed."""
        self._sessions.discard(session)

    def close(self) -> None:
        """Ends all sessions; may be called twice."""
        self._closed = True
        for session in list(self._sessions):
            session.close()


def unfit(code: str) -> CodeResult | None:
    """Returns the result of code that no interpreter takes: too long, or with half surrogates; ``None`` for other."""
    if len(code) > SOURCE:
        return CodeResult("", f"the code has {len(code):,} characters; at most {SOURCE:,} are taken", "error")
    try:
        code.encode()
    except UnicodeEncodeError as error:
        return CodeResult("", f"the code is not text: character {error.start} is half a surrogate pair", "error")
    return None
