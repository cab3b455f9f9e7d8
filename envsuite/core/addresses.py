"""Addresses of servers, which have no secrets in them."""

from __future__ import annotations

import errno
import ipaddress
import re
import socket
from urllib.parse import SplitResult, urlsplit

from envsuite.core.errors import UsageError

BACKLOG = 4096
"""Length of the system's queue of connections to accept, as far as the system allows it."""
_BLANK = re.compile(r"[\s\x00-\x20\x7f]")


def address(url: object, named: str, like: str, instead: str) -> SplitResult:
    """Splits the address of a server.

    Args:
        url: The address.
        named: What gives it, for messages, e.g. ``"--url"``.
        like: An example of an address.
        instead: What to do with a password.

    Raises:
        UsageError: It is no such address, or one that no request can name, such as ``http://a..b``; or it has a name, a
            password or a query in it, which the message does not show.
    """
    try:
        parts = urlsplit(url) if isinstance(url, str) else None
        sound = parts is not None and parts.scheme in ("http", "https") and _reachable(parts)
    except ValueError:
        sound = False
    if not sound:
        raise UsageError(f"{named} is {redact_address(url) if isinstance(url, str) else url!r}; it must be like {like}")
    assert parts is not None
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise UsageError(
            f"{named} of {parts.hostname} has a password or a query in it, which would be in messages and files; "
            f"{instead}"
        )
    return parts


def _reachable(parts: SplitResult) -> bool:
    """Returns whether a request can name the host, the port and the path; raises :class:`ValueError` where not."""
    host = str(parts.hostname or "").encode("idna")
    return bool(host) and parts.port != 0 and parts.path.isascii() and not _BLANK.search(parts.netloc + parts.path)


def redact_address(url: str) -> str:
    """Returns an address for messages: without name, password, query and fragment."""
    return re.split(r"[?#]", re.sub(r"^(.*//)?.*@", r"\1", url, flags=re.DOTALL))[0]


def is_private(host: str) -> bool:
    """Returns whether a name or address leads to this machine alone."""
    name = host.strip("[]").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name.partition("%")[0]).is_loopback
    except ValueError:
        return False


def open_socket(host: str, port: int) -> socket.socket:
    """Opens a socket that listens at an address.

    Raises:
        UsageError: The address is in use, forbidden, not of this machine, or none; the message says what to do.
    """
    if not 0 <= port < 65536:
        raise UsageError(f"cannot listen at {host}:{port}: ports are 0 to 65535; 0 is any that is free")
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # TCP by name: only then asyncio sends short messages immediately, and not 40 ms later.
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((str(address[0]), port))
            listening.listen(BACKLOG)
        except BaseException:
            listening.close()
            raise
        return listening
    except (OSError, UnicodeError) as error:
        number = error.errno if isinstance(error, OSError) else None
        if number == errno.EADDRINUSE:
            why = "something listens there already; give another port, or 0 for any that is free"
        elif number == errno.EACCES:
            why = "that is not allowed; give a port from 1024 on, or 0 for any that is free"
        else:
            text = (error.strerror if isinstance(error, OSError) else None) or error
            why = f"{text}; give an address of this machine: 127.0.0.1, or 0.0.0.0 for all it has"
        raise UsageError(f"cannot listen at {host}:{port}: {why}") from error
