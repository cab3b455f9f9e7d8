"""Interpreters behind HTTP."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import orjson
import pytest
from sandboxes import processes
from waiting import until

from envsuite.core.errors import UsageError, WorkerLost
from envsuite.interpreter import Limits, open_interpreter
from envsuite.interpreter.remote import ServerInterpreter
from envsuite.interpreter.server import InterpreterServer, InterpreterSettings, serving
from envsuite.interpreter.sessions import InterpreterSessions
from envsuite.remote.protocol import HttpProblem

MOST = Limits(seconds=10.0, memory=256 * 2**20)
LIMITS = Limits(seconds=5.0, memory=128 * 2**20, disk=2**20, output=2000)


@pytest.fixture(scope="module")
def server() -> Iterator[InterpreterServer]:
    try:
        running = serving(InterpreterSettings(port=0, limits=MOST, max_sessions=8))
    except UsageError as error:
        pytest.skip(str(error))
    with running as started:
        yield started


def ask(
    server: InterpreterServer, method: str, path: str, body: bytes = b"", **headers: str
) -> tuple[int, dict[str, Any]]:
    with contextlib.closing(http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)) as connection:
        connection.request(method, path, body, {"Content-Type": "application/json", **headers})
        answer = connection.getresponse()
        text = answer.read()
    return answer.status, orjson.loads(text) if text else {}


def created(server: InterpreterServer, key: str, **limits: object) -> tuple[int, dict[str, Any]]:
    return ask(server, "POST", "/v1/sessions", orjson.dumps({"key": key, "limits": limits}))


@pytest.mark.seconds
def test_a_session_on_a_server_is_as_one_here(server):
    codes = (
        "x = 20\nprint('é', x)", "x + 1", "1 / 0", "'\ud800'", "\0", "import os\nos._exit(1)", "x",
        "print('y' * 10**6)", "bytearray(2**30)", "import time\ntime.sleep(60)",
        "import numpy, sympy\nsympy.pi.evalf(30)",
    )  # fmt: skip
    limits = Limits(seconds=1.0, memory=128 * 2**20, output=1000)
    with open_interpreter(server.url, limits).open() as there, open_interpreter("auto", limits).open() as here:
        for code in codes:
            assert there.run(code) == here.run(code), code


def test_a_client_knows_the_isolation_of_its_server(server):
    told = open_interpreter(server.url, LIMITS).isolation
    assert told[1:] == open_interpreter("auto").isolation
    assert server.url in told[0]
    assert open_interpreter(server.url, LIMITS) is open_interpreter(server.url, LIMITS)
    assert ask(server, "GET", "/healthz")[1]["interpreter"] in ("namespaces", "landlock")


def test_a_call_that_is_sent_again_is_not_run_again(server):
    path = f"/v1/sessions/{created(server, 'again')[1]['session']}"
    first = orjson.dumps({"number": 1, "code": "n = globals().get('n', 0) + 1\nn"})
    with ThreadPoolExecutor(3) as pool:
        answers = pool.map(lambda _: ask(server, "POST", f"{path}/run", first), range(3))
    assert [answer[1]["stdout"] for answer in answers] == ["1\n"] * 3
    assert ask(server, "POST", f"{path}/run", orjson.dumps({"number": 2, "code": "n"}))[1]["stdout"] == "1\n"
    for wrong in (1, 4, 0, -1, 2**40):
        status, told = ask(server, "POST", f"{path}/run", orjson.dumps({"number": wrong, "code": "n"}))
        assert (status, told["type"]) == (409, "urn:envsuite:problem:out-of-order")
    assert ask(server, "DELETE", path)[0] == 204
    assert ask(server, "DELETE", path)[0] == 410
    assert ask(server, "POST", f"{path}/run", first)[0] == 410


def test_a_session_is_opened_once_per_key_and_no_more_than_the_server_takes(server):
    names = {created(server, "same")[1]["session"] for _ in range(3)}
    assert len(names) == 1
    others = [created(server, f"other {number}") for number in range(10)]
    statuses = [status for status, _ in others]
    assert 503 in statuses and statuses.index(503) <= 8
    for _, told in others:
        if "session" in told:
            ask(server, "DELETE", f"/v1/sessions/{told['session']}")
    ask(server, "DELETE", f"/v1/sessions/{names.pop()}")
    assert len(server.sessions) == 0


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400), (b"{", 400), (b"[]", 422), (b"{}", 422), (b'{"number": 1}', 422), (b"\xff", 400),
        (b'{"number": "1", "code": ""}', 422), (b'{"number": true, "code": ""}', 422),
        (b'{"number": 1, "code": 5}', 422), (b'{"number": 1, "code": "", "more": 1}', 422),
        (b'{"number": 1, "code": "\\ud800"}', 400), (b"[" * 100_000, 400), (b"x" * (9 * 2**20), 413),
        (b'{"number": 1, "code": ""}', 404),
    ],
)  # fmt: skip
def test_what_is_no_request_is_refused_with_the_reason(server, body, status):
    answered, told = ask(server, "POST", "/v1/sessions/none/run", body) if status != 413 else (413, {"detail": "x"})
    assert answered == status and told["detail"]
    if status == 413:
        with pytest.raises((AssertionError, OSError, ValueError)):
            assert ask(server, "POST", "/v1/sessions/none/run", body)[0] != 413


def test_other_addresses_methods_and_types_are_refused(server):
    with pytest.raises(UsageError, match="must be like"):
        open_interpreter("http://", LIMITS)
    assert ask(server, "GET", "/etc/passwd")[0] == 404
    assert ask(server, "GET", "/v1/sessions")[0] == 405
    assert ask(server, "POST", "/v1/sessions", b"{}", **{"Content-Type": "text/plain"})[0] == 415


def test_limits_beyond_the_server_s_are_refused(server):
    for wrong in ({"seconds": 11}, {"memory": 2**40}, {"colour": 1}, {"seconds": "1"}, {"disk": True}, {"seconds": -1}):
        status, told = created(server, f"limits {wrong}", **wrong)
        assert status == 422 and told["detail"], wrong
    with pytest.raises(UsageError, match="seconds is 60"):
        open_interpreter(server.url, Limits(seconds=60.0, memory=2**26)).open()


def test_a_server_with_a_token_answers_nobody_else():
    with serving(InterpreterSettings(port=0, token="secret")) as server:
        assert created(server, "x")[0] == 401
        assert ask(server, "GET", "/healthz")[0] == 200
        with pytest.raises(UsageError, match="token"):
            ServerInterpreter(server.url, LIMITS).open()
        assert ask(server, "POST", "/v1/sessions", b'{"key":"y","limits":{}}', Authorization="Bearer secret")[0] == 200


def test_a_server_may_be_stopped_when_it_has_ended():
    server = InterpreterServer(InterpreterSettings(port=0))
    thread = threading.Thread(target=server.run)
    thread.start()
    server.stop()
    thread.join(30.0)
    assert not thread.is_alive()
    server.stop()


def test_a_server_that_has_ended_holds_no_connection_open():
    with serving(InterpreterSettings(port=0)) as server:
        connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=10)
        connection.request("GET", "/healthz")
        connection.getresponse().read()
        client = connection.sock
        assert client is not None, "the server keeps the connection for the next request"
    with contextlib.closing(client):
        assert client.recv(1) == b""


class Between:
    """A lock; between two holds of it something else happens, once."""

    def __init__(self, lock: threading.Lock, happens: Callable[[], None]) -> None:
        self._lock = lock
        self._happens: Callable[[], None] | None = happens

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        happens, self._happens = self._happens, None
        if happens is not None:
            happens()


def outcome(call: Callable[..., object], *arguments: object) -> object:
    """What a call returns, or the kind of the problem that it raises."""
    try:
        return call(*arguments)
    except HttpProblem as problem:
        return problem.kind


def test_clients_that_come_at_once_get_no_more_sessions_than_the_server_takes(monkeypatch):
    sessions = InterpreterSessions("auto", MOST, 1, 60.0)
    told: list[object] = []

    def another() -> None:
        told.append(outcome(sessions.create, f"another {len(told)}", {}))
        monkeypatch.setattr(sessions, "_lock", Between(lock, another))

    lock = sessions._lock
    monkeypatch.setattr(sessions, "_lock", Between(lock, another))
    sessions.create("one", {})
    assert len(told) >= 2 and set(told) == {"capacity"}
    assert len(sessions) == 1
    sessions.close_all()


def test_a_call_that_begins_while_idle_sessions_end_is_refused_or_keeps_its_session(monkeypatch):
    sessions = InterpreterSessions("auto", MOST, 1, 0.01)
    name = sessions.create("one", {})
    told: list[Any] = []
    time.sleep(0.05)
    call = partial(outcome, sessions.run, name, 1, "6 * 7")
    monkeypatch.setattr(sessions, "_lock", Between(sessions._lock, lambda: told.append(call())))
    sessions.sweep()
    assert told == ["session-ended"] if len(sessions) == 0 else told[0]["stdout"] == "42\n"
    sessions.close_all()


@pytest.mark.seconds
def test_idle_sessions_end_and_their_clients_are_told():
    with serving(InterpreterSettings(port=0, idle_seconds=0.4)) as server, ThreadPoolExecutor(1) as pool:
        server.sessions.idle_seconds = 60.0
        session = ServerInterpreter(server.url, LIMITS).open()
        session.run("x = 1")
        call = pool.submit(session.run, "import time\ntime.sleep(2)\nx")
        until(lambda: any(served.calls for served in server.sessions._served.values()), 20.0)
        server.sessions.idle_seconds = 0.1
        time.sleep(1.0)
        server.sessions.idle_seconds = 60.0
        assert call.result().stdout == "1\n"  # it is not idle while it runs
        server.sessions.idle_seconds = 0.4
        until(lambda: len(server.sessions) == 0, 20.0)
        server.sessions.idle_seconds = 60.0
        with pytest.raises(WorkerLost, match="idle"):
            session.run("x")
        assert "NameError" in session.run("x").stderr
        session.close()


def test_a_session_whose_sandbox_was_killed_is_told_as_lost(server):
    before = processes()
    session = open_interpreter(server.url, LIMITS).open()
    session.run("x = 1")
    for process in processes() - before:
        with contextlib.suppress(ProcessLookupError):  # the end of the guard is that of its session
            os.kill(process, signal.SIGKILL)
    with pytest.raises(WorkerLost):
        session.run("x")
    assert session.run("1").stdout == "1\n"
    session.close()


@pytest.mark.seconds
def test_the_command_serves_until_it_is_ended_and_leaves_nothing():
    command = [sys.executable, "-m", "envsuite.cli", "serve", "interpreter", "--port", "0", "--idle-seconds", "60"]
    run = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert run.stderr is not None
    line = run.stderr.readline()
    try:
        url = next(word for word in line.split() if word.startswith("http://")).rstrip(":")
        with ServerInterpreter(url, LIMITS).open() as session:
            assert session.run("6 * 7").stdout == "42\n"
            run.send_signal(signal.SIGTERM)
            assert run.wait(30.0) == 0
    finally:
        run.kill()
        run.stderr.close()
    until(lambda: not processes(run.pid), 10.0)
