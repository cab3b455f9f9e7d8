"""A server as a process: the socket, the threads, signals and the end."""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from types import FrameType

from flask import Blueprint
from waitress.channel import HTTPChannel
from waitress.server import TcpWSGIServer, create_server
from waitress.task import ErrorTask, ThreadedTaskDispatcher

from envsuite.core.errors import UsageError
from envsuite.remote.protocol import PROBLEM_TYPE, Problem
from envsuite.serving.app import make_app
from envsuite.serving.front import Front, Inline, Offer, Place
from envsuite.serving.settings import Settings
from envsuite.serving.workers import Pool, Worker

log = logging.getLogger("envsuite.serving")
THREADS = 32
"""Requests that are executed at a time. They wait for workers mostly."""
CONNECTIONS = 4096
CHANNEL_SECONDS = 120
"""A connection that brings nothing for so long is closed."""
SESSIONS, STEP = "/v1/sessions/", "/step"
MAX_HEADER = 32 * 1024
DRAIN_SECONDS = 20.0
"""How long requests under way may go on after SIGTERM."""


class _ErrorTask(ErrorTask):  # type: ignore[misc]
    """What waitress itself refuses: told as everything else is told."""

    def execute(self) -> None:
        """Send a problem document, and close the connection."""
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
    """A connection that, when a request was refused unread, takes in what is still sent before it closes.

    Otherwise the system would answer those bytes with a reset, and the client might never see why it was refused.
    """

    error_task_class = _ErrorTask
    lingers = False
    """Do so when this connection is to be closed."""
    due = False
    """A request waits to be executed by the thread that reads."""
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
        if self.lingers and not self._discarding and self.connected:
            with contextlib.suppress(OSError):
                self.socket.shutdown(socket.SHUT_WR)
                self._discarding, self.will_close = True, False
                return
        super().handle_close()


class _Dispatcher(ThreadedTaskDispatcher):  # type: ignore[misc]
    """Has requests executed by threads; but steps of microseconds by the thread that reads, which spares a switch."""

    def __init__(self, front: Front) -> None:
        super().__init__()
        self.reader: int | None = None
        """The thread that reads."""
        self._front = front

    def add_task(self, task: _Channel) -> None:
        """Have the first request of a connection executed."""
        request = task.requests[0]
        if (
            threading.get_ident() == self.reader
            and request.error is None
            and request.path.startswith(SESSIONS)
            and request.path.endswith(STEP)
            and self._front.quick(request.path[len(SESSIONS) : -len(STEP)])
        ):
            task.due = True
        else:
            super().add_task(task)


class Server:
    """Serves sessions over HTTP until it is told to end.

    Args:
        settings: What whoever starts it may choose.
        blueprints: Further addresses.

    Raises:
        UsageError: An environment cannot be offered, or the address is taken.
    """

    def __init__(self, settings: Settings, blueprints: Sequence[Blueprint] = ()) -> None:
        self.settings = settings
        self._inline = Inline()
        self.front = Front(settings, self._place)
        played = [offer.env_id for offer in self.front.offers.values() if not offer.inline]
        self._pool = Pool(settings.workers if played else 0, played, settings.deadline, self._lost)
        self.app = make_app(self.front, self._ready, blueprints)
        self._dispatcher = _Dispatcher(self.front)
        self._dispatcher.set_thread_count(THREADS)
        try:
            self._http = create_server(
                self.app,
                _dispatcher=self._dispatcher,
                host=settings.host,
                port=settings.port,
                threads=THREADS,
                connection_limit=CONNECTIONS,
                channel_timeout=CHANNEL_SECONDS,
                cleanup_interval=10,
                max_request_body_size=settings.max_body,
                max_request_header_size=MAX_HEADER,
                asyncore_use_poll=True,
                clear_untrusted_proxy_headers=True,
                ident="envsuite",
            )
        except OSError as error:
            self._close()
            raise UsageError(f"cannot listen at {settings.host}:{settings.port}: {error.strerror or error}") from error
        self._http.channel_class = _Channel
        self._http.pull_trigger = self._wake
        self._stop = threading.Event()

    @property
    def url(self) -> str:
        """Where it listens."""
        host, port = self._http.effective_host, self._http.effective_port
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def run(self) -> None:
        """Serve until :meth:`stop`; then finish what is under way."""
        self._dispatcher.reader = threading.get_ident()
        while not self._stop.is_set():
            self._turn()
        self.front.draining = True
        end = time.monotonic() + DRAIN_SECONDS
        while time.monotonic() < end and (self.front.busy or self._writing()):
            self._turn(0.05)
        self._http.task_dispatcher.shutdown(timeout=1)
        for channel in list(self._http.active_channels.values()):
            HTTPChannel.handle_close(channel)
        self._http.close()
        self._close()

    def stop(self, *_: object) -> None:
        """End :meth:`run`, from a signal or another thread."""
        self.front.draining = True
        if not self._stop.is_set():
            self._stop.set()
            TcpWSGIServer.pull_trigger(self._http)

    def _wake(self) -> None:
        """Have the thread that reads look again at what there is to do; it does so by itself after what it did."""
        if threading.get_ident() != self._dispatcher.reader:
            TcpWSGIServer.pull_trigger(self._http)

    def _turn(self, timeout: float = 1.0) -> None:
        self._http.asyncore.loop(timeout=timeout, use_poll=True, map=self._http._map, count=1)

    def _writing(self) -> bool:
        return any(channel.requests or channel.total_outbufs_len for channel in self._http.active_channels.values())

    def _place(self, offer: Offer) -> Place:
        return self._inline if offer.inline else self._pool.choose()

    def _ready(self) -> bool:
        return self._pool.ready

    def _lost(self, worker: Worker, why: str) -> None:
        self.front.metrics.count("envsuite_workers_replaced_total")
        self.front.lost(worker, why)

    def _close(self) -> None:
        self._pool.close()
        self.front.close()


def serve(settings: Settings, blueprints: Sequence[Blueprint] = ()) -> None:
    """Serve until SIGTERM or SIGINT."""
    server = Server(settings, blueprints)

    def end(number: int, frame: FrameType | None) -> None:
        log.info("%s: no new sessions; ending when what is under way is done", signal.Signals(number).name)
        server.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    open_to = "this machine only" if settings.host in ("127.0.0.1", "::1", "localhost") else "other machines, too"
    guarded = "a token is needed" if settings.token is not None else "no token is needed"
    log.warning("%s: %s (%s; %s)", server.url, ", ".join(settings.environments), open_to, guarded)
    server.run()


@contextlib.contextmanager
def serving(settings: Settings, blueprints: Sequence[Blueprint] = ()) -> Iterator[Server]:
    """A server in a thread of this process, for as long as the block lasts."""
    server = Server(settings, blueprints)
    thread = threading.Thread(target=server.run, name="envsuite-server", daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join()
