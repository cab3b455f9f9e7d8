"""The sessions of an interpreter's server: their calls by number, and their end when they idle."""

from __future__ import annotations

import dataclasses
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from envsuite.core.errors import UsageError, WorkerLost
from envsuite.interpreter.base import Interpreter, InterpreterSession, Limits
from envsuite.interpreter.registry import open_interpreter
from envsuite.remote.protocol import HttpProblem

REMEMBERED = 10_000
"""Keys of created and names of ended sessions that are kept; older ones are unknown."""
RETRY_SECONDS = 1
KINDS_OF_LIMITS = 64
"""Different limits that the clients of a server may ask for, in all."""


class ServedSession:
    """A session with its last answer.

    Args:
        session: The session.
    """

    def __init__(self, session: InterpreterSession) -> None:
        self.session = session
        self.lock = threading.Lock()
        self.number = 0
        self.answer: dict[str, Any] = {}
        self.used = time.monotonic()
        self.calls = 0
        """Calls under way or waiting."""


class InterpreterSessions:
    """All sessions of a server.

    Args:
        name: Name of the interpreter, as for :func:`envsuite.interpreter.open_interpreter`.
        most: The most that a client may ask for.
        max_sessions: Most sessions at a time.
        idle_seconds: Seconds after which a session without calls is ended.

    Raises:
        UsageError: The interpreter does not work here.
    """

    def __init__(self, name: str, most: Limits, max_sessions: int, idle_seconds: float) -> None:
        self.interpreter: Interpreter = open_interpreter(name, most)
        self.most, self.max_sessions, self.idle_seconds = most, max_sessions, idle_seconds
        self._lock = threading.Lock()
        self._served: dict[str, ServedSession] = {}
        self._keys: OrderedDict[str, str] = OrderedDict()
        self._ended: OrderedDict[str, str] = OrderedDict()
        self._opening = 0
        self._kinds = {most}

    def __len__(self) -> int:
        """Returns the number of sessions."""
        return len(self._served)

    def create(self, key: str, limits: Mapping[str, Any]) -> str:
        """Opens a session, one per key; returns its name.

        Raises:
            HttpProblem: The limits are not allowed, or there are too many sessions.
        """
        session_limits = self._check_limits(limits)
        with self._lock:
            if (name := self._keys.get(key)) is not None:
                return name
            if len(self._served) + self._opening >= self.max_sessions:
                detail = f"the server has {self.max_sessions} sessions, as many as it takes"
                raise HttpProblem(503, "capacity", detail, wait=RETRY_SECONDS)
            if session_limits not in self._kinds and len(self._kinds) >= KINDS_OF_LIMITS:
                raise HttpProblem(422, "invalid", "clients have asked for too many different limits", field="limits")
            self._kinds.add(session_limits)
            self._opening += 1
        try:
            entry = self._open_session(session_limits)
        except BaseException:
            with self._lock:
                self._opening -= 1
            raise
        with self._lock:
            self._opening -= 1
            name = self._keys.setdefault(key, secrets.token_urlsafe(16))
            current = self._served.setdefault(name, entry)
            while len(self._keys) > REMEMBERED:
                self._keys.popitem(last=False)
        if current is not entry:  # the same request came twice at once
            entry.session.close()
        return name

    def _open_session(self, limits: Limits) -> ServedSession:
        try:
            return ServedSession(open_interpreter(self.interpreter.name, limits).open())
        except WorkerLost as error:
            raise HttpProblem(503, "capacity", str(error), error="WorkerLost", wait=RETRY_SECONDS) from error

    def _check_limits(self, limits: Mapping[str, Any]) -> Limits:
        fields = {field.name: getattr(self.most, field.name) for field in dataclasses.fields(Limits)}
        for name, value in limits.items():
            if name not in fields:
                raise HttpProblem(422, "invalid", f"limits.{name} does not exist", field=f"limits.{name}")
            kinds = int | float if name == "seconds" else int
            if not isinstance(value, kinds) or isinstance(value, bool):
                raise HttpProblem(422, "invalid", f"limits.{name} is not a number", field=f"limits.{name}")
            if value > fields[name]:
                detail = f"limits.{name} is {value}; this server allows {fields[name]}"
                raise HttpProblem(422, "invalid", detail, field=f"limits.{name}")
        try:
            return Limits(**{**fields, **limits})
        except UsageError as error:
            raise HttpProblem(422, "invalid", str(error), field="limits") from error

    def run(self, name: str, number: int, code: str) -> dict[str, Any]:
        """Runs the call of that number, unless it has been run; returns its answer.

        Raises:
            HttpProblem: There is no such session, or the number is not the next one.
        """
        entry = self._find(name)
        try:
            with entry.lock:
                if number == entry.number and entry.answer:
                    return entry.answer
                if number != entry.number + 1:
                    detail = f"call {number} after call {entry.number}"
                    raise HttpProblem(409, "out-of-order", detail, field="number")
                try:
                    result = entry.session.run(code)
                except (WorkerLost, UsageError) as error:
                    self._forget(name, str(error))
                    raise HttpProblem(410, "session-lost", str(error), error="WorkerLost") from error
                entry.number, entry.answer = number, {"number": number, **dataclasses.asdict(result)}
                return entry.answer
        finally:
            with self._lock:
                entry.calls -= 1
                entry.used = time.monotonic()

    def close(self, name: str) -> None:
        """Ends a session.

        Raises:
            HttpProblem: There is none of that name.
        """
        self._find(name)
        self._forget(name, "a client has closed it")

    def sweep(self) -> None:
        """Ends sessions that have idled for too long."""
        oldest = time.monotonic() - self.idle_seconds
        with self._lock:  # one hold: no call begins after a session is found idle and before it is taken out
            idle = [name for name, entry in self._served.items() if entry.calls == 0 and entry.used < oldest]
            entries = [self._take_out(name, f"it was idle for {self.idle_seconds:g} s") for name in idle]
        for entry in entries:
            _close(entry)

    def close_all(self) -> None:
        """Ends all sessions."""
        for name in list(self._served):
            self._forget(name, "the server ends")

    def _find(self, name: str) -> ServedSession:
        """Returns a session, and counts a call of it."""
        with self._lock:
            entry = self._served.get(name)
            if entry is None:
                if name in self._ended:
                    raise HttpProblem(410, "session-ended", f"session {name} has ended: {self._ended[name]}")
                raise HttpProblem(404, "unknown-session", f"this server has no session {name[:64]!r}")
            entry.calls += 1
            return entry

    def _forget(self, name: str, why: str) -> None:
        with self._lock:
            entry = self._take_out(name, why)
        _close(entry)

    def _take_out(self, name: str, why: str) -> ServedSession | None:
        """Takes a session out, which the caller closes; the lock is held."""
        self._ended[name] = why
        while len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)
        return self._served.pop(name, None)


def _close(entry: ServedSession | None) -> None:
    if entry is not None:
        entry.session.close()
