"""Makes one HTTP request with a deadline for every wait, which urllib leaves to its callers.

urllib handles redirects, proxies (``HTTP_PROXY`` …) and TLS; no HTTP library offers resuming or a deadline against a
server that trickles, so a dependency would not make this shorter.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from email.message import Message
from typing import IO, Any

from envsuite.core.addresses import redact_address
from envsuite.core.http import retry_after
from envsuite.data.catalog import MIB

CHUNK = 1 << 18
BUSY = (408, 425, 429, 500, 502, 503, 504)
"""Statuses after which a retry may succeed."""


class TemporaryFailure(Exception):
    """Raised for a failure that may pass; ``wait`` is the server's ``Retry-After`` in seconds (0: none)."""

    def __init__(self, reason: str, wait: float = 0.0) -> None:
        super().__init__(reason)
        self.wait = wait


class DownloadRefused(Exception):
    """Raised when an address does not have the file; a retry would not change that."""


class NotSatisfiable(Exception):
    """Raised for HTTP 416, a range past the end of the file; ``total`` is the file's length, if known."""

    def __init__(self, total: int | None) -> None:
        super().__init__(total)
        self.total = total


@dataclass(frozen=True)
class DownloadAnswer:
    """A server's answer."""

    status: int
    headers: Message
    read: Callable[[], bytes]
    """Returns the next bytes of the body, ``b""`` at its end. Raises :class:`TemporaryFailure` if it fails."""


class _Watch:
    """Closes a connection that delivers fewer than ``least`` bytes in ``seconds``.

    The timeout of a socket only detects silence, not a trickle. A thread closes the connection, because the reader may
    be inside the library, at the headers or at the length of a chunk.
    """

    def __init__(self, seconds: float, least: int) -> None:
        self.expired = False
        self.received = 0
        self.socket: socket.socket | None = None
        self._seconds = seconds
        self._least = least
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="envsuite-data-watch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        before: int | None = None  # periods that begin before the connection exists are not counted
        while not self._stop.wait(self._seconds):
            now = self.received
            if before is not None and now - before < self._least:
                self.expired = True
                if self.socket is not None:
                    with contextlib.suppress(OSError):  # the connection has ended meanwhile
                        # socket.socket's method: the TLS socket's own would let the reader see encrypted bytes
                        socket.socket.shutdown(self.socket, socket.SHUT_RDWR)
                return
            before = now if self.socket is not None else None

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def _class_for(kind: type[http.client.HTTPConnection], watch: _Watch) -> Callable[..., http.client.HTTPConnection]:
    class DownloadConnection(kind):  # type: ignore[misc, valid-type]
        def connect(self) -> None:
            super().connect()
            watch.socket = self.sock

    return DownloadConnection


def _handlers(watch: _Watch) -> tuple[urllib.request.BaseHandler, ...]:
    """Returns handlers of HTTP and HTTPS whose connections are watched."""

    class WatchedHttp(urllib.request.HTTPHandler):
        def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(_class_for(http.client.HTTPConnection, watch), req)

    class WatchedHttps(urllib.request.HTTPSHandler):
        def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
            kind = _class_for(http.client.HTTPSConnection, watch)
            return self.do_open(kind, req, context=ssl.create_default_context())

    return WatchedHttp(), WatchedHttps()


class _Redirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if req.type == "https" and urllib.parse.urlsplit(newurl).scheme == "http":
            raise DownloadRefused(f"it redirects to {redact_address(newurl)}, which is not encrypted")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


@dataclass(frozen=True)
class Patience:
    """Limits of waits and retries."""

    attempts: int = 5
    """Consecutive attempts at one address that bring less than :attr:`worth`."""
    worth: int = MIB
    """New bytes that an attempt must bring to count as a success."""
    first_wait: float = 1.0
    """Wait in seconds after the first failure; doubles after each further one, less a random part of up to a half."""
    longest_wait: float = 120.0
    """Limit in seconds of these waits, and of those that a server asks for; beyond it, the address is given up."""
    timeout: float = 30.0
    """Limit in seconds for connecting, and for any silence of the server."""
    stall: float = 60.0
    """Period in seconds over which the rate is measured."""
    least_rate: float = 1024.0
    """Bytes per second; a slower connection is closed and retried."""
    sleep: Callable[[float], None] = time.sleep


