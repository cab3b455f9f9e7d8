"""The connections of a server: waitress's parser and threads, with an event loop and limits of its own.

Waitress's loop accepts one connection per turn and polls every connection in every turn: new clients wait for all the
others, and a thousand idle connections slow each request tenfold. Here all new connections are accepted before others
are served, and the selector is updated by changes only. The guard sees a request when its header is there, before a
body is stored. A header or a body that comes too slowly ends its connection. Where all connections are taken, one that
waits for its client makes room, of the address that has most; where none does, further ones are answered 503.
Needs waitress.
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
from collections import Counter, deque
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any

from waitress.adjustments import Adjustments
from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser
from waitress.server import TcpWSGIServer
from waitress.task import ErrorTask, ThreadedTaskDispatcher
from waitress.wasyncore import readwrite

from envsuite.remote.guard import BODY_SECONDS, HEADER_SECONDS, UNPROVEN_SECONDS, RequestGuard
from envsuite.remote.protocol import PROBLEM_TYPE, HttpProblem

log = logging.getLogger("envsuite.serving")
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
IDLE_SECONDS = 10.0
"""Seconds that a connection has waited for a further request when it may make room for another one."""
MAINTENANCE_SECONDS = 2
ACCEPT_PAUSE = 0.1
"""Seconds until the next accept after the system had no resources for a connection."""
MAX_HEADER = 32 * 1024


class _RequestParser(HTTPRequestParser):  # type: ignore[misc]
    """Parses a request; one that the guard refuses ends with its header."""

    def __init__(self, adj: Adjustments, guard: RequestGuard | None) -> None:
        super().__init__(adj)
        self._guard = guard

    def parse_header(self, header_plus: bytes) -> None:
        super().parse_header(header_plus)
        if self._guard is not None:
            self.error = self._guard.refusal(self.command, self.path, self._header)
        if self.error is not None:
            self.body_rcv, self.content_length, self.expect_continue = None, 0, False

    def _header(self, name: str) -> str | None:
        value: str | None = self.headers.get(name.upper().replace("-", "_"))
        return value


class _ErrorTask(ErrorTask):  # type: ignore[misc]
    """Sends a problem document for a request that the guard or waitress refuses."""

    def execute(self) -> None:
        """Sends a problem document and closes the connection."""
        problem = self.request.error
        if not isinstance(problem, HttpProblem):
            kind = "too-large" if problem.code in (413, 431) else "malformed"
            problem = HttpProblem(problem.code, kind, str(problem.body))
        body = problem.document()
        self.status = f"{problem.status} {HTTPStatus(problem.status).phrase}"
        self.response_headers += [("Content-Type", PROBLEM_TYPE)]
        if problem.status == HTTPStatus.UNAUTHORIZED:
            self.response_headers += [("WWW-Authenticate", "Bearer")]
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
    proven = False
    """Whether a whole request has come."""
    _discarding = False
    _timed: _RequestParser | None = None

    def __init__(self, server: Listener, sock: socket.socket, addr: Any, adj: Adjustments, map: Any) -> None:
        super().__init__(server, sock, addr, adj, map)
        self.since: float = self.creation_time
        """Time from which it waits for its client: its own beginning, a request's, or the end of one."""

    def parser_class(self, adj: Adjustments) -> _RequestParser:
        return _RequestParser(adj, self.server.guard)

    def received(self, data: bytes) -> bool:
        progress = bool(super().received(data))
        if self.request is not self._timed or self.requests:
            self._timed, self.since = self.request, time.time()
            self.proven = self.proven or bool(self.requests)
        return progress

    def late(self, now: float) -> bool:
        """Whether its client has had its time for a header, a body, or to read a refusal."""
        if self._discarding:
            return now > self.since + REFUSED_SECONDS
        if self.requests or (self.request is None and self.proven):
            return False
        in_body = self.request is not None and self.request.headers_finished
        return now > self.since + (BODY_SECONDS if in_body else HEADER_SECONDS)

    def waits(self, now: float) -> bool:
        """Whether its client has let it wait long enough for it to make room for another one."""
        if self.requests or self.total_outbufs_len or self._discarding or self.will_close or self._fileno is None:
            return False
        seconds = IDLE_SECONDS if self.proven else UNPROVEN_SECONDS
        if now < max(self.since, self.last_activity if self.request is None else 0.0) + seconds:
            return False
        poll = select.poll()
        poll.register(self._fileno, select.POLLIN)
        return not poll.poll(0)

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
            self._discarding, self.will_close, self.since = True, False, time.time()
            return True
        return False


