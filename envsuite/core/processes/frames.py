"""Messages between a program and its worker processes: length-prefixed frames over a socket pair, mostly pickles.

Both ends are processes of one program: nothing else can write to the socket, and nothing is read from disk.
"""

from __future__ import annotations

import io
import pickle
import socket
import struct
import time
from typing import Any

_LENGTH = struct.Struct("<Q")
_CHUNK = 1 << 18


def frame(messages: list[bytes]) -> bytes:
    """Encodes messages as one frame."""
    body = b"".join(messages)
    return _LENGTH.pack(len(body)) + body


def unpack(body: bytes) -> list[Any]:
    """Decodes the messages of one frame."""
    stream = io.BytesIO(body)
    messages = []
    while stream.tell() < len(body):
        messages.append(pickle.load(stream))
    return messages


def receive(channel: socket.socket, until: float | None = None) -> list[Any]:
    """Waits for a frame and returns its messages.

    Args:
        channel: A blocking socket.
        until: When to give up (``time.monotonic``); ``None`` waits without limit.

    Raises:
        EOFError: The other end is closed.
        TimeoutError: The time is up; a partial frame is lost.
    """
    return unpack(receive_body(channel, until))


def receive_body(channel: socket.socket, until: float | None = None) -> bytes:
    """Waits for a frame and returns its bytes: as :func:`receive`, for messages that are not pickles."""
    (length,) = _LENGTH.unpack(_exactly(channel, _LENGTH.size, until))
    return _exactly(channel, length, until)


def _exactly(channel: socket.socket, size: int, until: float | None) -> bytes:
    parts: list[bytes] = []
    while size:
        if until is not None:
            channel.settimeout(max(until - time.monotonic(), 0.001))
        part = channel.recv(min(size, _CHUNK))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


class Channel:
    """A non-blocking end of a socket pair: keeps unsent data in memory."""

    def __init__(self, channel: socket.socket) -> None:
        channel.setblocking(False)
        self.socket = channel
        self._in = bytearray()
        self._out = bytearray()

    @property
    def unsent(self) -> bool:
        """Whether data waits to be written."""
        return bool(self._out)

    def send(self, messages: list[bytes]) -> None:
        """Writes a frame, as far as the other end accepts it.

        Raises:
            OSError: The other end is closed.
        """
        self._out += frame(messages)
        self.flush()

    def flush(self) -> None:
        """Writes waiting data, as far as the other end accepts it.

        Raises:
            OSError: The other end is closed.
        """
        while self._out:
            try:
                count = self.socket.send(self._out[:_CHUNK])
            except BlockingIOError:
                return
            del self._out[:count]

    def receive(self) -> list[Any]:
        """Returns the messages that have arrived completely; ``[]`` for none.

        Raises:
            EOFError: The other end is closed, and everything that it sent has been returned.
        """
        at_end = False
        while True:
            try:
                part = self.socket.recv(_CHUNK)
            except BlockingIOError:
                break
            except ConnectionError:
                part = b""
            if not part:
                at_end = True
                break
            self._in += part
        messages = []
        while len(self._in) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._in)[0]
            if len(self._in) < end:
                break
            messages += unpack(bytes(self._in[_LENGTH.size : end]))
            del self._in[:end]
        if at_end and not messages:
            raise EOFError
        return messages