@contextlib.contextmanager
def answer_to(url: str, headers: Mapping[str, str], patience: Patience) -> Iterator[DownloadAnswer]:
    """Requests ``url`` and yields the answer (status 200 or 206); leaving the block closes the connection.

    Args:
        url: ``http``, ``https`` or ``file``.
        headers: Headers of the request.
        patience: Limits of waits.

    Raises:
        TemporaryFailure: No connection, no answer in time, or a busy server.
        DownloadRefused: The file does not exist, or access is denied.
        NotSatisfiable: The range lies beyond the end of the file.
    """
    if url.startswith("file:"):
        with _local(url) as answer:
            yield answer
        return
    watch = _Watch(patience.stall, int(patience.least_rate * patience.stall))
    try:
        opener = urllib.request.build_opener(*_handlers(watch), _Redirects())
        opener.addheaders = []
        try:
            response = opener.open(urllib.request.Request(url, headers=dict(headers)), timeout=patience.timeout)
        except urllib.error.HTTPError as error:
            with error:
                raise _failure(error, patience.longest_wait) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise _connection_failure(error, watch) from error
        with response:
            yield DownloadAnswer(response.status, response.headers, lambda: _read(response, watch))
    finally:
        watch.stop()


def _read(response: http.client.HTTPResponse, watch: _Watch) -> bytes:
    try:
        chunk = response.read1(CHUNK)
    except (OSError, http.client.HTTPException) as error:
        raise _connection_failure(error, watch) from error
    if watch.expired:
        raise _connection_failure(TimeoutError(), watch)
    watch.received += len(chunk)
    return chunk


@contextlib.contextmanager
def _local(url: str) -> Iterator[DownloadAnswer]:
    path = urllib.request.url2pathname(urllib.parse.urlsplit(url).path)
    try:
        file = open(path, "rb")
    except OSError as error:
        raise DownloadRefused(error.strerror or str(error)) from error
    headers = Message()
    with file:
        headers["Content-Length"] = str(file.seek(0, 2))
        file.seek(0)
        yield DownloadAnswer(200, headers, lambda: _read_local(file))


def _read_local(file: IO[bytes]) -> bytes:
    try:
        return file.read(CHUNK)
    except OSError as error:
        raise DownloadRefused(error.strerror or str(error)) from error


def _connection_failure(error: BaseException, watch: _Watch) -> Exception:
    """Returns the exception for a connection that failed with ``error``."""
    if watch.expired:
        return TemporaryFailure("it sends too slowly, or nothing at all")
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return DownloadRefused(f"its certificate is not valid ({cause.verify_message}); a wrong clock, or a proxy?")
    if isinstance(cause, (http.client.InvalidURL, ValueError, str)):
        return DownloadRefused(f"not an address that can be asked ({cause})")
    if isinstance(cause, TimeoutError):
        return TemporaryFailure("no answer in time")
    return TemporaryFailure(str(cause) or type(cause).__name__)


def _failure(error: urllib.error.HTTPError, longest_wait: float) -> Exception:
    """Returns the exception for an answer other than success."""
    if error.code == 416:
        total = re.fullmatch(r"bytes \*/([0-9]{1,18})", error.headers.get("Content-Range", ""))
        return NotSatisfiable(int(total[1]) if total else None)
    if 300 <= error.code < 400:
        return DownloadRefused(f"its redirects lead nowhere ({' '.join(str(error.reason).split())})")
    message = f"HTTP {error.code} {error.reason}".rstrip()
    if error.code not in BUSY:
        return DownloadRefused(message)
    wait = retry_after(error.headers)
    if wait > longest_wait:
        return DownloadRefused(f"{message}; it asks to come back in {wait:.0f} s")
    return TemporaryFailure(message, wait)