class Dispatcher(ThreadedTaskDispatcher):  # type: ignore[misc]
    """Executes requests in threads, but those of microseconds in the reading thread, which saves a switch.

    Args:
        quick: Whether a request for a path takes microseconds.
        slow: Whether a request for a path may take long; such ones have threads of their own.
    """

    def __init__(self, quick: Callable[[str], bool], slow: Callable[[str], bool] | None = None) -> None:
        super().__init__()
        self.reader: int | None = None
        """Id of the reading thread."""
        self._quick, self._slow = quick, slow
        self._others = ThreadedTaskDispatcher()

    def set_thread_count(self, count: int) -> None:
        """Starts threads, as many again for the slow requests."""
        super().set_thread_count(count)
        if self._slow is not None:
            self._others.set_thread_count(count)

    def add_task(self, task: _Channel) -> None:
        """Executes the first request of a connection."""
        request = task.requests[0]
        if threading.get_ident() == self.reader and (request.error is not None or self._quick(request.path)):
            task.due = True
        elif self._slow is not None and request.error is None and self._slow(request.path):
            self._others.add_task(task)
        else:
            super().add_task(task)

    def shutdown(self, cancel_pending: bool = True, timeout: float = 5) -> bool:
        """Ends all threads."""
        self._others.shutdown(cancel_pending, timeout)
        return bool(super().shutdown(cancel_pending, timeout))


