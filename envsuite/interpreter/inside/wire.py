"""Messages between a program and its sandbox: JSON with its length before it. Read without trust, and up to a size."""

from __future__ import annotations

import json
import socket
import struct
import time
from typing import Any

_LENGTH = struct.Struct("<Q")
_CHUNK = 1 << 16


class GarbledMessage(Exception):
    """Raised for bytes that are no message."""


def send(channel: socket.socket, message: dict[str, Any]) -> None:
    """Writes one message; text may have half surrogates.

    Raises:
        OSError: The other end is closed.
    """
    body = json.dumps(message).encode("ascii")
    channel.sendall(_LENGTH.pack(len(body)) + body)


def receive(channel: socket.socket, limit: int, until: float | None = None) -> dict[str, Any]:
    """Waits for one message.

    Args:
        channel: A socket.
        limit: Most bytes of a message.
        until: When to give up (``time.monotonic``); ``None`` waits without limit.

    Raises:
        EOFError: The other end is closed.
        TimeoutError: The time is up.
        GarbledMessage: The message is too long, or is not a JSON object.
    """
    (length,) = _LENGTH.unpack(_exactly(channel, _LENGTH.size, until))
    if length > limit:
        raise GarbledMessage(f"a message of {length} bytes; at most {limit} are read")
    try:
        message = json.loads(_exactly(channel, length, until))
    except (ValueError, RecursionError) as error:
        raise GarbledMessage("a message that is not JSON") from error
    if not isinstance(message, dict):
        raise GarbledMessage("a message that is not a JSON object")
    return message


def _exactly(channel: socket.socket, size: int, until: float | None) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        if until is not None:
            channel.settimeout(max(until - time.monotonic(), 0.001))
        try:
            part = channel.recv(min(size - len(parts), _CHUNK))
        except ConnectionError:
            part = b""
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)
