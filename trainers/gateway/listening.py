"""The gateway's server at further sockets, such as those inside sandboxes."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakSet

if TYPE_CHECKING:
    import uvicorn

CONNECTIONS = 32
"""Most connections at a time of one socket; further ones are closed at once."""
_TICK = 0.01
Listen = Callable[[socket.socket], Callable[[], None]]
"""Has a server answer at a listening socket also; returns a function that ends this."""


class _Closed(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


def listener(server: uvicorn.Server) -> Listen:
    """Returns a function with which a running server answers at further sockets; any thread may call it.

    A client at such a socket is connected to the server itself: what it has read and whether it has gone is seen.
    """

    def listen(listening: socket.socket) -> Callable[[], None]:
        while not server.started:
            time.sleep(_TICK)
        loop, here = server.servers[0].get_loop(), WeakSet[asyncio.BaseProtocol]()

        def make_protocol() -> asyncio.BaseProtocol:
            if len(here & server.server_state.connections) >= CONNECTIONS:
                return _Closed()
            protocol: asyncio.BaseProtocol = server.config.http_protocol_class(  # type: ignore[call-arg]
                config=server.config, server_state=server.server_state, app_state=server.lifespan.state
            )
            here.add(protocol)
            return protocol

        creating = loop.create_server(make_protocol, sock=listening)
        socket_server = asyncio.run_coroutine_threadsafe(creating, loop).result()

        def end() -> None:
            loop.call_soon_threadsafe(socket_server.close)

        return end

    return listen
