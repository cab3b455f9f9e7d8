"""Where servers are: fixed addresses, or those that a file or a DNS name has at present; and the news of them."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import unquote, urlsplit

from envsuite.core.addresses import address
from envsuite.core.errors import UsageError
from envsuite.remote.protocol import TOKEN_VARIABLE
from envsuite.remote.transport import ServerUnreachable

log = logging.getLogger("envsuite.remote")
LOOK_SECONDS = 2.0
"""Seconds between two looks at a file or a DNS name."""
EMPTY_SECONDS = 60.0
"""Seconds that are waited for a first server where there is none."""
LIKE = "http://127.0.0.1:8000, several such, dns://name:8000 or file:///folder/servers.txt"
TOKEN = f"clients send the token in ${TOKEN_VARIABLE}"


@dataclass(frozen=True)
class News:
    """Tells that a server has joined or left."""

    url: str
    serves: str
    """Id of the environment that it plays, or what it serves instead."""
    joined: bool
    why: str

    def __str__(self) -> str:
        """One line."""
        return f"{self.url} ({self.serves}) {'joined' if self.joined else 'left'}: {self.why}"


_LISTENERS: list[Callable[[News], None]] = []


def tell(news: News) -> None:
    """Logs news of a server, and passes it on to whoever listens."""
    log.warning("%s", news)
    for listener in [*_LISTENERS]:
        listener(news)


@contextlib.contextmanager
def listening(listener: Callable[[News], None]) -> Iterator[None]:
    """Has ``listener`` called with all news of servers of this process, in any of its threads."""
    _LISTENERS.append(listener)
    try:
        yield
    finally:
        _LISTENERS.remove(listener)


class Places:
    """The addresses of servers at present; may be used from several threads, and after a fork.

    A file or a DNS name is looked at again every :data:`LOOK_SECONDS`, in a thread, while somebody asks. Where that
    fails, the addresses stay as they are.

    Args:
        url: An address, or several; or ``file:///path`` of a file with one address a line; or ``dns://name:port``, each
            of whose addresses is a server.
        named: What gives it, for messages.
        instead: What to do with a password.

    Raises:
        UsageError: It is none of these, or the file cannot be read.
    """

    def __init__(self, url: str | Sequence[str], named: str = "url", instead: str = TOKEN) -> None:
        self._urls: tuple[str, ...] = ()
        self._look_up: Callable[[], Sequence[str]] | None = None
        self._looker: threading.Thread | None = None
        self._looked, self._trouble = 0.0, ""
        self._text = url if isinstance(url, str) else named
        if self._text.startswith("file:"):
            parts = urlsplit(self._text)
            if parts.netloc or not parts.path.strip("/"):
                raise UsageError(f"{named} must name a file like file:///folder/servers.txt")
            self._look_up = partial(_in_file, Path(unquote(parts.path)), instead)
        elif self._text.startswith("dns:"):
            parts = address(f"http{self._text[3:]}", named, LIKE, instead)
            if parts.port is None or parts.path.strip("/"):
                raise UsageError(f"{named} must name host and port like dns://name:8000")
            self._look_up = partial(_of_name, str(parts.hostname), parts.port)
        else:
            urls = [*url] if isinstance(url, Sequence) and not isinstance(url, str) else [url]
            for server in urls or [""]:
                address(server, named, LIKE, instead)
            self._urls = tuple(dict.fromkeys(server.rstrip("/") for server in urls))
        self._look()
        if self._trouble and self._text.startswith("file:"):
            raise UsageError(self._trouble)

    def __str__(self) -> str:
        """Names them, for messages."""
        return self._text

    @property
    def fixed(self) -> bool:
        """Whether they never change."""
        return self._look_up is None

    def now(self) -> tuple[str, ...]:
        """Returns the addresses, as they were a moment ago; never waits."""
        late = self._look_up is not None and time.monotonic() - self._looked > LOOK_SECONDS
        if late and (self._looker is None or not self._looker.is_alive()):
            self._looker = threading.Thread(target=self._look, name="envsuite-places", daemon=True)
            self._looker.start()
        return self._urls

    def some(self) -> tuple[str, ...]:
        """Returns the addresses, at least one; waits for it for :data:`EMPTY_SECONDS`.

        Raises:
            ServerUnreachable: There was none.
        """
        return wait_for_servers(self.now, str(self), time.monotonic())

    def _look(self) -> None:
        try:
            if self._look_up is not None:
                self._urls = tuple(dict.fromkeys(self._look_up()))
            self._trouble = ""
        except (UsageError, OSError) as error:
            if str(error) != self._trouble:
                log.warning("%s: %s; its servers stay as they were", self, error)
            self._trouble = str(error)
        self._looked = time.monotonic()


def wait_for_servers(look_up: Callable[[], Sequence[str]], where: str, since: float) -> tuple[str, ...]:
    """Returns the addresses that ``look_up`` returns, once there is one; ``since`` is when there was none at first.

    Raises:
        ServerUnreachable: There was none for :data:`EMPTY_SECONDS`.
    """
    has_warned = False
    while not (urls := tuple(look_up())):
        if time.monotonic() > since + EMPTY_SECONDS:
            raise ServerUnreachable(
                f"{where} has had no server for {EMPTY_SECONDS:.0f} s; start one, or name one there"
            )
        if not has_warned:
            log.warning("%s has no server; waiting for one, %.0f s at most", where, EMPTY_SECONDS)
            has_warned = True
        time.sleep(0.1)
    return urls


def _of_name(host: str, port: int) -> list[str]:
    """Returns the addresses of a DNS name; none where the name does not exist."""
    try:
        entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno in (socket.EAI_NONAME, socket.EAI_NODATA):
            return []
        raise
    hosts = sorted({str(entry[4][0]) for entry in entries})
    return [f"http://{f'[{ip}]' if ':' in ip else ip}:{port}" for ip in hosts]


def _in_file(file: Path, instead: str) -> list[str]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise UsageError(f"{file}: the list of servers cannot be read ({error})") from error
    return parse_addresses(text, str(file), instead)


def parse_addresses(text: str, file: str, instead: str = TOKEN) -> list[str]:
    """Returns the addresses in the text of a file: one a line; ``#`` begins a comment.

    Raises:
        UsageError: A line has something else.
    """
    urls = []
    for number, line in enumerate(text.splitlines(), start=1):
        if url := line.partition("#")[0].strip():
            address(url, f"line {number} of {file}", "http://127.0.0.1:8000", instead)
            urls.append(url.rstrip("/"))
    return urls
