"""Requests to a server, with kept connections, a deadline for every wait, and retries.

Every call of the protocol can be repeated: calls that change a session have a number, and sessions are created under a
key. So a failed request is always retried, after growing random pauses.
"""

from __future__ import annotations

import contextlib
import http.client
import logging
import os
import random
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import orjson

from envsuite import __version__
from envsuite.core.addresses import address
from envsuite.core.errors import UsageError, WorkerLost
from envsuite.core.http import MOST_BYTES, retry_after, too_long
from envsuite.remote.protocol import ERRORS, JSON_TYPE, TOKEN_VARIABLE
from envsuite.remote.tokens import token_needed

log = logging.getLogger("envsuite.remote")
CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 90.0
"""Seconds that one attempt waits for its answer; longer than a server's deadline for a call."""
UNREACHABLE_SECONDS = 30.0
"""Seconds for which a silent server is retried, e.g. while it restarts; several servers share them."""
FORGET_SECONDS = 60.0
"""After so many seconds without a request, a silent server gets these seconds again."""
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0
JUST_NOW = 0.2
"""A server that has used up these seconds and was tried less than ``JUST_NOW`` seconds ago is not tried again: where a
machine is gone, each try takes as long as a connection may."""
BUSY = (429, 503)
"""Statuses after which a server is retried."""
GONE = (502, 504)
"""Statuses by which a proxy says that its server is gone."""
IDLE_CONNECTIONS = 64
"""Maximum number of idle connections kept to one server."""


class ServerUnreachable(WorkerLost):
    """Raised when a server does not answer."""


class _Deadline(socket.socket):
    """A socket whose reads and writes end at ``until`` (``time.monotonic``); a timeout alone allows a trickle."""

    until = 0.0

    def recv_into(self, *args: Any) -> int:
        """As the socket's own."""
        self._arm()
        return super().recv_into(*args)

    def sendall(self, *args: Any) -> None:
        """As the socket's own."""
        self._arm()
        super().sendall(*args)

    def _arm(self) -> None:
        seconds = self.until - time.monotonic()
        if seconds <= 0:
            raise TimeoutError("no answer in time")
        self.settimeout(seconds)


class _TlsDeadline(_Deadline, ssl.SSLSocket):
    """The same over TLS."""


