"""How every server of the project serves HTTP: uvicorn, with limits that it does not have.

A header or a body that comes too slowly ends its connection. Where all connections are taken, one that waits for its
client makes room, of the address that has most; where none does, further ones are answered 503. Needs uvicorn and
httptools.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import select
import signal
import socket
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from http import HTTPStatus
from typing import Any, Protocol, TypeVar

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from envsuite.core.addresses import BACKLOG
from envsuite.remote.guard import BODY_SECONDS, HEADER_SECONDS, UNPROVEN_SECONDS
from envsuite.remote.protocol import PROBLEM_TYPE, HttpProblem

CONNECTIONS = 4096
"""Maximum number of connections, as far as the process may open so many files."""
REFUSED = 256
"""Maximum number of further connections answered 503 at a time; others are closed at once."""
REFUSED_SECONDS = 10.0
"""Seconds in which a refused client must close its connection."""
OTHER_FILES = 128
"""Number of files that a process opens besides connections."""
CHANNEL_SECONDS = 120
"""Seconds after which a silent connection is closed."""
IDLE_SECONDS = 10.0
"""Seconds that a connection has waited for a further request when it may make room for another one."""
MAINTENANCE_SECONDS = 1.0
MAX_HEADER = 32 * 1024
_LONG_HEADER = HttpProblem(431, "too-large", f"the header has more than {MAX_HEADER} bytes")
_TICK = 0.1  # uvicorn's
Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]
"""An ASGI application."""


class Running(Protocol):
    """A server that runs until it is stopped."""

    def run(self) -> None:
        """Serves until :meth:`stop`, then finishes running requests."""

    def stop(self) -> None:
        """Ends :meth:`run`, from a signal or another thread."""


S = TypeVar("S", bound=Running)


class Connection(HttpToolsProtocol):
    """One connection of a client.

    Args:
        server: The server that has accepted it.
        settings: Those of uvicorn's class.
    """

    def __init__(self, *, server: HttpServer, **settings: Any) -> None:
        super().__init__(**settings)
        self._server = server
        self.since = self.loop.time()
        """Time from which it waits for its client: its own beginning, a request's, or the end of an answer."""
        self.refused = False
        """Whether it is beyond the limit."""
        self.proven = False
        """Whether a whole request has come."""
        self._in_header = self._in_body = self._discards = False
        self._header_size = self._unparsed = self._unsent = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Takes its place, which another one may have to leave."""
        super().connection_made(transport)
        self._server.make_room(self)

    def data_received(self, data: bytes) -> None:
        """Reads what has come."""
        if self._discards:
            return
        super().data_received(data)
        if self._in_header:
            self._unparsed += len(data)
            if self._unparsed > 2 * MAX_HEADER:
                self._refuse(_LONG_HEADER)

    def on_message_begin(self) -> None:
        """Begins to wait for a header."""
        super().on_message_begin()
        self._in_header, self._header_size, self._unparsed, self.since = True, 0, 0, self.loop.time()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Has one header, which may also come after a body."""
        self._header_size += len(name) + len(value)
        if self._header_size > MAX_HEADER:
            raise ValueError  # which the parser takes for a malformed request
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Begins to wait for a body."""
        self._in_header, self._in_body, self.since = False, True, self.loop.time()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Has a whole request."""
        self.proven, self._in_body = True, False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Begins to wait for a further request."""
        self.since = self.loop.time()
        super().on_response_complete()

    def shutdown(self) -> None:
        """Ends soon; a refused request, whose rest is read, at once."""
        super().shutdown()
        if self.cycle is not None and self.cycle.response_started and self.cycle.more_body:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Answers what is no request."""
        self._refuse(_LONG_HEADER if self._header_size > MAX_HEADER else HttpProblem(400, "malformed", msg))

    def _refuse(self, problem: HttpProblem) -> None:
        """Answers, and reads the rest: else the system would answer it with a reset, and the client see no reason."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.abort()
            return
        head = f"HTTP/1.1 {problem.status} {HTTPStatus(problem.status).phrase}\r\n"
        lines = [f"{name}: {value}\r\n" for name, value in problem_headers(problem)]
        self.transport.write("".join((head, *lines, "\r\n")).encode() + problem.document())
        with contextlib.suppress(OSError):
            self.transport.write_eof()
        self._discards, self._in_header, self.since = True, False, self.loop.time()

    def is_late(self, now: float) -> bool:
        """Whether its client has had its time for a header, a body, or to read an answer."""
        unsent = self.transport.get_write_buffer_size()
        if unsent < self._unsent:
            self.since = now
        self._unsent = unsent
        waited = now - self.since
        if self._discards:
            return waited > REFUSED_SECONDS
        if unsent or self.transport.is_closing():
            return waited > CHANNEL_SECONDS
        if self._in_body:
            return waited > BODY_SECONDS
        if self._in_header or not self.proven:
            return waited > HEADER_SECONDS
        return self.cycle.response_complete and waited > CHANNEL_SECONDS

    def may_leave(self, now: float) -> bool:
        """Whether its client has let it wait long enough for it to make room for another one."""
        works = self.proven and not (self._in_header or self._in_body or self.cycle.response_complete)
        seconds = IDLE_SECONDS if self.proven else UNPROVEN_SECONDS
        if works or self._discards or self.transport.is_closing() or now < self.since + seconds:
            return False
        if self.transport.get_write_buffer_size():
            return False
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN)
        return not poll.poll(0)

    def turn_away(self) -> None:
        """Has its request answered 503."""
        self.refused = True
        detail = f"all {self._server.limit} connections are taken; come back later"
        problem = HttpProblem(503, "connections", detail, wait=1)
        self.app = lambda scope, receive, send: send_problem(problem, receive, send)

    @property
    def address(self) -> str:
        """The address of the client."""
        return self.client[0] if self.client else ""


class HttpServer(uvicorn.Server):
    """Serves an application until it is stopped, in the thread that calls :meth:`run`.

    Args:
        app: An ASGI application.
        listening: A socket that listens.
        connection: The class of its connections.
        drain_seconds: Seconds that running requests have to finish.
        limit: Maximum number of connections.
        refused: Called for each connection that is refused.
        settings: Further ones of ``uvicorn.Config``.
    """

    def __init__(
        self,
        app: Application,
        listening: socket.socket,
        *,
        connection: Callable[..., Connection] = Connection,
        drain_seconds: int = 1,
        limit: int | None = None,
        refused: Callable[[], None] = lambda: None,
        **settings: Any,
    ) -> None:
        config = uvicorn.Config(
            app,
            http=partial(connection, server=self),  # type: ignore[arg-type]
            **{"ws": "none", "lifespan": "off", **settings},
            interface="asgi3", loop="asyncio", log_config=None, log_level="error", access_log=False,
            server_header=False, proxy_headers=False, backlog=BACKLOG, timeout_keep_alive=CHANNEL_SECONDS,
            timeout_graceful_shutdown=drain_seconds,
        )  # fmt: skip
        super().__init__(config)
        self._listening, self._refused = listening, refused
        self.limit = min(connections_limit(), limit or CONNECTIONS)
        """Maximum number of connections."""
        host, port = listening.getsockname()[:2]
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        """Address at which it listens."""
        self.ended = False

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serves until :meth:`stop`, then finishes running requests."""
        try:
            super().run([self._listening, *(sockets or ())])
        finally:
            self._listening.close()
            self.ended = True

    def stop(self) -> None:
        """Ends :meth:`run`, from a signal or another thread."""
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals to the program."""
        yield

    async def on_tick(self, counter: int) -> bool:
        """Closes connections that have been silent for long, or whose clients are too slow."""
        if counter % max(1, round(MAINTENANCE_SECONDS / _TICK)) == 0:
            now = asyncio.get_running_loop().time()
            for connection in self.connections:
                if connection.is_late(now):
                    connection.transport.abort()
        return await super().on_tick(counter)

    @property
    def connections(self) -> list[Connection]:
        """The connections that speak HTTP."""
        return [each for each in self.server_state.connections if isinstance(each, Connection)]

    def make_room(self, new: Connection) -> None:
        """Has a connection leave for a new one where there are too many, or the new one turned away."""
        count = len(self.server_state.connections)
        if count <= self.limit:
            return
        connections, now = self.connections, asyncio.get_running_loop().time()
        refused = sum(each.refused for each in connections)
        if count - refused <= self.limit:
            return
        of_address = Counter(each.address for each in connections)
        connections.sort(key=lambda each: (each.proven, -of_address[each.address], each.since))
        if leaves := next((each for each in connections if each.may_leave(now)), None):
            leaves.transport.abort()
        elif refused < REFUSED:
            self._refused()
            new.turn_away()
        else:
            new.transport.abort()


@contextlib.contextmanager
def in_thread(server: S) -> Iterator[S]:
    """Runs a server in a thread of this process for the duration of the block."""
    thread = threading.Thread(target=server.run, name="envsuite-server", daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join()


def run_until_signal(server: Running) -> None:
    """Serves until SIGTERM or SIGINT; in a thread, until the server is stopped."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: server.stop())
    server.run()


def connections_limit() -> int:
    """Returns the number of connections that this process can serve, besides :data:`REFUSED` others."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return CONNECTIONS if files == resource.RLIM_INFINITY else max(1, min(CONNECTIONS, files - REFUSED - OTHER_FILES))


def problem_headers(problem: HttpProblem) -> list[tuple[str, str]]:
    """Returns the headers of a problem's document, after which the connection is closed."""
    fields = [("Content-Type", PROBLEM_TYPE), ("Content-Length", str(len(problem.document()))), ("Connection", "close")]
    if problem.status == HTTPStatus.UNAUTHORIZED:
        fields.append(("WWW-Authenticate", "Bearer"))
    if problem.wait is not None:
        fields.append(("Retry-After", str(problem.wait)))
    return fields


async def send_problem(problem: HttpProblem, receive: Receive, send: Send) -> None:
    """Answers a request with a problem's document, and reads the rest of it, so that no reset hides the answer."""
    headers = [(name.lower().encode(), value.encode()) for name, value in problem_headers(problem)]
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": problem.document(), "more_body": True})
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(REFUSED_SECONDS):
            while (await receive()).get("more_body"):
                pass
    await send({"type": "http.response.body", "body": b"", "more_body": False})
