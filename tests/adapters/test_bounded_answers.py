"""Clients of servers: an answer without an end is not read to its end, and this machine is asked without a proxy."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest
from adapted import made
from answering import answering

from envsuite.core import UsageError, WorkerLost, http
from envsuite.interpreter.base import Limits
from envsuite.interpreter.remote import ServerInterpreter
from envsuite.prompting.endpoints.endpoint import ModelEndpoint
from envsuite.prompting.endpoints.options import EndpointOptions
from envsuite.remote import transport
from trainers.rollout.vllm.connection import VLLMConnection

MOST = 4 << 20
CHATTY = """
import sys
for _ in range(5000): print("a line of its log", file=sys.stderr)
print("\\x1b]0;the last words", file=sys.stderr)
"""


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server that answers each request with 200 MB, and clients that take 4."""
    for module in (http, transport):
        monkeypatch.setattr(module, "MOST_BYTES", MOST)
    server, sent = socket.create_server(("127.0.0.1", 0)), b"x" * (1 << 20)

    def answer(client: socket.socket) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        with client, contextlib.suppress(OSError):
            client.recv(65536)
            client.sendall(head)
            for _ in range(200):
                client.sendall(b"%x\r\n%s\r\n" % (len(sent), sent))
            client.sendall(b"0\r\n\r\n")

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(server.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield f"http://127.0.0.1:{server.getsockname()[1]}"
    server.close()


def _environment(url: str) -> None:
    made("TextCraft-v0", url=url)


def _interpreter(url: str) -> None:
    ServerInterpreter(url, Limits())


def _openenv(url: str) -> None:
    made("openenv/x", server=url)


def _tools(**where: str) -> None:
    """Opens a server of MCP."""
    Path("reward.py").write_text("def r(task, calls): return None\n")
    made("mcp/x", reward="reward.py:r", goals=["g"], deadline=20.0, **where)


def _mcp(url: str) -> None:
    _tools(server=f"{url}/mcp")


def _endpoint(url: str) -> None:
    endpoint = ModelEndpoint(EndpointOptions(url=url, model="m", patience=0.1))
    try:
        endpoint.ask({"messages": []})
    finally:
        endpoint.close()


def _vllm(url: str) -> None:
    VLLMConnection(url, patience=0.1, timeout=20).get("/v1/models")


CLIENTS: dict[str, Callable[[str], None]] = {
    "environments": _environment, "interpreter": _interpreter, "openenv": _openenv, "mcp": _mcp,
    "endpoint": _endpoint, "vllm": _vllm,
}  # fmt: skip


@pytest.mark.parametrize("client", CLIENTS)
def test_an_answer_without_end_is_refused(client, endless, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(transport, "UNREACHABLE_SECONDS", 2.0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(Exception, match="answers with more than 4 MiB") as told:
        CLIENTS[client](endless)
    assert client != "environments" or isinstance(told.value, WorkerLost)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


def test_a_line_without_end_of_a_server_of_mcp_ends_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("envsuite.adapters.mcp.MOST_BYTES", MOST)
    Path("endless.py").write_text("import sys\nfor _ in range(300): sys.stdout.write('x' * (1 << 20))\n")
    with pytest.raises(UsageError, match="a line of its output has more than 4 MiB"):
        _tools(command=f"{sys.executable} endless.py")


def test_what_a_server_of_mcp_logs_is_told_when_it_fails_alone(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    Path("chatty.py").write_text(CHATTY)
    with pytest.raises(UsageError, match=r"stderr ends with '\\x1b\]0;the last words'") as told:
        _tools(command=f"{sys.executable} chatty.py")
    assert "\n" not in str(told.value)
    assert "a line of its log" not in "".join(capfd.readouterr())


def test_this_machine_is_asked_without_the_proxy(monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "intranet.example")
    monkeypatch.delenv("no_proxy", raising=False)
    message = {"role": "assistant", "content": "hi"}
    said = {"model": "m", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    with answering(lambda *_: (200, said)) as url:
        with pytest.raises(httpx2.ConnectError):
            httpx2.get(url)
        endpoint = ModelEndpoint(EndpointOptions(url=url, model="m", patience=0.1))
        assert endpoint.ask({"messages": []}).model == "m"
        endpoint.close()
        http.bypass_proxy_here()
        assert httpx2.get(url).status_code == 200, "a client of an agent, in this process or its children"
        monkeypatch.setenv("no_proxy", "")


def test_who_asks_no_host_through_a_proxy_goes_on_so(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "*")
    http.bypass_proxy_here()
    assert os.environ["no_proxy"] == "*", "a list that has * besides others means these others"


def test_an_answer_that_breaks_off_is_asked_for_again():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for body in (b'{"a"', b'{"a": 1}'):
                client, _ = server.accept()
                with client:
                    client.recv(65536)
                    client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n" + body)

        threading.Thread(target=serve, daemon=True).start()
        assert transport.RemoteServer(f"http://127.0.0.1:{server.getsockname()[1]}").ask("GET", "/") == {"a": 1}


def test_without_a_proxy_the_environment_stays(monkeypatch):
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    http.bypass_proxy_here()
    assert "NO_PROXY" not in os.environ
