"""An HTTP server in a thread of this process, whose answers are those of a function."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[str, str, Any], tuple[int, object]]
"""Status and body, bytes or what JSON has, for method, path, and the JSON that was sent."""


@contextlib.contextmanager
def answering(answer: Answer) -> Iterator[str]:
    """The address of such a server."""

    class Handler(BaseHTTPRequestHandler):
        def answered(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            status, content = answer(self.command, self.path, json.loads(self.rfile.read(length) or b"null"))
            body = content if isinstance(content, bytes) else json.dumps(content).encode()
            with contextlib.suppress(BrokenPipeError):  # of a client that has stopped waiting
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        do_GET = do_POST = answered

        def log_message(self, *_: object) -> None:
            """Logs nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server, contextlib.ExitStack() as stack:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        stack.callback(server.shutdown)
        yield f"http://127.0.0.1:{server.server_port}"
