"""A hub of models on this machine: what huggingface_hub asks a server, answered from folders, with faults on demand."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import orjson

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """Repositories by their names.

    Args:
        models: Folder of each repository.
    """

    def __init__(self, models: dict[str, Path]) -> None:
        self.models = models
        self.gated: set[str] = set()
        self.cut: set[str] = set()
        """Names of files whose transfer ends in the middle."""
        self.broken = False
        """Answers 500."""
        self.asked: list[str] = []
        self.url = ""

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of a request."""
        self.asked.append(path)
        if self.broken:
            return 500, {}, b"{}"
        head, _, rest = path.partition("?")[0].partition("/resolve/" if "/resolve/" in path else "/models/")
        if head == "/api":
            name, _, what = rest.partition("/revision/") if "/revision/" in rest else rest.partition("/tree/")
            listing = "/tree/" in rest
        else:
            name, what, listing = head.removeprefix("/"), rest.partition("/")[2], False
        if name not in self.models:
            return 401, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}, b"{}"
        if name in self.gated and head != "/api":
            return 403, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"}, b"{}"
        folder = self.models[name]
        names = sorted(file.name for file in folder.iterdir())
        if head == "/api" and listing:
            entries = [_entry(folder / file) for file in names]
            return 200, {"Content-Type": "application/json"}, orjson.dumps(entries)
        if head == "/api":
            body = {"id": name, "sha": COMMIT, "siblings": [{"rfilename": file} for file in names]}
            return 200, {"Content-Type": "application/json"}, orjson.dumps(body)
        if what not in names:
            return 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT}, b""
        content = (folder / what).read_bytes()
        return 200, {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": COMMIT}, content


def _entry(file: Path) -> dict[str, object]:
    content = file.read_bytes()
    oid = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    return {"type": "file", "path": file.name, "size": len(content), "oid": oid}


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """The hub at ``hub.url``, on the loopback interface."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(whole=False)

        def do_GET(self) -> None:
            self._answer(whole=True)

        def _answer(self, whole: bool) -> None:
            status, headers, body = hub.answer(self.path)
            cut = whole and status == 200 and Path(self.path.partition("?")[0]).name in hub.cut
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if whole:
                self.wfile.write(body[: len(body) // 2] if cut else body)
            self.close_connection = cut

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
