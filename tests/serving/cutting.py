"""A proxy that cuts connections when told to."""

from __future__ import annotations

import contextlib
import socket
import threading
import urllib.parse
from collections.abc import Iterator


class Cutter:
    """Passes bytes between clients and a server.

    Attributes:
        url: Where clients connect.
        cut: How many of the coming answers are to be lost: the request is passed on, the connection ends instead of
            bringing its answer.
        lost: How many were.
    """

    def __init__(self, url: str) -> None:
        parts = urllib.parse.urlsplit(url)
        self._target = (parts.hostname, parts.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.cut = self.lost = 0
        self._counting = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                for source, target, back in ((client, server, False), (server, client, True)):
                    threading.Thread(target=self._pass, args=(source, target, back), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, back: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if back and self._loses():
                    break
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _loses(self) -> bool:
        with self._counting:
            if not self.cut:
                return False
            self.cut -= 1
            self.lost += 1
            return True


@contextlib.contextmanager
def cutting(url: str) -> Iterator[Cutter]:
    cutter = Cutter(url)
    try:
        yield cutter
    finally:
        cutter.close()
