"""Answers of servers, which are bounded, when to ask again, and whether a proxy may be asked. Clients need httpx2."""

from __future__ import annotations

import math
import os
import time
from collections.abc import AsyncIterator, Mapping
from email.message import Message
from email.utils import mktime_tz, parsedate_tz
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx2

MOST_BYTES = 128 << 20
"""Most bytes of one answer that a client reads."""
_CODED = ("content-encoding", "content-length", "transfer-encoding")
_HERE = ("127.0.0.1", "localhost", "::1")


def too_long(url: str) -> str:
    """Returns the message for an answer that is not read to its end."""
    return f"{url} answers with more than {MOST_BYTES >> 20} MiB, which is no answer to this request"


def retry_after(headers: Mapping[str, str] | Message) -> float:
    """Returns the seconds that ``Retry-After`` names, as a number or as a time; 0 without a sensible one."""
    value = headers.get("Retry-After", "")
    try:
        when = parsedate_tz(value)
        seconds = float(value) if when is None else mktime_tz(when) - time.time()
    except (ValueError, IndexError, OverflowError):
        seconds = 0.0
    return max(0.0, seconds) if math.isfinite(seconds) else 0.0


def ask(client: httpx2.Client, method: str, url: str, **request: Any) -> httpx2.Response:
    """Sends a request; returns the answer, whose body is read.

    Raises:
        httpx2.TransportError: There is none, or it has more than :data:`MOST_BYTES`.
    """
    import httpx2

    body = bytearray()
    with client.stream(method, url, **request) as answer:
        for part in answer.iter_bytes():
            body += part
            if len(body) > MOST_BYTES:
                raise httpx2.ReadError(too_long(url))
    headers = [(name, value) for name, value in answer.headers.multi_items() if name not in _CODED]
    return httpx2.Response(answer.status_code, headers=headers, content=bytes(body), request=answer.request)


def answer_limits() -> dict[str, Any]:
    """Returns settings of an asynchronous client whose answers are bounded, also those that are read in parts."""
    import httpx2

    class Bounded(httpx2.AsyncByteStream):
        def __init__(self, answer: httpx2.Response) -> None:
            assert isinstance(answer.stream, httpx2.AsyncByteStream)
            self.stream, self.url = answer.stream, str(answer.url)

        async def __aiter__(self) -> AsyncIterator[bytes]:
            size = 0
            async for part in self.stream:
                size += len(part)
                if size > MOST_BYTES:
                    raise httpx2.ReadError(too_long(self.url))
                yield part

        async def aclose(self) -> None:
            await self.stream.aclose()

    async def limit(answer: httpx2.Response) -> None:
        if answer.headers.get("content-encoding", "identity") != "identity":
            raise httpx2.ReadError(f"{answer.url} answers compressed, which was not asked for")
        answer.stream = Bounded(answer)

    return {"headers": {"Accept-Encoding": "identity"}, "event_hooks": {"response": [limit]}}


def bypass_proxy_here() -> None:
    """Has HTTP clients of this process and its children ask this machine without the proxy of ``HTTP_PROXY``."""
    hosts = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    missing = [name for name in _HERE if name not in hosts.split(",")]
    has_proxy = any(name.lower().endswith("_proxy") and name.lower() != "no_proxy" for name in os.environ)
    if missing and has_proxy and hosts.strip() != "*":  # which means all hosts only where it stands alone
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join([*filter(None, [hosts]), *missing])
