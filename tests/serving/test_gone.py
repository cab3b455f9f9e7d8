"""Servers that are gone: when that is told, and to whom."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from answering import answering
from driving import answers, do, reset_all, step_all
from waiting import until

from envsuite.core import WorkerLost
from envsuite.remote import RemoteEnv, session, transport
from envsuite.serving.server import EnvServer
from envsuite.vector import EnvFactory, make_vector, remote

ROUGH = "vector_worlds:Rough-v0"
GO = do("go")
PATIENCE = 1.5
LATEST = 4.0
"""Most pauses of a thread until it is told, with the last that goes beyond the patience."""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes 30 s takes one and a half."""
    monkeypatch.setattr(transport, "UNREACHABLE_SECONDS", PATIENCE)
    monkeypatch.setattr(transport, "CONNECT_SECONDS", 0.2)


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> defaultdict[int, float]:
    """Seconds that each thread has paused between tries: what a busy machine adds to them is not the patience's."""
    found: defaultdict[int, float] = defaultdict(float)

    def sleep(seconds: float) -> None:
        found[threading.get_ident()] += seconds
        time.sleep(seconds)

    for module in (transport, remote):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    return found


def gone(*servers: EnvServer) -> None:
    """Close the servers' sockets."""
    for server in servers:
        server.stop()
    for server in servers:
        until(lambda server=server: not _listens(server.url))


def _listens(url: str) -> bool:
    host, _, port = url.removeprefix("http://").rpartition(":")
    try:
        socket.create_connection((host, int(port))).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def seconds() -> Iterator[list[float]]:
    """How long the block took."""
    began, took = time.monotonic(), []
    yield took
    took.append(time.monotonic() - began)


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("env_id", "servers", "slots"), [*((ROUGH, n, 24) for n in (1, 2, 3)), ("TextCraft-v0", 2, 64)]
)
def test_a_vector_whose_servers_are_all_gone_says_so_for_all_slots_within_the_patience(
    start, slept, env_id, servers, slots
):
    there = [start(env_id) for _ in range(servers)]
    with make_vector([EnvFactory(env_id, {"url": [server.url for server in there]})], slots) as vector:
        assert all(event.error is None for event in reset_all(vector, seed=0).values())
        gone(*there)
        for again in range(2):  # a step, and the reset that whoever plays will try next
            slept.clear()
            with seconds() as took:
                for slot in range(slots):
                    vector.reset(slot, 0, seed=0) if again else vector.step(slot, GO)
                events = answers(vector, slots).values()
            assert len(events) == slots and all("does not answer" in str(event.error) for event in events)
            assert max(slept.values(), default=0) < LATEST and (again or took[0] > 0.9 * PATIENCE / servers)


@pytest.mark.seconds
@pytest.mark.parametrize("servers", [1, 4])
def test_an_environment_whose_servers_are_all_gone_says_so_within_the_patience(start, slept, servers):
    there = [start(ROUGH) for _ in range(servers)]
    env = RemoteEnv([server.url for server in there], ROUGH)
    env.reset(seed=0)
    gone(*there)
    for call in (lambda: env.step(GO), lambda: env.reset(seed=0)):
        slept.clear()
        with pytest.raises(WorkerLost, match="does not answer"):
            call()
        assert max(slept.values(), default=0) < LATEST
    slept.clear()
    with pytest.raises(WorkerLost, match="does not answer"):
        RemoteEnv([server.url for server in there], ROUGH, split=None)
    assert max(slept.values(), default=0) < LATEST


def test_closing_an_environment_whose_server_is_gone_takes_no_patience(start, monkeypatch):
    monkeypatch.setattr(transport, "UNREACHABLE_SECONDS", 20.0)
    monkeypatch.setattr(session, "CLOSE_SECONDS", 0.2)
    running = start(ROUGH)
    env = RemoteEnv(running.url, ROUGH)
    env.reset(seed=0)
    gone(running)
    with seconds() as took:
        env.close()
    assert took[0] < 10.0


