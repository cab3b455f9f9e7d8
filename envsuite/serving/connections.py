"""The connections of a server: waitress's parser and threads, with an event loop of its own.

Waitress's loop accepts one connection per turn and polls every connection in every turn: new clients wait for all the
others, and a thousand idle connections slow each request tenfold. Here all new connections are accepted before others
are served, the selector is updated by changes only, and connections beyond the limit are answered 503.
"""

from __future__ import annotations

import contextlib
import logging
import resource
import select
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from waitress.adjustments import Adjustments
from waitress.channel import HTTPChannel
from waitress.task import ErrorTask, ThreadedTaskDispatcher
from waitress.wasyncore import readwrite

from envsuite.remote.listening import StoppableServer
from envsuite.remote.protocol import PROBLEM_TYPE, Problem

log = logging.getLogger("envsuite.serving")
THREADS = 32
"""Number of requests executed at a time. They mostly wait for workers."""
CONNECTIONS = 4096
"""Maximum number of connections, as far as the process may open so many files."""
REFUSED = 256
"""Maximum number of further connections answered 503 at a time; others wait in the system's queue."""
REFUSED_SECONDS = 10.0
"""Seconds in which a refused client must close its connection."""
OTHER_FILES = 128
"""Number of files that a process opens besides connections."""
BACKLOG = 4096
"""Length of the system's queue of connections to accept, as far as the system allows it."""
CHANNEL_SECONDS = 120
"""Seconds after which a silent connection is closed."""
MAINTENANCE_SECONDS = 5
ACCEPT_PAUSE = 0.1
"""Seconds until the next accept after the system had no resources for a connection."""
SESSIONS, QUICK = "/v1/sessions/", ("reset", "step")
MAX_HEADER = 32 * 1024


class _ErrorTask(ErrorTask):  # type: ignore[misc]
    """Sends a problem document for a request that waitress itself refuses."""

    def execute(self) -> None:
        """Sends a problem document and closes the connection."""
        error = self.request.error
        kind = "too-large" if error.code in (413, 431) else "malformed"
        body = Problem(error.code, kind, str(error.body)).document()
        self.status = f"{error.code} {error.reason}"
        self.response_headers += [("Content-Type", PROBLEM_TYPE)]
        self.set_close_on_finish()
        self.content_length = len(body)
        self.channel.lingers = True
        self.write(body)


