"""Interpreters on a server: the client of ``envsuite serve interpreter``."""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
from typing import Any

from envsuite.core.errors import UsageError, WorkerLost
from envsuite.interpreter.base import STATUSES, CodeResult, Interpreter, InterpreterSession, Limits
from envsuite.remote.transport import RequestRefused, ServerUnreachable, server

LOST = ("unknown-session", "session-ended", "session-lost")
"""Problems after which the server has the session no more."""
CLOSE_SECONDS = 2.0
SLACK_SECONDS = 90.0
"""Seconds beyond those of a call that an answer may take."""


class ServerInterpreter(Interpreter):
    """Sessions on a server.

    Args:
        url: Its address.
        limits: What each may use, within what the server allows.

    Raises:
        UsageError: Nothing at the address is an interpreter.
        WorkerLost: Nothing answers there.
    """

    def __init__(self, url: str, limits: Limits) -> None:
        super().__init__()
        self.name, self.limits = url, limits
        isolation = self.ask("GET", "/healthz", None).get("isolation")
        if not isinstance(isolation, list):
            raise UsageError(f"{url} is no interpreter; start one with: envsuite serve interpreter")
        self.isolation = (f"on the server {url}", *map(str, isolation))

    def ask(self, method: str, path: str, body: object) -> dict[str, Any]:
        """Sends a request, again where no answer came; returns the answer.

        Raises:
            RequestRefused: The server refuses it.
            WorkerLost: The server does not answer.
        """
        try:
            answer = server(self.name).ask(method, path, body, seconds=self.limits.seconds + SLACK_SECONDS)
        except ServerUnreachable as error:
            raise WorkerLost(f"{error} For code, `envsuite serve interpreter` must be.") from error
        return answer if isinstance(answer, dict) else {}

    def _open_session(self) -> InterpreterSession:
        return ServerSession(self)


class ServerSession(InterpreterSession):
    """A session on a server.

    Calls are numbered: one that is sent again, because its answer was lost, is not run again.

    Args:
        interpreter: Where it was opened.
    """

    def __init__(self, interpreter: ServerInterpreter) -> None:
        super().__init__()
        self._interpreter = interpreter
        self._name: str | None = self._begin()

    def _run(self, code: str) -> CodeResult:
        if self._name is None:
            self._name = self._begin()
        self._number += 1
        try:
            path = f"/v1/sessions/{self._name}/run"
            answer = self._interpreter.ask("POST", path, {"number": self._number, "code": code})
        except RequestRefused as problem:
            self._name = None
            if problem.kind in LOST:
                raise WorkerLost(f"{self._interpreter.name}: {problem.detail}") from None
            raise problem.local_error() from None
        except WorkerLost:
            self._name = None
            raise
        output, stdout, stderr = self._interpreter.limits.output, answer.get("stdout"), answer.get("stderr")
        status = answer.get("status")
        if not isinstance(stdout, str) or not isinstance(stderr, str) or status not in STATUSES:
            raise WorkerLost(f"{self._interpreter.name}: an answer that is no result")
        return CodeResult(stdout[:output], stderr[:output], status)

    def _begin(self) -> str:
        self._number = 0
        body = {"key": secrets.token_hex(16), "limits": dataclasses.asdict(self._interpreter.limits)}
        try:
            return str(self._interpreter.ask("POST", "/v1/sessions", body)["session"])
        except RequestRefused as problem:
            raise problem.local_error() from None

    def close(self) -> None:
        """Ends the session if the server answers now; if not, the server ends it when it has idled."""
        with self._lock:
            self._closed = True
            name, self._name = self._name, None
        if name is not None:
            with contextlib.suppress(RequestRefused, ServerUnreachable):
                server(self._interpreter.name).ask("DELETE", f"/v1/sessions/{name}", seconds=CLOSE_SECONDS)
        self._interpreter.forget(self)
