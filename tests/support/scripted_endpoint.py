"""An endpoint whose answers are scripted: HTTP on a real socket, with no model behind it.

For faults that a real server does not have on demand; ``test_openai_server.py`` has real ones.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

NAME = "scripted"
AGENT = """
def play(task, client):
    messages = [{"role": "user", "content": task.text}]
    while not client.env.done:
        said = client.chat(messages)
        command = said["content"].partition("<action>")[2].partition("</action>")[0]
        messages += [said, {"role": "user", "content": client.env.type(command)}]
"""
"""File of an agent that plays a text environment by what the model says in ``<action>``."""
Script = Callable[[dict[str, Any]], Any]


def completion(content: str | None = None, *, calls: Any = None, model: str = NAME, **changes: Any) -> dict[str, Any]:
    """A chat completion; ``calls`` are pairs of a name and arguments as text."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if calls is not None:
        message["tool_calls"] = [
            {"id": f"call_{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for n, (name, arguments) in enumerate(calls)
        ]
    return {
        "id": "x", "object": "chat.completion", "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}, **changes,
    }  # fmt: skip


class ScriptedEndpoint:
    """Use as a context manager.

    Args:
        script: Maps a request to the body of its answer, or to (status, body, headers); bytes are sent as they are, and
            ``None`` breaks the connection off in the middle of an answer.
    """

    def __init__(self, script: Script) -> None:
        self.script = script
        self.asked: list[dict[str, Any]] = []
        self.headers: list[Mapping[str, str]] = []
        self.most = 0
        """Most requests that were there at a time."""
        self._now = 0
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with outer._lock:
                    outer.asked.append(body)
                    outer.headers.append(dict(self.headers))
                    outer._now += 1
                    outer.most = max(outer.most, outer._now)
                try:
                    if self.path != "/v1/chat/completions":
                        self._send(404, {"error": {"message": "no such path"}}, {})
                        return
                    said = outer.script(body)
                finally:
                    with outer._lock:
                        outer._now -= 1
                self._send(*(said if isinstance(said, tuple) else (200, said, {})))

            def _send(self, status: int, said: Any, headers: Mapping[str, str]) -> None:
                sent = said if isinstance(said, bytes) else json.dumps(said).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(sent) + (100 if said is None else 0)))
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(sent)
                self.close_connection = said is None

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> ScriptedEndpoint:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._server.shutdown()
        self._server.server_close()
