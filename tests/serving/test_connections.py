from __future__ import annotations

import contextlib
import resource
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import orjson
import pytest
from raw import ask, connect, everything, new
from waiting import until

from envsuite.core.addresses import open_socket
from envsuite.remote import listening
from envsuite.remote.wsgi import WSGIServer

Serve = Callable[..., WSGIServer]
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts a server that answers all requests with so many bytes."""
    servers: list[tuple[WSGIServer, threading.Thread]] = []

    def start(size: int = 5, limit: int | None = None) -> WSGIServer:
        def fill(environ: object, start_response: Callable[..., object]) -> list[bytes]:
            start_response("200 OK", [("Content-Length", str(size))])
            return [b" " * size]

        server = WSGIServer(fill, open_socket("127.0.0.1", 0), 1024, threads=2, quick=lambda path: True, limit=limit)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        servers.append((server, thread))
        return server

    yield start
    for server, thread in servers:
        server.stop()
        thread.join()


def succeeds(client: socket.socket) -> bool:
    """Whether a request on the connection succeeds."""
    client.sendall(HEALTH)
    answer = client.recv(1000)
    while answer.endswith(b"\r\n\r\n"):
        answer += client.recv(1000)
    return answer.startswith(b"HTTP/1.1 200 ")


def test_a_connection_beyond_the_limit_is_told_when_to_come_back_and_not_reset(start):
    running = start()
    running._http.limit = 2
    long = b"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000000\r\n\r\n" + b" " * 5_000_000
    with connect(running.url) as first, connect(running.url) as second:
        assert succeeds(first) and succeeds(second)
        for sent in (HEALTH, long):
            with connect(running.url) as third:
                third.sendall(sent)  # all of it is taken in, or this would raise
                head, _, body = everything(third).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 503 ") and b"\r\nretry-after: 1" in head.lower()
            assert b"\r\ncontent-type: application/problem+json\r\n" in head.lower()
            told = orjson.loads(body)
            assert told["type"] == "urn:envsuite:problem:connections" and told["retry_after"] == 1
        assert succeeds(first) and succeeds(second)
    until(lambda: not running._http.connections)
    text = ask(running.url, "GET", "/metrics").raw.decode()
    assert "\nenvsuite_connections_refused_total 2\n" in text


def test_beyond_what_can_be_refused_at_a_time_connections_are_closed(serve, monkeypatch):
    monkeypatch.setattr(listening, "REFUSED", 2)
    server = serve(limit=1)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connect(server.url)) for _ in range(1)]
        assert succeeds(clients[0])
        clients += [stack.enter_context(connect(server.url)) for _ in range(4)]
        for client in clients[1:3]:
            client.sendall(HEALTH)
            assert everything(client).startswith(b"HTTP/1.1 503 ")
        until(lambda: len(server.connections) < 3)
        assert succeeds(clients[0])


@pytest.mark.parametrize(
    ("sent", "status"),
    [(b"GET / HTTP/1.1\r\nX-A: " + b"a" * 2_000_000, 431), (b"nonsense\r\n\r\n" + b"a" * 2_000_000, 400)],
)
def test_what_is_no_request_is_answered_and_the_client_that_stays_is_cut_off(serve, monkeypatch, sent, status):
    monkeypatch.setattr(listening, "REFUSED_SECONDS", 0.3)
    monkeypatch.setattr(listening, "MAINTENANCE_SECONDS", 0.1)
    server = serve()
    with connect(server.url) as client:
        client.sendall(sent)
        head, _, body = everything(client).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 %d " % status) and orjson.loads(body)["status"] == status
        until(lambda: not server.connections)


def test_an_idle_connection_makes_room_for_another_one(serve, monkeypatch):
    monkeypatch.setattr(listening, "IDLE_SECONDS", 0.2)
    server = serve(limit=2)
    with connect(server.url) as first, connect(server.url) as second:
        assert succeeds(first) and succeeds(second)
        time.sleep(0.3)
        assert succeeds(second)
        with connect(server.url) as third:
            assert succeeds(third) and succeeds(second)
            assert not first.recv(1000)


def test_connections_wait_while_the_process_may_open_no_more_files(serve):
    server = serve()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with connect(server.url) as first:
        assert succeeds(first)
        second = socket.socket()
        with second:
            try:
                with socket.socket() as probe:
                    number = probe.fileno()
                resource.setrlimit(resource.RLIMIT_NOFILE, (number, hard))
                second.connect(first.getpeername())
                time.sleep(0.2)
                assert succeeds(first)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            second.settimeout(10)
            assert succeeds(second)


def test_an_answer_longer_than_the_system_takes_at_once_is_sent_whole(start):
    running = start("vector_worlds:Rough-v0")
    session = new(running.url, environment="vector_worlds:Rough-v0")
    ask(running.url, "POST", f"{session}/reset", {"number": 1, "options": {"task_id": "a"}})
    body = orjson.dumps({"number": 2, "calls": [{"name": "do", "arguments": {"command": "long 5000000"}}]})
    with connect(running.url) as client:
        head = f"POST {session}/step HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        client.sendall(f"{head}Content-Length: {len(body)}\r\nContent-Type: application/json\r\n\r\n".encode() + body)
        time.sleep(0.2)
        answer = everything(client)
    assert answer.startswith(b"HTTP/1.1 200 ") and answer.count(b"x") >= 5_000_000


@pytest.mark.parametrize("leaves", [True, False])
def test_a_client_that_does_not_read_a_last_answer_ends_its_own_connection_only(serve, monkeypatch, leaves):
    monkeypatch.setattr(listening, "CHANNEL_SECONDS", 1.0)
    monkeypatch.setattr(listening, "MAINTENANCE_SECONDS", 0.1)
    server = serve(20_000_000)
    with connect(server.url) as client:
        client.sendall(b"POST /v1/sessions/x/step HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        until(lambda: any(each.transport.get_write_buffer_size() for each in server.connections))
        if leaves:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close() resets
            client.close()
        until(lambda: not server.connections)


def test_a_process_that_may_open_few_files_serves_few_connections():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
        few = listening.connections_limit()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert few + listening.REFUSED + listening.OTHER_FILES == 1024


def test_a_body_that_breaks_off_is_no_request(serve, monkeypatch):
    server = serve()
    calls: list[object] = []
    monkeypatch.setattr(server, "_call", calls.append)
    with connect(server.url) as client:
        client.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n12345")
    until(lambda: not server.connections)
    assert not calls


def test_a_server_that_has_ended_can_be_told_to_end(start):
    running = start()
    running.stop()
    until(lambda: running._http.ended)
    running.stop()
