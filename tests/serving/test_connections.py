from __future__ import annotations

import contextlib
import resource
import socket
import struct
import time
from collections.abc import Callable, Iterator

import orjson
import pytest
from raw import ask, connect, everything, new
from waiting import until

from envsuite.remote import listening
from envsuite.remote.listening import Dispatcher, Listener
from envsuite.serving.server import EnvServer

Start = Callable[..., EnvServer]
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def listener() -> Iterator[Listener]:
    """A listener whose turns the test takes itself; all requests are answered with ``b"hello"``."""

    def hello(environ: object, start_response: Callable[..., object]) -> list[bytes]:
        start_response("200 OK", [("Content-Length", "5")])
        return [b"hello"]

    made = Listener(hello, "127.0.0.1", 0, 1024, threads=2, dispatcher=Dispatcher(lambda path: True))
    yield made
    made.shut()


@contextlib.contextmanager
def clients(listener: Listener, count: int) -> Iterator[list[socket.socket]]:
    """Connections that the system has taken, and the listener has not accepted yet."""
    with contextlib.ExitStack() as stack:
        address = listener.effective_host, int(listener.effective_port)
        yield [stack.enter_context(socket.create_connection(address, timeout=30)) for _ in range(count)]


def answered(client: socket.socket) -> bool:
    """Whether a request on the connection succeeds."""
    client.sendall(HEALTH)
    answer = b""
    while b'"ok"}' not in answer:
        answer += client.recv(1000) or b'"ok"}'
    return answer.startswith(b"HTTP/1.1 200 ")


def test_a_connection_beyond_the_limit_is_told_when_to_come_back_and_not_reset(start: Start) -> None:
    running = start()
    running._http.limit = 2
    long = b"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000000\r\n\r\n" + b" " * 5_000_000
    with connect(running.url) as first, connect(running.url) as second:
        for served in (first, second):
            assert answered(served)
        for sent in (HEALTH, long):
            with connect(running.url) as third:
                third.sendall(sent)  # all of it is taken in, or this would raise
                head, _, body = everything(third).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 503 ") and b"\r\nRetry-After: 1\r\n" in head
            assert b"\r\nContent-Type: application/problem+json\r\n" in head
            told = orjson.loads(body)
            assert told["type"] == "urn:envsuite:problem:connections" and told["retry_after"] == 1
        for served in (first, second):
            assert answered(served)
    until(lambda: not running._http.active_channels)
    text = ask(running.url, "GET", "/metrics").raw.decode()
    assert "\nenvsuite_connections_refused_total 2\n" in text


def test_beyond_what_can_be_refused_at_a_time_connections_wait_and_the_thread_sleeps(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "REFUSED", 2)
    listener.limit = 1
    with clients(listener, 5) as waiting:
        listener.turn()
        assert len(listener.active_channels) == 3
        began = time.monotonic()
        listener.turn(0.2)
        assert time.monotonic() - began >= 0.2, "woken by connections that it does not accept"
        for client in waiting[:3]:
            client.close()
        while len(listener.active_channels) != 2:
            listener.turn(0.1)
        waiting[3].sendall(HEALTH)
        listener.turn()
        assert waiting[3].recv(1000).startswith(b"HTTP/1.1 200 ")
        assert waiting[4].recv(1000).startswith(b"HTTP/1.1 503 ")


def test_a_client_that_was_refused_and_does_not_hang_up_is_cut_off(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "REFUSED_SECONDS", 0.1)
    listener.limit = 0
    with clients(listener, 1):
        listener.turn()
        assert len(listener.active_channels) == 1
        listener.maintenance(time.time() + 0.2)
        listener.turn(0.1)
        assert not listener.active_channels


def test_connections_wait_while_the_process_may_open_no_more_files(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "ACCEPT_PAUSE", 60.0)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with clients(listener, 1) as (client,):
        client.sendall(HEALTH)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (_first_free_file(), hard))
            listener.turn(0.5)
            assert not listener.active_channels
            began = time.monotonic()
            listener.turn(0.05)
            assert time.monotonic() - began >= 0.05, "asked again at once"
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        listener._accept_again = 0.0
        while not listener.active_channels:
            listener.turn(0.1)


def _first_free_file() -> int:
    """The number that the next file would get."""
    with socket.socket() as probe:
        return probe.fileno()


def test_an_answer_longer_than_the_system_takes_at_once_is_sent_whole(start: Start) -> None:
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


def test_a_client_that_leaves_in_the_middle_of_a_last_answer_ends_its_own_connection_only() -> None:
    def long(environ: object, start_response: Callable[..., object]) -> list[bytes]:
        start_response("200 OK", [("Content-Length", "20000000")])
        return [b" " * 20_000_000]

    listener = Listener(long, "127.0.0.1", 0, 1024, threads=2, dispatcher=Dispatcher(lambda path: True))
    try:
        with clients(listener, 1) as (client,):
            client.sendall(b"POST /v1/sessions/x/step HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            listener.turn()
            listener.turn()
            assert listener.writing()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close() resets
        until(lambda: listener.turn(0.1) or not listener.active_channels)
    finally:
        listener.shut()


def test_a_process_that_may_open_few_files_serves_few_connections() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
        few = listening.connections_limit()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert few + listening.REFUSED + listening.OTHER_FILES == 1024


def test_a_server_that_has_ended_can_be_told_to_end(start: Start) -> None:
    running = start()
    running.stop()
    until(lambda: running._http._shut)
    running._http.wake()
    running.stop()
