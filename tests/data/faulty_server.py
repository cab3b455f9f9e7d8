"""A real HTTP server that misbehaves on demand."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PAGE = b"<!DOCTYPE html><html>Too many users have viewed this file</html>"
BODIES: dict[str, tuple[dict[str, str], bytes]] = {
    "page": ({"Content-Type": "text/html; charset=utf-8", "Content-Length": str(len(PAGE))}, PAGE),
    "XML error": ({}, b"<?xml version='1.0'?><Error>expired</Error>"),
    "empty": ({"Content-Length": "0"}, b""),
}
"""Answers that have nothing of the file."""
FAILURES = ("404", "403", "416", "429", "500", "503")
FAULTS = (
    *("honest", "ignores ranges", "ignores conditions", "range too early", "range too late", "caps ranges", "drops"),
    *("drops early", "announces too much", "announces too little", "sends too much in chunks", "no length"),
    *("no length, drops", "chunks", "chunks, drops", "no version", "no version, drops", "hangs up", "redirects"),
    *("redirects in a loop", "page in disguise", "encoded", "nonsense instead of HTTP", *BODIES, *FAILURES),
)
"""What one answer can be like; any of them may come in any order."""


@dataclass
class Faulty:
    """What the server has, and how it will answer: one entry of ``script`` a request, then honestly."""

    content: dict[str, bytes] = field(repr=False)
    script: deque[str] = field(default_factory=deque)
    headers: dict[str, str] = field(default_factory=dict)
    """Sent with failures, e.g. ``Retry-After``."""
    seen: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    """Path and headers of each request."""
    url: str = ""
    go: threading.Event = field(default_factory=threading.Event)
    """What an answer with the fault ``"waits"`` waits for."""
    quit: threading.Event = field(default_factory=threading.Event)


@contextlib.contextmanager
def serving(faulty: Faulty) -> Iterator[Faulty]:
    handler = type("Handler", (_Handler,), {"faulty": faulty})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    faulty.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield faulty
    finally:
        faulty.quit.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    faulty: Faulty
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.close_connection = True
        with contextlib.suppress(ConnectionError):
            self._answer()

    def _answer(self) -> None:
        faulty = self.faulty
        faulty.seen.append((self.path, dict(self.headers)))
        path = self.path.partition("?")[0].removeprefix("http://other.example")
        content = faulty.content.get(path)
        fault = faulty.script.popleft() if faulty.script and path == self.path else "honest"
        if content is None or fault in FAILURES:
            return self._fail(404 if content is None else int(fault))
        if fault == "waits":
            faulty.go.wait(30)
        match fault:
            case "hangs up":
                return
            case "nonsense instead of HTTP":
                self.wfile.write(b"220 this is a mail server\r\n")
            case "redirects":
                self._head(302, {"Location": f"{self.path}?again", "Content-Length": "0"})
            case "redirects in a loop":
                faulty.script.extendleft(["redirects in a loop"] if len(faulty.seen) % 12 else [])
                self._head(302, {"Location": self.path, "Content-Length": "0"})
            case "page in disguise":
                body = b"\n<html>log in</html>" + bytes(max(0, len(content) - 20))
                self._head(200, {"Content-Length": str(len(content))}, body)
            case "encoded":
                self._head(200, {"Content-Encoding": "gzip", "Content-Length": str(len(content))}, content)
            case "silent":
                self.faulty.quit.wait(60)
            case "trickles headers":
                self._trickle(b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 1000)
            case "trickles":
                self._head(200, {"Content-Length": str(len(content))})
                self._trickle(content)
            case _ if fault in BODIES:
                self._head(200, *BODIES[fault])
            case _:
                self._serve(content, fault)

    def _serve(self, content: bytes, fault: str) -> None:
        tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
        headers = {"Content-Type": "application/octet-stream"}
        if not fault.startswith("no version"):
            headers["ETag"] = tag
        start, status = 0, 200
        asked = self.headers.get("Range")
        met = fault == "ignores conditions" or self.headers.get("If-Range", tag) == tag
        if asked and fault != "ignores ranges" and met:
            start, status = int(asked.removeprefix("bytes=").rstrip("-")), 206
            if start >= len(content):
                return self._head(416, {"Content-Range": f"bytes */{len(content)}", "Content-Length": "0"})
        body = content[start:]
        if fault.startswith("range too") and status == 206:
            start = start // 2 if fault == "range too early" else min(start + 10, len(content) - 1)
            body = content[start:]
        if fault == "caps ranges" and status == 206:
            body = body[: len(body) // 2 + 1]
        if status == 206:
            headers["Content-Range"] = f"bytes {start}-{start + len(body) - 1}/{len(content)}"
        length = len(body) + {"announces too much": 50, "announces too little": -min(50, len(body))}.get(fault, 0)
        if fault in ("drops", "no length, drops", "no version, drops", "chunks, drops"):
            body = body[: len(body) * 2 // 3]
        if fault == "drops early":
            body = body[:5]
        if fault == "sends too much in chunks":
            body += b"and more"
        if fault.startswith("chunks") or fault.endswith("in chunks"):
            pieces = [body[i : i + 9_000] for i in range(0, len(body), 9_000)]
            packed = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
            return self._head(
                status,
                {**headers, "Transfer-Encoding": "chunked"},
                packed + (b"" if fault == "chunks, drops" else b"0\r\n\r\n"),
            )
        if not fault.startswith("no length"):
            headers["Content-Length"] = str(length)
        self._head(status, headers, body)

    def _fail(self, status: int) -> None:
        self._head(status, {"Content-Length": "5", **self.faulty.headers}, b"sorry")

    def _head(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _trickle(self, content: bytes) -> None:
        for i in range(len(content)):
            if self.faulty.quit.wait(0.02):
                return
            self.wfile.write(content[i : i + 1])
            self.wfile.flush()
