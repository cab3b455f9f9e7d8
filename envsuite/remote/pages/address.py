"""The address of a page: options of the command line, and the socket that listens there."""

from __future__ import annotations

import argparse
import socket
from dataclasses import dataclass

from envsuite.core.addresses import is_private

HOST = "127.0.0.1"
PORT = 8765


@dataclass(frozen=True)
class Address:
    """The address at which a socket listens."""

    url: str
    private: bool
    """Whether only this machine can connect."""
    hosts: tuple[str, ...] | None
    """Host names of requests that are answered besides those of this machine; ``None`` for any."""

    @property
    def whom(self) -> str:
        """Who can connect, for people."""
        return "this machine alone" if self.private else "WHOEVER REACHES THIS ADDRESS, without a password"


def add_arguments(parser: argparse._ArgumentGroup) -> None:
    """Adds the options ``--host`` and ``--port``."""
    parser.add_argument("--host", default=HOST, help=f"the address to listen at (default: {HOST}, this machine only)")
    parser.add_argument("--port", type=int, default=PORT, help=f"port, 0 for any free one (default: {PORT})")


def address_of(listener: socket.socket, host: str) -> Address:
    """Returns the address of a listening socket that was opened for ``host``."""
    address, port = listener.getsockname()[:2]
    name = f"[{host}]" if ":" in host else host
    private = is_private(address)
    return Address(f"http://{name}:{port}/", private, (name,) if private else None)
