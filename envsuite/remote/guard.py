"""The guard of every server: how long clients may take, and which requests are answered, by their headers alone."""

from __future__ import annotations

import base64
import contextlib
import hmac
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from envsuite.core.addresses import is_private
from envsuite.remote.protocol import HttpProblem
from envsuite.remote.tokens import token_needed

HEADER_SECONDS = 10.0
"""Seconds in which the header of a request must have come: a connection's first one from when it was made."""
BODY_SECONDS = 60.0
"""Seconds in which the body of a request must have come."""
UNPROVEN_SECONDS = 0.2
"""Seconds that a connection has waited for its first whole request when it may make room for another one."""


@dataclass(frozen=True)
class RequestGuard:
    """Refuses requests without the token, and those that the page of another site makes in a browser.

    Where only this machine can connect, the header ``Host`` must be a name of this machine: a site whose name leads
    here would else count as this server's own.
    """

    private: bool
    """Whether only this machine can connect."""
    token: str | None = field(default=None, repr=False)
    """The token that clients send as ``Authorization: Bearer …``, or as the password of a user; ``None`` for none."""
    open_paths: Collection[str] = ()
    """Paths that need no token."""
    names: Collection[str] = ()
    """Further names of this machine that ``Host`` may have."""
    who: str = "server"
    """Word for the guarded server, for messages."""

    def refusal(self, method: str, path: str, header: Callable[[str], str | None]) -> HttpProblem | None:
        """Returns why a request is not answered; ``None`` if it is.

        Args:
            method: Its method.
            path: Its path.
            header: Returns a header of it by its name in lower case; ``None`` where there is none.
        """
        host = header("host") or ""
        name = re.sub(r":\d*$", "", host)
        if self.private and host and not is_private(name) and name not in self.names:
            detail = f"Host is {host[:200]!r}: this {self.who} answers at names of this machine only, like 127.0.0.1"
            return HttpProblem(421, "misdirected", detail, field="Host")
        origin, site = header("origin"), header("sec-fetch-site") or "none"
        foreign = origin not in (f"http://{host}", f"https://{host}") if origin else site not in ("same-origin", "none")
        if foreign and (origin or method not in ("GET", "HEAD")):
            who = (origin or site)[:200]
            return HttpProblem(403, "foreign-page", f"pages of {who} may not call this {self.who}", field="Origin")
        if self.token is None or path in self.open_paths:
            return None
        authorization = header("authorization")
        if hmac.compare_digest(_token(authorization or ""), self.token.encode()):
            return None
        return HttpProblem(401, "unauthorized", token_needed(self.who, authorization is not None))


def _token(authorization: str) -> bytes:
    """Returns the token in a header."""
    kind, _, value = authorization.partition(" ")
    if kind.lower() == "basic":
        with contextlib.suppress(ValueError):
            return base64.b64decode(value, validate=True).partition(b":")[2]
    return value.encode("utf-8", "surrogateescape") if kind.lower() == "bearer" else b""
