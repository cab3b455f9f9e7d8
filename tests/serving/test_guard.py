"""Every server of the project: pages of others, clients without a token, and slow clients do no harm to others."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from families import tokenizer_of
from flask import Flask
from hypothesis import given
from hypothesis import strategies as st
from talking import Place

from envsuite.core.addresses import open_socket
from envsuite.interpreter.server import InterpreterSettings as InterpreterSettings
from envsuite.interpreter.server import serving as interpreting
from envsuite.remote import listening
from envsuite.remote.guard import RequestGuard
from envsuite.remote.pages.serving import guard_page
from envsuite.remote.wsgi import WSGIServer
from envsuite.serving.bridges.server import bridging
from envsuite.serving.bridges.settings import BridgeSettings as BridgeSettings
from envsuite.serving.server import serving as environments
from envsuite.serving.settings import ServerSettings
from trainers.report.server import ServeSettings, make_server

pytestmark = pytest.mark.seconds

TOKEN = "a-token-of-the-test"


class Running(NamedTuple):
    """A server that runs."""

    url: str
    path: str
    """A path that answers 200 to GET with the token."""
    needs_token: bool = True
    upload: str | None = None
    """A path that takes a long body with the token."""


@contextlib.contextmanager
def _gateway(tmp_path: Any, smol: Any) -> Iterator[Place]:
    place = Place(tokenizer_of(smol, "smollm2"))
    with place.open_at_an_address(token=TOKEN):
        yield place


@contextlib.contextmanager
def _page(tmp_path: Any, smol: Any) -> Iterator[Running]:
    app = Flask("page")
    guard_page(app, ("localhost",), "")
    app.add_url_rule("/", "show", lambda: "page", methods=["GET", "POST"])
    socket_ = open_socket("127.0.0.1", 0)
    threading.Thread(target=WSGIServer(app, socket_, 1 << 22, threads=2).run, daemon=True).start()
    yield Running(f"http://127.0.0.1:{socket_.getsockname()[1]}", "/")


HTTP = ServerSettings(("TextCraft-v0",), port=0, workers=0, token=TOKEN)
BRIDGE = BridgeSettings(("TextCraft-v0",), port=0, token=TOKEN)
INTERPRETER = InterpreterSettings(interpreter="unisolated", port=0, token=TOKEN)
SERVERS: dict[str, tuple[Callable[[Any, Any], Any], Any]] = {
    "serve http": (lambda *_: environments(HTTP), ("/v1/environments", True, "/v1/batch")),
    "serve interpreter": (lambda *_: interpreting(INTERPRETER), ("/healthz", False, "/v1/sessions")),
    "report --serve": (
        lambda folder, _: listening.in_thread(make_server(ServeSettings(folder, port=0, token=TOKEN))),
        ("/now", True, "/login"),
    ),
    "serve bridge": (lambda *_: bridging(BRIDGE), ("/openenv/TextCraft-v0/health", True, "/mcp/TextCraft-v0")),
    "gateway": (_gateway, ("/v1/models", True, "/v1/chat/completions")),
    "play --browser": (_page, ("/", False)),
}
"""How each is started, and the fields of ``Running`` after its address."""


@pytest.fixture(params=SERVERS)
def running(request: Any, tmp_path: Any, smol: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """Each server, with short deadlines."""
    monkeypatch.setattr(listening, "HEADER_SECONDS", 1.0)
    monkeypatch.setattr(listening, "BODY_SECONDS", 1.5)
    monkeypatch.setattr(listening, "MAINTENANCE_SECONDS", 0.2)
    monkeypatch.setattr(listening, "connections_limit", lambda: 100)
    make, fields = SERVERS[request.param]
    with make(tmp_path, smol) as server:
        yield Running(server.url, *fields)


def asked(running: Running, token: str | None = TOKEN, method: str = "GET", **headers: str) -> int:
    """The status of a request."""
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(running.url).netloc, timeout=20)
    sent = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        connection.request(method, running.path, headers={**sent, **headers})
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


def opened(running: Running, source: str = "127.0.0.1") -> socket.socket:
    """A connection, from an address of this machine."""
    parts = urllib.parse.urlsplit(running.url)
    return socket.create_connection((str(parts.hostname), parts.port), 20, (source, 0))


def ended(client: socket.socket) -> bool:
    """Whether the server ends a connection soon."""
    client.settimeout(8.0)
    with contextlib.suppress(ConnectionError):
        while client.recv(65536):
            pass
    return True


def test_names_of_this_machine_and_pages_of_the_server_are_answered(running):
    port = urllib.parse.urlsplit(running.url).port
    for host in ("127.0.0.1", f"localhost:{port}", f"[::1]:{port}", "LOCALHOST", "run.localhost:80"):
        assert asked(running, Host=host) == 200
    assert asked(running, Host="localhost:1", Origin="http://localhost:1") == 200
    assert asked(running, Host="localhost", **{"Sec-Fetch-Site": "same-origin"}) == 200


@pytest.mark.parametrize("token", [TOKEN, None])
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Host": "127.0.0.1.evil.example:80"}, 421),
        ({"Host": "localhost.evil.example"}, 421),
        ({"Host": "192.168.0.7"}, 421),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost.evil.example"}, 403),
        ({"Host": "evil.example", "Origin": "http://evil.example"}, 421),
    ],
)
def test_the_page_of_another_site_is_refused(running, headers, status, token):
    assert asked(running, token, **headers) == status


def test_a_form_of_another_site_without_an_origin_is_refused(running):
    assert asked(running, None, "POST", **{"Sec-Fetch-Site": "cross-site"}) == 403


def test_without_the_token_nothing_is_answered(running):
    if running.needs_token:
        assert asked(running, None) == 401 and asked(running, "wrong") == 401
    assert asked(running) == 200


def drip(client: socket.socket, head: bytes, seconds: float) -> None:
    """Sends a head, then byte after byte; fails where the connection is there after so many seconds."""
    client.sendall(head)
    end = time.monotonic() + seconds
    with contextlib.suppress(ConnectionError):
        while time.monotonic() < end:
            client.sendall(b"a")
            time.sleep(0.1)
        pytest.fail("the connection goes on")


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nX-A: "])
def test_a_header_that_does_not_come_ends_its_connection(running, sent):
    with opened(running) as client:
        client.sendall(sent)
        assert ended(client)
    assert asked(running) == 200


def test_a_header_that_drips_ends_its_connection(running):
    with opened(running) as client:
        drip(client, b"GET / HTTP/1.1\r\nX-A: ", 8)


def test_a_body_that_drips_ends_its_connection(running):
    if running.upload is None:
        return
    head = f"POST {running.upload} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
    head += "Content-Type: application/json\r\nContent-Length: 9000\r\n\r\n"
    with opened(running) as client:
        drip(client, head.encode(), 12)


def test_a_body_without_the_token_is_refused_before_it_comes(running):
    if running.upload is None or running.upload == "/login":
        return
    with opened(running) as client:
        head = f"POST {running.upload} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        client.sendall(f"{head}Content-Length: 900000\r\n\r\n".encode() + b"x" * 1000)
        client.settimeout(5)
        assert client.recv(1000).split(b" ")[1] == b"401"


def test_many_slow_clients_leave_others_served(running, monkeypatch):
    monkeypatch.setattr(listening, "HEADER_SECONDS", 60.0)
    for source in ("127.0.0.1", "127.0.0.2"):
        with contextlib.ExitStack() as stack:
            for _ in range(150):
                client = stack.enter_context(opened(running, source))
                with contextlib.suppress(OSError):
                    client.sendall(b"GET /x HTTP/1.1\r\nX-A: ")
            time.sleep(0.5)
            began = time.monotonic()
            assert asked(running) == 200 and time.monotonic() - began < 2


@given(
    st.sampled_from(["GET", "POST"]), st.text(max_size=8),
    st.dictionaries(st.sampled_from(["host", "origin", "sec-fetch-site", "authorization"]), st.text(max_size=12)),
)  # fmt: skip
def test_a_guard_lets_in_nobody_without_the_token(method, path, headers):
    refusal = RequestGuard(True, "another-long-token").refusal(method, path, headers.get)
    assert refusal is not None and refusal.status in (401, 403, 421)