class RemoteServer:
    """Connections of this process to one server; may be used from several threads, and after a fork."""

    def __init__(self, url: str) -> None:
        parts = address(url, "url", "http://127.0.0.1:8080", f"clients send the token in ${TOKEN_VARIABLE}")
        self.url = url.rstrip("/")
        self._address = (str(parts.hostname), parts.port or (443 if parts.scheme == "https" else 80))
        self._prefix = parts.path.rstrip("/")
        self._tls = _tls_context() if parts.scheme == "https" else None
        head = f"Host: {parts.netloc}\r\nUser-Agent: envsuite/{__version__}\r\nAccept: {JSON_TYPE}\r\n"
        if token := os.environ.get(TOKEN_VARIABLE):
            if not token.isascii() or not token.isprintable():
                raise UsageError(f"${TOKEN_VARIABLE} must consist of printable ASCII characters")
            head += f"Authorization: Bearer {token}\r\n"
        self._head = head
        self._silent: tuple[float, float] | None = None
        """When the first try failed since it was heard of, and when the last did."""
        self._forget()
        _SERVERS.add(self)

    def ask(self, method: str, path: str, body: object = None, seconds: float | None = None, servers: int = 1) -> Any:
        """Sends a request; returns the parsed answer, ``None`` without a body.

        Args:
            method: ``"GET"``, ``"POST"`` or ``"DELETE"``.
            path: Path below the server's address, e.g. ``"/v1/batch"``.
            body: The body, sent as JSON.
            seconds: Limit of the whole request; by default a server's limit, with the wait for the server itself.
            servers: Number of servers that could answer; they share :data:`UNREACHABLE_SECONDS`.

        Raises:
            ServerUnreachable: There was no answer in time.
            RequestRefused: The answer is a problem.
        """
        content = None if body is None else orjson.dumps(body)
        status, answer = self._persist(method, path, content, seconds, UNREACHABLE_SECONDS / servers)
        if status == 204 or (status == 200 and not answer):
            return None
        try:
            document = orjson.loads(answer)
        except orjson.JSONDecodeError:
            document = None
        if status == 200 and document is not None:
            return document
        raise RequestRefused(self.url, status, document if isinstance(document, dict) else {})

    def _persist(
        self, method: str, path: str, body: bytes | None, seconds: float | None, patience: float
    ) -> tuple[int, bytes]:
        began = time.monotonic()
        end = began + (2 * ANSWER_SECONDS if seconds is None else seconds)
        first, last = self._silent or (began, began)
        if last - first >= patience and began - last < JUST_NOW:
            raise self._unreachable("tried a moment ago", last - first)
        pause, tries = FIRST_PAUSE, 0
        while True:
            tries += 1
            try_start = time.monotonic()
            wait, fresh = 0.0, True
            reply: tuple[int, bytes] | None = None
            try:
                with self._connection(min(try_start + ANSWER_SECONDS, end)) as (connection, fresh):
                    status, headers, answer = self._exchange(connection, method, path, body)
                is_alive = status not in GONE
                if is_alive and status not in BUSY:
                    self._silent = None
                    return status, answer
                why, reply = f"HTTP {status}", (status, answer)
                wait = retry_after(headers)
            except (OSError, http.client.HTTPException) as error:
                why = str(error) or type(error).__name__
                is_alive = isinstance(error, TimeoutError)  # it has taken the request, at least
                if not fresh:  # the connection was kept for too long, and the server has closed it meanwhile
                    continue
            now = time.monotonic()
            if now >= end or self._silence(try_start, is_alive) >= patience:
                if reply is not None:
                    return reply
                raise self._unreachable(f"{why}; {tries} tries", now - (self._silent or (began, began))[0])
            if tries == 3:
                log.warning("%s: %s; trying again", self.url, why)
            time.sleep(min(max(wait, random.uniform(pause / 2, pause)), max(0.0, end - now)))
            pause = min(2 * pause, LONGEST_PAUSE)

    def _silence(self, start: float, is_alive: bool) -> float:
        """Records a failed try that began at ``start``; returns the seconds of silence so far."""
        if is_alive:
            self._silent = None
            return 0.0
        first, last = self._silent or (start, start)
        if start - last > FORGET_SECONDS:
            first = start
        now = time.monotonic()
        self._silent = first, now
        return now - first

    def _unreachable(self, why: str, seconds: float) -> ServerUnreachable:
        return ServerUnreachable(
            f"{self.url} does not answer ({why}, for {seconds:.0f} s). Is `envsuite serve http` running there?"
        )

    def _exchange(
        self, connection: socket.socket, method: str, path: str, body: bytes | None
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        """Sends one request in one packet and reads its answer; raises if the connection cannot be reused."""
        head = f"{method} {self._prefix}{path} HTTP/1.1\r\n{self._head}"
        if body is not None:
            head += f"Content-Type: {JSON_TYPE}\r\n"
        if method == "POST":
            head += f"Content-Length: {len(body or b'')}\r\n"
        connection.sendall(head.encode("latin-1") + b"\r\n" + (body or b""))
        with contextlib.closing(http.client.HTTPResponse(connection, method=method)) as response:
            response.begin()
            answer = response.read(MOST_BYTES + 1)
            if len(answer) > MOST_BYTES:
                raise WorkerLost(f"{too_long(self.url)}. Is `envsuite serve http` running there?")
            if response.length:  # which read() of so many bytes does not find
                raise http.client.IncompleteRead(answer, response.length)
            if response.will_close:
                connection.close()
            return response.status, response.headers, answer

    @contextlib.contextmanager
    def _connection(self, until: float) -> Iterator[tuple[socket.socket, bool]]:
        """Yields a connection for exclusive use, and whether it is new."""
        with self._lock:
            idle = self._idle.pop() if self._idle else None
        connection = idle if idle is not None else self._connect(until)
        connection.until = until
        try:
            yield connection, idle is None
        except BaseException:
            connection.close()
            raise
        with self._lock:
            if connection.fileno() >= 0 and len(self._idle) < IDLE_CONNECTIONS:
                self._idle.append(connection)
                return
        connection.close()

    def _connect(self, until: float) -> _Deadline | _TlsDeadline:
        seconds = max(0.001, until - time.monotonic())
        try:
            plain = socket.create_connection(self._address, timeout=min(CONNECT_SECONDS, seconds))
        except OSError as error:  # of any kind: unlike later, a time-out says that nobody is there
            raise ConnectionError(str(error) or type(error).__name__) from error
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is not None:
            tls_socket = self._tls.wrap_socket(plain, server_hostname=self._address[0])
            assert isinstance(tls_socket, _TlsDeadline)
            return tls_socket
        return _Deadline(plain.family, plain.type, plain.proto, fileno=plain.detach())

    def _forget(self) -> None:
        """Drops all connections: in a forked process they belong to its parent."""
        self._lock = threading.Lock()
        self._idle: list[_Deadline | _TlsDeadline] = []


_SERVERS: weakref.WeakSet[RemoteServer] = weakref.WeakSet()
_BY_URL: dict[str, RemoteServer] = {}
_LOCK = threading.Lock()


class RequestRefused(Exception):
    """Raised for an answer other than success.

    Args:
        url: Address of the server.
        status: HTTP status.
        problem: The problem document; empty if there is none.
    """

    def __init__(self, url: str, status: int, problem: dict[str, Any]) -> None:
        self.kind = str(problem.get("type", "")).rpartition(":")[2]
        no_detail = f"HTTP {status} without a problem document: is it `envsuite serve http`?"
        self.detail = str(problem.get("detail", no_detail))
        if status == 401 and "detail" not in problem:
            self.detail = token_needed("server", bool(os.environ.get(TOKEN_VARIABLE)))
        self.error = str(problem.get("error", "UsageError"))
        self.url, self.status = url, status
        super().__init__(self.detail)

    def local_error(self) -> Exception:
        """Returns the exception that a local environment would have raised."""
        message = self.detail if self.kind == "refused" else f"{self.url}: {self.detail}"
        return ERRORS.get(self.error, UsageError)(message)


def server(url: str) -> RemoteServer:
    """Returns the server at ``url``; one object per process.

    Raises:
        UsageError: ``url`` is not the address of a server.
    """
    with _LOCK:
        if url not in _BY_URL:
            _BY_URL[url] = RemoteServer(url)
        return _BY_URL[url]


def _after_fork() -> None:
    global _LOCK
    _LOCK = threading.Lock()
    for remote in list(_SERVERS):
        remote._forget()


os.register_at_fork(after_in_child=_after_fork)


def _tls_context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.sslsocket_class = _TlsDeadline
    return context
