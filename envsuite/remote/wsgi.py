"""Flask applications behind uvicorn: the guard before a body is stored, and threads for what takes long."""

from __future__ import annotations

import asyncio
import io
import socket
import sys
import threading
import urllib.parse
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any

from envsuite.remote.guard import RequestGuard
from envsuite.remote.listening import HttpServer, Message, Receive, Send, send_problem
from envsuite.remote.protocol import HttpProblem

WSGIApplication = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
Answer = tuple[int, list[tuple[bytes, bytes]], bytes]


class DaemonThreads:
    """Threads that execute calls, and do not keep the program from ending as those of ``ThreadPoolExecutor`` do.

    Args:
        count: Number of threads.
    """

    def __init__(self, count: int) -> None:
        self._calls: SimpleQueue[tuple[Future[Answer], Callable[[], Answer]] | None] = SimpleQueue()
        self._count = count
        for _ in range(count):
            threading.Thread(target=self._work, name="envsuite-request", daemon=True).start()

    def submit(self, call: Callable[[], Answer]) -> Future[Answer]:
        """Has a thread make a call."""
        future: Future[Answer] = Future()
        self._calls.put((future, call))
        return future

    def close(self) -> None:
        """Ends the threads, after their calls."""
        for _ in range(self._count):
            self._calls.put(None)

    def _work(self) -> None:
        while (entry := self._calls.get()) is not None:
            future, call = entry
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:  # whatever it is, it is raised where the call is awaited
                    future.set_exception(error)


class WSGIServer(HttpServer):
    """Serves a WSGI application until it is stopped.

    Args:
        app: The WSGI application.
        listening: A socket that listens.
        max_body: Size limit of a body in bytes.
        threads: Number of requests executed at a time.
        guard: Refuses requests by their headers, before a body is read.
        quick: Whether a request for a path takes microseconds; such ones are executed by the thread that reads.
        slow: Whether a request for a path may take long; such ones have threads of their own.
        settings: Further ones of :class:`HttpServer`.
    """

    def __init__(
        self,
        app: WSGIApplication,
        listening: socket.socket,
        max_body: int,
        *,
        threads: int,
        guard: RequestGuard | None = None,
        quick: Callable[[str], bool] = lambda path: False,
        slow: Callable[[str], bool] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(self._answer, listening, **settings)
        self._app, self._max_body, self._guard, self._quick, self._slow = app, max_body, guard, quick, slow
        self._threads = DaemonThreads(threads)
        self._slow_threads = None if slow is None else DaemonThreads(threads)

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serves until :meth:`stop`, then finishes running requests."""
        try:
            super().run(sockets)
        finally:
            self._threads.close()
            if self._slow_threads is not None:
                self._slow_threads.close()

    async def _answer(self, scope: Message, receive: Receive, send: Send) -> None:
        # Names with "_" could stand for others with "-".
        pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        headers = {name: value for name, value in pairs if "_" not in name}
        path = scope["path"]
        problem = None if self._guard is None else self._guard.refusal(scope["method"], path, headers.get)
        body = problem or await self._read(headers, receive)
        if isinstance(body, HttpProblem):
            await send_problem(body, receive, send)
            return
        if body is None:
            return
        call = partial(self._call, _environ(scope, headers, body))
        if self._quick(path):
            status, fields, answer = call()
        else:
            is_slow = self._slow is not None and self._slow(path)
            threads = self._slow_threads if self._slow_threads is not None and is_slow else self._threads
            status, fields, answer = await asyncio.wrap_future(threads.submit(call))
        await send({"type": "http.response.start", "status": status, "headers": fields})
        await send({"type": "http.response.body", "body": answer})

    async def _read(self, headers: dict[str, str], receive: Receive) -> bytes | HttpProblem | None:
        """Returns the body; ``None`` where the client has left."""
        too_long = HttpProblem(413, "too-large", f"the body has more than {self._max_body} bytes")
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > self._max_body:
            return too_long
        parts, size, more = [], 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            parts.append(message["body"])
            size, more = size + len(parts[-1]), message["more_body"]
            if size > self._max_body:
                return too_long
        return b"".join(parts)

    def _call(self, environ: dict[str, Any]) -> Answer:
        answer: list[Any] = []

        def start(status: str, headers: list[tuple[str, str]], error: object = None) -> None:
            answer[:] = int(status[:3]), [(name.encode(), value.encode("latin-1")) for name, value in headers]

        parts = self._app(environ, start)
        try:
            body = b"".join(parts)
            return answer[0], answer[1], body
        finally:
            if (close := getattr(parts, "close", None)) is not None:
                close()


def _environ(scope: Message, headers: dict[str, str], body: bytes) -> dict[str, Any]:
    host, port = scope["server"] or ("", 0)
    return {
        **{f"HTTP_{name.upper().replace('-', '_')}": value for name, value in headers.items()},
        "REQUEST_METHOD": scope["method"], "SCRIPT_NAME": "", "QUERY_STRING": scope["query_string"].decode("latin-1"),
        "PATH_INFO": urllib.parse.unquote_to_bytes(scope["raw_path"]).decode("latin-1"),
        "CONTENT_TYPE": headers.get("content-type", ""), "CONTENT_LENGTH": str(len(body)),
        "REMOTE_ADDR": (scope["client"] or ("",))[0], "SERVER_NAME": host, "SERVER_PORT": str(port),
        "SERVER_PROTOCOL": f"HTTP/{scope['http_version']}", "wsgi.version": (1, 0), "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(body), "wsgi.errors": sys.stderr, "wsgi.multithread": True,
        "wsgi.multiprocess": False, "wsgi.run_once": False,
    }  # fmt: skip