def test_an_episode_goes_on_at_the_only_one_of_three_servers_that_is_left(start, caplog):
    there = [start(ROUGH) for _ in range(3)]
    env = RemoteEnv([server.url for server in there], ROUGH)
    env.reset(options={"task_id": "b"})
    last = next(server for server in there if server.url == env._session.in_turn()[2])
    gone(*(server for server in there if server is not last))
    assert env.step(GO)[0]["text"] == "b 1" and env._session.url == last.url
    assert caplog.messages[-1] == f"going on at {last.url}"


def test_a_vector_goes_on_at_the_only_one_of_three_servers_that_is_left(start):
    there = [start(ROUGH) for _ in range(3)]
    with make_vector([EnvFactory(ROUGH, {"url": [server.url for server in there]})], 9) as vector:
        reset_all(vector, task_id="a")
        assert [server.front.sessions for server in there] == [3, 3, 3]
        for count in range(1, 4):
            for event in step_all(vector, GO).values():
                assert event.error is None and event.observation and event.observation["text"] == f"a {count}"
            if count == 1:
                gone(*there[:2])
        assert there[2].front.sessions == 9


@contextlib.contextmanager
def closing() -> Iterator[str]:
    """The address of a proxy whose server is gone: it takes connections, and closes them."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    listener.accept()[0].close()

        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def full() -> Iterator[str]:
    """The address of a machine that does not answer: nobody takes connections."""
    with socket.socket() as listener, contextlib.ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(3):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.seconds
@pytest.mark.parametrize("kind", [closing, full])
def test_what_takes_no_request_is_gone_as_well(kind, slept):
    with kind() as url, seconds() as took, pytest.raises(WorkerLost, match="does not answer"):
        RemoteEnv(url, ROUGH)
    assert took[0] > 0.9 * PATIENCE and max(slept.values(), default=0) < LATEST


@pytest.mark.slow
def test_a_server_that_comes_back_is_asked_patiently_the_next_time_it_is_gone(start):
    first = start()
    port = int(first.url.rpartition(":")[2])
    there = transport.server(first.url)
    gone(first)
    with pytest.raises(WorkerLost):
        there.ask("GET", "/healthz")
    second = start(port=port)
    time.sleep(transport.JUST_NOW)
    assert there.ask("GET", "/healthz") == {"status": "ok"}
    gone(second)
    with seconds() as took, pytest.raises(WorkerLost):
        there.ask("GET", "/healthz")
    assert took[0] > 0.9 * PATIENCE


@pytest.mark.slow
def test_a_server_that_nobody_asked_for_long_is_asked_patiently(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        there = transport.RemoteServer(f"http://127.0.0.1:{listener.getsockname()[1]}")
    monkeypatch.setattr(transport, "FORGET_SECONDS", 0.3)
    monkeypatch.setattr(transport, "LONGEST_PAUSE", 0.05)
    for pause, patient in ((0.0, True), (0.25, False), (0.5, True)):
        time.sleep(pause)
        with seconds() as took, pytest.raises(WorkerLost):
            there.ask("GET", "/healthz")
        assert (took[0] > 0.9 * PATIENCE) == patient


def test_a_server_that_does_not_answer_is_told_once_a_call(monkeypatch, caplog):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        there = transport.RemoteServer(f"http://127.0.0.1:{listener.getsockname()[1]}")
    monkeypatch.setattr(transport, "LONGEST_PAUSE", 0.05)
    with pytest.raises(WorkerLost, match=r"http://127.0.0.1:\d+ does not answer .*`envsuite serve http`"):
        RemoteEnv(there.url, ROUGH)
    (said,) = caplog.messages
    assert said.startswith(there.url) and said.endswith("; trying again")


def test_the_last_second_before_a_deadline_counts():
    ours, theirs = socket.socketpair()
    with theirs, transport._Deadline(ours.family, ours.type, ours.proto, fileno=ours.detach()) as connection:
        connection.until = time.monotonic() + 0.9
        connection.sendall(b"x")
        assert theirs.recv(9) == b"x"
        connection.until = time.monotonic()
        with pytest.raises(TimeoutError):
            connection.sendall(b"y")


def test_an_answer_that_is_no_problem_document_raises_the_question_who_answers():
    with answering(lambda *_: (404, b"<html>")) as url, pytest.raises(transport.RequestRefused) as refused:
        transport.RemoteServer(url).ask("GET", "/v1/environments")
    assert refused.value.detail == "HTTP 404 without a problem document: is it `envsuite serve http`?"