class _Channel(HTTPChannel):  # type: ignore[misc]
    """A connection that reads the rest of a refused request before it closes.

    Otherwise the system would answer those bytes with a reset, and the client might never see the reason.
    """

    error_task_class = _ErrorTask
    server: Listener
    lingers = False
    """Whether to read the rest before closing."""
    due = False
    """Whether a request waits to be executed by the reading thread."""
    _discarding = False

    def readable(self) -> bool:
        return self._discarding or bool(super().readable())

    def writable(self) -> bool:
        return bool(self.will_close if self._discarding else super().writable())

    def handle_read(self) -> None:
        if not self._discarding:
            super().handle_read()
            while self.due:
                self.due = False
                self.service()
            return
        with contextlib.suppress(OSError):
            self.recv(self.adj.recv_bytes)  # closes at the end; the timeout of idle connections bounds it

    def handle_close(self) -> None:
        if self.lingers and not self._discarding and self.connected and self._hang_up():
            return
        super().handle_close()

    def service(self) -> None:
        self.server.serving[threading.get_ident()] = self
        super().service()

    def refuse(self, answer: bytes) -> None:
        """Sends ``answer`` without reading a request, and closes the connection after the client has."""
        with contextlib.suppress(OSError):
            self.socket.send(answer)
        self.last_activity = time.time() - CHANNEL_SECONDS + REFUSED_SECONDS
        if not self._hang_up():
            super().handle_close()

    def del_channel(self, map: dict[int, Any] | None = None) -> None:
        if self._fileno is not None:  # waitress closes some connections twice
            self.server.forget(self)
            super().del_channel(map)

    def _hang_up(self) -> bool:
        """Sends no more and discards incoming data; returns false if the client has left already."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)
            self._discarding, self.will_close = True, False
            return True
        return False


class _Dispatcher(ThreadedTaskDispatcher):  # type: ignore[misc]
    """Executes requests in threads, but calls of microseconds in the reading thread, which saves a switch."""

    def __init__(self, quick: Callable[[str], bool]) -> None:
        super().__init__()
        self.reader: int | None = None
        """Id of the reading thread."""
        self._quick = quick

    def add_task(self, task: _Channel) -> None:
        """Executes the first request of a connection."""
        request = task.requests[0]
        if threading.get_ident() == self.reader and request.error is None and request.path.startswith(SESSIONS):
            session, _, call = request.path[len(SESSIONS) :].partition("/")
            if call in QUICK and self._quick(session):
                task.due = True
                return
        super().add_task(task)


class Listener(StoppableServer):
    """Reads requests and passes them to ``app``.

    Args:
        app: A WSGI application.
        host: Address to listen at.
        port: Port; 0 for any free one.
        max_body: Size limit of a request in bytes.
        quick: Whether a reset or step of a session, given by its name, takes microseconds.
        refused: Called for each connection that is refused.

    Raises:
        OSError: The address is not available.
    """

    next_channel_cleanup = 0.0

    def __init__(
        self, app: Any, host: str, port: int, max_body: int, quick: Callable[[str], bool], refused: Callable[[], None]
    ) -> None:
        self._selector = selectors.DefaultSelector()
        self._refused = refused
        self._changed: deque[_Channel] = deque()
        self._accept_again = 0.0
        self.limit = connections_limit()
        """Maximum number of connections."""
        self.serving: dict[int, _Channel] = {}
        """The connection that each thread serves, or has served last."""
        adjustments = Adjustments(
            host=host,
            port=port,
            threads=THREADS,
            backlog=BACKLOG,
            channel_timeout=CHANNEL_SECONDS,
            cleanup_interval=MAINTENANCE_SECONDS,
            max_request_body_size=max_body,
            max_request_header_size=MAX_HEADER,
            clear_untrusted_proxy_headers=True,
            ident="envsuite",
        )
        super().__init__(app, _Dispatcher(quick), adjustments)
        self._selector.register(self.trigger._fileno, selectors.EVENT_READ, self.trigger)

    def turn(self, timeout: float = 1.0) -> None:
        """Waits at most ``timeout`` seconds for data from clients, and reads it; always called by the same thread."""
        self.task_dispatcher.reader = threading.get_ident()
        now = time.time()
        if now >= self.next_channel_cleanup:
            self.next_channel_cleanup = now + self.adj.cleanup_interval
            self.maintenance(now)
        while self._changed:
            self._refresh(self._changed.popleft())
        room = len(self.active_channels) < self.limit + REFUSED and now >= self._accept_again
        self._wait(self._fileno, selectors.EVENT_READ if room else 0, self)
        events = self._selector.select(timeout)
        if any(key.data is self for key, _ in events):
            self.handle_accept()
        for key, mask in events:
            if key.data is not self:
                flags = select.POLLIN if mask & selectors.EVENT_READ else 0
                readwrite(key.data, flags | (select.POLLOUT if mask & selectors.EVENT_WRITE else 0))
            if isinstance(key.data, _Channel):
                self._refresh(key.data)

    def handle_accept(self) -> None:
        """Accepts all waiting connections, and refuses those beyond the limit."""
        while len(self.active_channels) < self.limit + REFUSED:
            try:
                connection, address = self.socket.accept()
                self.set_socket_options(connection)
            except BlockingIOError:
                return
            except ConnectionError:  # the client has left again
                continue
            except OSError as error:
                log.warning("new connections have to wait: %s", error.strerror)
                self._accept_again = time.time() + ACCEPT_PAUSE
                return
            channel = _Channel(self, connection, address, self.adj, map=self._map)
            if len(self.active_channels) > self.limit:
                self._refused()
                channel.refuse(_refusal(self.limit))
            self._refresh(channel)

    def pull_trigger(self) -> None:
        """Makes the reading thread re-examine the connection that this thread serves."""
        this = threading.get_ident()
        if this != self.task_dispatcher.reader:
            if this in self.serving:
                self._changed.append(self.serving[this])
            self.wake()

    def wake(self) -> None:
        """Ends the current :meth:`turn`, from any thread."""
        super().pull_trigger()

    def maintenance(self, now: float) -> None:
        """Closes connections that have been silent for long."""
        super().maintenance(now)
        for channel in list(self.active_channels.values()):
            if channel.will_close:
                self._refresh(channel)

    def forget(self, channel: _Channel) -> None:
        """Unregisters a connection that is about to be closed."""
        self._wait(channel._fileno, 0, channel)

    def writing(self) -> bool:
        """Whether some request is not answered yet, or its answer not sent."""
        return any(channel.requests or channel.total_outbufs_len for channel in list(self.active_channels.values()))

    def shut(self) -> None:
        """Closes all connections and stops listening."""
        self.task_dispatcher.shutdown(timeout=1)
        super().shut()
        self._selector.close()

    def _refresh(self, channel: _Channel) -> None:
        """Registers the connection for the events that it waits for now."""
        if channel._fileno is None:
            return
        reads, writes = channel.readable(), channel.writable()
        events = (selectors.EVENT_READ if reads else 0) | (selectors.EVENT_WRITE if writes else 0)
        self._wait(channel._fileno, events, channel)

    def _wait(self, file: int, events: int, owner: object) -> None:
        known = self._selector.get_map().get(file)
        if known is None:
            if events:
                self._selector.register(file, events, owner)
        elif not events:
            self._selector.unregister(file)
        elif events != known.events:
            self._selector.modify(file, events, owner)


def connections_limit() -> int:
    """Returns the number of connections that this process can serve, besides :data:`REFUSED` others."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return CONNECTIONS if files == resource.RLIM_INFINITY else max(1, min(CONNECTIONS, files - REFUSED - OTHER_FILES))


def _refusal(limit: int) -> bytes:
    """Returns the answer to a connection beyond the limit."""
    body = Problem(503, "connections", f"all {limit} connections are taken; come back later", wait=1).document()
    head = f"HTTP/1.1 503 Service Unavailable\r\nContent-Type: {PROBLEM_TYPE}\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Retry-After: 1\r\nConnection: close\r\nServer: envsuite\r\n\r\n".encode() + body
