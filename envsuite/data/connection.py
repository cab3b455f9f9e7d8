"""One request, with an end to every wait: what urllib leaves to its callers.

urllib brings redirects, proxies (``HTTP_PROXY`` …) and TLS; no HTTP library brings resuming or a deadline against a
server that trickles, so a dependency would not make this shorter.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import ssl
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import Message
from email.utils import parsedate_to_datetime
from typing import IO, Any

CHUNK = 1 << 18
BUSY = (408, 425, 429, 500, 502, 503, 504)
"""Answers of a server that may do better in a while."""


class Again(Exception):
    """A request failed in a way that may pass; ``wait`` is how many seconds the server asks for (0: it does not)."""

    def __init__(self, reason: str, wait: float = 0.0) -> None:
        super().__init__(reason)
        self.wait = wait


class Refused(Exception):
    """This place does not have the file; asking again would not change it."""


class NotSatisfiable(Exception):
    """HTTP 416: the file there ends before the range that was asked for; ``total`` is its length, if it was told."""

    def __init__(self, total: int | None) -> None:
        super().__init__(total)
        self.total = total


@dataclass(frozen=True)
class Answer:
    """What a server sends."""

    status: int
    headers: Message
    read: Callable[[], bytes]
    """The next bytes of the body, ``b""`` at its end. Raises :class:`Again` if the connection fails."""


class _Watch:
    """Cuts a connection that brings fewer than ``least`` bytes in ``seconds``.

    The timeout of a socket sees only silence, not a trickle. The cut comes from a thread, since whoever reads the
    headers, or the length of a chunk, is inside of the library.
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
        before: int | None = None  # no period counts that begins before there is a connection
        while not self._stop.wait(self._seconds):
            now = self.received
            if before is not None and now - before < self._least:
                self.expired = True
                if self.socket is not None:
                    with contextlib.suppress(OSError):  # it has ended meanwhile
                        # of the class, for the TLS socket's own would hand the reader undeciphered bytes
                        socket.socket.shutdown(self.socket, socket.SHUT_RDWR)
                return
            before = now if self.socket is not None else None

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def _watched(kind: type[http.client.HTTPConnection], watch: _Watch) -> Callable[..., http.client.HTTPConnection]:
    class Connection(kind):  # type: ignore[misc, valid-type]
        def connect(self) -> None:
            super().connect()
            watch.socket = self.sock

    return Connection


class _Http(urllib.request.HTTPHandler):
    def __init__(self, watch: _Watch) -> None:
        super().__init__()
        self._watch = watch

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_watched(http.client.HTTPConnection, self._watch), req)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, watch: _Watch) -> None:
        super().__init__()
        self._watch = watch

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        kind = _watched(http.client.HTTPSConnection, self._watch)
        return self.do_open(kind, req, context=ssl.create_default_context())


class _Redirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if req.type == "https" and urllib.parse.urlsplit(newurl).scheme == "http":
            raise Refused(f"it redirects to {newurl}, which is not encrypted")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


@contextlib.contextmanager
def answer_to(
    url: str, headers: Mapping[str, str], *, timeout: float, stall: float, least_rate: float, longest_wait: float
) -> Iterator[Answer]:
    """Ask for ``url`` and yield the answer (status 200 or 206); leaving the block ends the connection.

    Args:
        url: ``http``, ``https`` or ``file``.
        headers: To send.
        timeout: Seconds for connecting, and for any silence of the server.
        stall: Seconds in which ``least_rate`` is measured.
        least_rate: Bytes per second; what is slower is cut off.
        longest_wait: Seconds; a server that asks to come back later than that is given up.

    Raises:
        Again: No connection, no answer in time, or a server that is busy.
        Refused: The file is not there, or not for us.
        NotSatisfiable: The range lies behind the end of the file.
    """
    if url.startswith("file:"):
        with _local(url) as answer:
            yield answer
        return
    watch = _Watch(stall, int(least_rate * stall))
    try:
        opener = urllib.request.build_opener(_Http(watch), _Https(watch), _Redirects())
        opener.addheaders = []
        try:
            response = opener.open(urllib.request.Request(url, headers=dict(headers)), timeout=timeout)
        except urllib.error.HTTPError as error:
            with error:
                raise _failure(error, longest_wait) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise _broken(error, watch) from error
        with response:
            yield Answer(response.status, response.headers, lambda: _read(response, watch))
    finally:
        watch.stop()


def _read(response: http.client.HTTPResponse, watch: _Watch) -> bytes:
    try:
        chunk = response.read1(CHUNK)
    except (OSError, http.client.HTTPException) as error:
        raise _broken(error, watch) from error
    if watch.expired:
        raise _broken(TimeoutError(), watch)
    watch.received += len(chunk)
    return chunk


@contextlib.contextmanager
def _local(url: str) -> Iterator[Answer]:
    path = urllib.request.url2pathname(urllib.parse.urlsplit(url).path)
    try:
        file = open(path, "rb")
    except OSError as error:
        raise Refused(error.strerror or str(error)) from error
    headers = Message()
    with file:
        headers["Content-Length"] = str(file.seek(0, 2))
        file.seek(0)
        yield Answer(200, headers, lambda: _read_local(file))


def _read_local(file: IO[bytes]) -> bytes:
    try:
        return file.read(CHUNK)
    except OSError as error:
        raise Refused(error.strerror or str(error)) from error


def _broken(error: BaseException, watch: _Watch) -> Exception:
    """What a connection that failed with ``error`` means."""
    if watch.expired:
        return Again("it sends too slowly, or nothing at all")
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return Refused(f"its certificate is not valid ({cause.verify_message}); the clock of this machine, or a proxy?")
    if isinstance(cause, (http.client.InvalidURL, ValueError, str)):
        return Refused(f"not an address that can be asked ({cause})")
    if isinstance(cause, TimeoutError):
        return Again("no answer in time")
    return Again(str(cause) or type(cause).__name__)


def _failure(error: urllib.error.HTTPError, longest_wait: float) -> Exception:
    """What an answer other than success means."""
    if error.code == 416:
        total = re.fullmatch(r"bytes \*/([0-9]{1,18})", error.headers.get("Content-Range", ""))
        return NotSatisfiable(int(total[1]) if total else None)
    if 300 <= error.code < 400:
        return Refused(f"its redirects lead nowhere ({' '.join(str(error.reason).split())})")
    said = f"HTTP {error.code} {error.reason}".rstrip()
    if error.code not in BUSY:
        return Refused(said)
    wait = _seconds(error.headers.get("Retry-After", ""))
    if wait > longest_wait:
        return Refused(f"{said}; it asks to come back in {wait:.0f} s")
    return Again(said, wait)


def _seconds(retry_after: str) -> float:
    """``Retry-After`` in seconds: a number, or a date; 0 where it is neither."""
    if re.fullmatch(r"\s*[0-9]+\s*", retry_after):
        return float(retry_after)
    try:
        when = parsedate_to_datetime(retry_after)
    except ValueError:
        return 0.0
    when = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
    return max(0.0, (when - datetime.now(UTC)).total_seconds())
