"""Deadlines of uvicorn's connections: for headers, bodies, and clients that send neither."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, ClassVar

from envsuite.remote.guard import BODY_SECONDS, HEADER_SECONDS, UNPROVEN_SECONDS

MOST_WAITING = 512
"""Connections that may wait for a whole request; of the address that has most, the oldest is closed."""


class TimedConnection(asyncio.Protocol):
    """A connection that ends where its client is too slow; to be mixed with a protocol of uvicorn."""

    unready: ClassVar[dict[TimedConnection, tuple[str, float]]]
    """Connections of one server that wait for a whole request, with their addresses and since when."""
    cycle: Any
    transport: Any
    _timer: asyncio.TimerHandle | None = None
    _in_body = False

    def __init_subclass__(cls) -> None:
        cls.unready = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begins to wait for a header."""
        super().connection_made(transport)
        self._wait(HEADER_SECONDS)
        self._make_room()

    def data_received(self, data: bytes) -> None:
        """Waits for the rest of a header or body."""
        super().data_received(data)
        in_header = self.cycle is None or self.cycle.response_complete
        in_body = not in_header and self.cycle.more_body
        if not (in_header or in_body) or self.transport.get_protocol() is not self:
            self._stop()
        elif self._timer is None or in_body != self._in_body:
            self._wait(BODY_SECONDS if in_body else HEADER_SECONDS)
        self._in_body = in_body

    def connection_lost(self, exc: Exception | None) -> None:
        """Waits no more."""
        self._stop()
        super().connection_lost(exc)

    def _wait(self, seconds: float) -> None:
        self._stop()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds, self.transport.abort)
        self.unready[self] = str((self.transport.get_extra_info("peername") or ("",))[0]), loop.time()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            del self.unready[self]

    def _make_room(self) -> None:
        late = asyncio.get_running_loop().time() - UNPROVEN_SECONDS
        while len(self.unready) > MOST_WAITING:
            busiest = Counter(address for address, _ in self.unready.values()).most_common(1)[0][0]
            oldest = next(connection for connection, (address, _) in self.unready.items() if address == busiest)
            if self.unready[oldest][1] > late:
                return
            oldest._stop()
            oldest.transport.abort()