class Listener(TcpWSGIServer):  # type: ignore[misc]
    """Reads requests and passes them to ``app``; may be told to end at any time.

    Waitress's own trigger, pulled when it is closed, raises ``OSError`` or writes into the next file that is opened.

    Args:
        app: A WSGI application.
        host: Address to listen at.
        port: Port; 0 for any free one.
        max_body: Size limit of a request in bytes.
        threads: Number of requests executed at a time.
        guard: Refuses requests by their headers.
        dispatcher: Executes requests; by default in threads.
        refused: Called for each connection that is refused.
        ident: The header ``Server``.
        listening: A socket that listens already, instead of an address.

    Raises:
        OSError: The address is not available.
    """

    next_channel_cleanup = 0.0

    def __init__(
        self,
        app: Any,
        host: str,
        port: int,
        max_body: int,
        *,
        threads: int,
        guard: RequestGuard | None = None,
        dispatcher: Dispatcher | None = None,
        refused: Callable[[], None] = lambda: None,
        ident: str | None = "envsuite",
        listening: socket.socket | None = None,
    ) -> None:
        self.guard = guard
        self._selector = selectors.DefaultSelector()
        self._refused = refused
        self._closing = threading.RLock()  # a signal may come in between
        self._shut = False
        self._turned_away: set[_Channel] = set()
        self._changed: deque[_Channel] = deque()
        self._accept_again = 0.0
        self.limit = connections_limit()
        """Maximum number of connections."""
        self.serving: dict[int, _Channel] = {}
        """The connection that each thread serves, or has served last."""
        adjustments = Adjustments(
            host=host,
            port=port,
            threads=threads,
            backlog=BACKLOG,
            channel_timeout=CHANNEL_SECONDS,
            cleanup_interval=MAINTENANCE_SECONDS,
            max_request_body_size=max_body,
            max_request_header_size=MAX_HEADER,
            clear_untrusted_proxy_headers=True,
            ident=ident,
        )
        dispatcher = dispatcher or Dispatcher(lambda path: False)
        place = adjustments.listen[0] if listening is None else (listening.family, listening.type, listening.proto, ())
        super().__init__(
            app, {}, True, listening, dispatcher=dispatcher, adj=adjustments, sockinfo=place,
            bind_socket=listening is None,
        )  # fmt: skip
        dispatcher.set_thread_count(threads)
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
        room = now >= self._accept_again
        self._register(self._fileno, selectors.EVENT_READ if room else 0, self)
        events = self._selector.select(timeout if room else min(timeout, UNPROVEN_SECONDS))
        if any(key.data is self for key, _ in events):
            self.handle_accept()
        for key, mask in events:
            if key.data is not self:
                flags = select.POLLIN if mask & selectors.EVENT_READ else 0
                readwrite(key.data, flags | (select.POLLOUT if mask & selectors.EVENT_WRITE else 0))
            if isinstance(key.data, _Channel):
                self._refresh(key.data)

    def handle_accept(self) -> None:
        """Accepts all waiting connections, and refuses those beyond the limit for which none makes room."""
        waiting: Iterator[_Channel] | None = None
        leaves: _Channel | None = None
        while True:
            if full := len(self.active_channels) - len(self._turned_away) >= self.limit:
                waiting = self._idle_channels(time.time()) if waiting is None else waiting
                leaves = leaves or next(waiting, None)
                if leaves is None and len(self._turned_away) >= REFUSED:
                    self._accept_again = time.time() + UNPROVEN_SECONDS
                    return
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
            channel = _Channel(self, connection, address, self.adj, self._map)
            if full and leaves is not None:
                HTTPChannel.handle_close(leaves)
                leaves = None
            elif full:
                self._turned_away.add(channel)
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
        """Ends the current :meth:`turn`, from any thread; does nothing after :meth:`shut`."""
        with self._closing:
            if not self._shut:
                super().pull_trigger()

    def maintenance(self, now: float) -> None:
        """Closes connections that have been silent for long, or whose clients are too slow."""
        super().maintenance(now)
        for channel in list(self.active_channels.values()):
            if channel.late(now):
                HTTPChannel.handle_close(channel)
            elif channel.will_close:
                self._refresh(channel)

    def _idle_channels(self, now: float) -> Iterator[_Channel]:
        """Yields the connections that wait for their clients: those of the address that has most, the oldest first."""
        channels = list(self.active_channels.values())
        count = Counter(channel.addr[0] for channel in channels)
        channels.sort(key=lambda channel: (channel.proven, -count[channel.addr[0]], channel.since))
        return (channel for channel in channels if channel.waits(now))

    def forget(self, channel: _Channel) -> None:
        """Unregisters a connection that is about to be closed."""
        self._turned_away.discard(channel)
        self._register(channel._fileno, 0, channel)

    def writing(self) -> bool:
        """Whether some request is not answered yet, or its answer not sent."""
        return any(channel.requests or channel.total_outbufs_len for channel in list(self.active_channels.values()))

    def shut(self) -> None:
        """Closes all connections and stops listening."""
        self.task_dispatcher.shutdown(timeout=1)
        for channel in list(self.active_channels.values()):
            HTTPChannel.handle_close(channel)
        with self._closing:
            self._shut = True
            self.close()
        self._selector.close()

    def _refresh(self, channel: _Channel) -> None:
        """Registers the connection for the events that it waits for now."""
        if channel._fileno is None:
            return
        reads, writes = channel.readable(), channel.writable()
        events = (selectors.EVENT_READ if reads else 0) | (selectors.EVENT_WRITE if writes else 0)
        self._register(channel._fileno, events, channel)

    def _register(self, file: int, events: int, owner: object) -> None:
        key = self._selector.get_map().get(file)
        if key is None:
            if events:
                self._selector.register(file, events, owner)
        elif not events:
            self._selector.unregister(file)
        elif events != key.events:
            self._selector.modify(file, events, owner)


def connections_limit() -> int:
    """Returns the number of connections that this process can serve, besides :data:`REFUSED` others."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return CONNECTIONS if files == resource.RLIM_INFINITY else max(1, min(CONNECTIONS, files - REFUSED - OTHER_FILES))


def _refusal(limit: int) -> bytes:
    """Returns the answer to a connection beyond the limit."""
    body = HttpProblem(503, "connections", f"all {limit} connections are taken; come back later", wait=1).document()
    head = f"HTTP/1.1 503 Service Unavailable\r\nContent-Type: {PROBLEM_TYPE}\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Retry-After: 1\r\nConnection: close\r\nServer: envsuite\r\n\r\n".encode() + body
