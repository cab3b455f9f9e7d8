"""Addresses of servers, which have no secrets in them."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import SplitResult, urlsplit

from envsuite.core.errors import UsageError

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
