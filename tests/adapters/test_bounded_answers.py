"""Clients of servers: an answer without an end is not read to its end, and this machine is asked without a proxy.

Schemas that servers and agents send: nothing outside of them is ever read.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest
from adapted import made
from answering import answering
from hypothesis import given
from hypothesis import strategies as st

from envsuite.core import TaskSet, Tool, UsageError, WorkerLost, http
from envsuite.core.errors import DataError
from envsuite.interpreter.base import Limits
from envsuite.interpreter.remote import ServerInterpreter
from envsuite.prompting.endpoints.endpoint import ModelEndpoint
from envsuite.prompting.endpoints.options import EndpointOptions
from envsuite.remote import transport
from envsuite.remote.protocol import HttpProblem
from envsuite.remote.session import describe_again
from envsuite.serving.schemas import Checker
from trainers.gateway.messages import Refused
from trainers.gateway.reading import Fields
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


ROOT = Path(__file__).parents[2]
SECRET = "AKIA-IN-A-LOCAL-FILE"
MCP = """
import anyio, json, sys, mcp_types as types
from mcp.server import Server
from mcp.server.stdio import stdio_server
async def tools(c, p):
    schemas = json.load(open(sys.argv[1]))
    return types.ListToolsResult(tools=[types.Tool(name="t", description="d", **schemas)])
async def call(c, p): return types.CallToolResult(content=[types.TextContent(text="ok")], structured_content={"a": "x"})
s = Server("r", on_list_tools=tools, on_call_tool=call)
async def main():
    async with stdio_server() as (r, w): await s.run(r, w, s.create_initialization_options())
anyio.run(main)
"""


@dataclass
class Rogue:
    """A server of tools whose schema is ``schema``; ``asked`` are the requests that only a reference causes."""

    url: str = ""
    schema: Mapping[str, Any] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def answer(self, method: str, path: str, body: object) -> tuple[int, object]:
        tool = {"name": "t", "description": "d"}
        function = {"type": "function", "function": {**tool, "parameters": self.schema}}
        answers = {
            "/metadata": {"name": "rogue"},
            "/mcp": {"result": {"tools": [{**tool, "inputSchema": self.schema}]}},
            "/schema": {"action": self.schema},
            "/v1/environments/TextCraft-v0": {**DESCRIBED, "tools": [function]},
        }
        if path == "/list_environments":
            return 404, None
        if path not in answers:
            self.asked.append(path)
        return 200, answers.get(path, {"enum": [SECRET]})


def _described() -> dict[str, Any]:
    tasks = TaskSet("TextCraft-v0", "builtin", "1", {"train": ("a",)}, {"a": "b"})
    told = {name: getattr(tasks, name) for name in ("env_id", "source", "version", "hash")}
    return {
        "class": "X", "max_calls": 1, "images": False, "restorable": False, "max_episode_steps": 1, "split": "train",
        "versions": {}, "tasks": {**told, "splits": {"train": ["a"]}, "types": {"a": "b"}},
    }  # fmt: skip


DESCRIBED = _described()


@pytest.fixture(scope="module")
def rogue() -> Iterator[Rogue]:
    server = Rogue()
    with answering(server.answer) as server.url:
        yield server


def outside(url: str, folder: Path) -> dict[str, dict[str, Any]]:
    """Schemas that refer to something outside of themselves, by what they try."""
    file = (folder / "secret.json").as_uri()

    def a(form: dict[str, Any]) -> dict[str, Any]:
        return {"type": "object", "properties": {"a": form}}

    return {
        "address": a({"$ref": f"{url}/meta-data"}),
        "file": a({"$ref": file}),
        "relative path": {"$id": f"{folder.as_uri()}/", **a({"$ref": "secret.json"})},
        "relative to an address": {"$id": f"{url}/x/", **a({"$ref": "../y"})},
        "relative to nothing": a({"$ref": "secret.json"}),
        "dynamic": a({"$dynamicRef": f"{url}/dynamic#x"}),
        "unused definition": {**a({}), "$defs": {"z": {"$ref": f"{url}/unused"}}},
        "meta-schema": {"$schema": f"{url}/meta", **a({"type": "string"})},
        "meta-schema in a file": {"$schema": file, **a({"type": "string"})},
        "id inside": a({"$id": f"{folder.as_uri()}/in", "$ref": "secret.json"}),
        "other scheme": a({"$ref": "ftp://127.0.0.1/x"}),
        "packed": a({"allOf": [{"if": {"$ref": f"{url}/if"}}]}),
    }


NAMES = [*outside("http://x", Path("/"))]


def _by_tool(schema: Mapping[str, Any], server: Rogue, folder: Path) -> None:
    Tool("t", "", schema).problem({"a": "x"})


def _by_checker(schema: Mapping[str, Any], server: Rogue, folder: Path) -> None:
    with contextlib.suppress(HttpProblem):
        Checker(schema)({"a": "x"})


def _by_openenv(schema: Mapping[str, Any], server: Rogue, folder: Path) -> None:
    made("openenv/rogue", server=server.url).close()


def _by_remote(schema: Mapping[str, Any], server: Rogue, folder: Path) -> None:
    describe_again(server.url, "TextCraft-v0", {})


def _by_gateway(schema: Mapping[str, Any], server: Rogue, folder: Path) -> None:
    Fields({"name": "t", "parameters": schema}).tool("parameters")


def _by_mcp(schema: Mapping[str, Any], server: Rogue, folder: Path) -> None:
    (folder / "rogue.py").write_text(MCP)
    (folder / "reward.py").write_text("def r(task, calls): return None\n")
    (folder / "schemas.json").write_text(json.dumps({"input_schema": schema}))
    command = f"{sys.executable} {folder}/rogue.py {folder}/schemas.json"
    made("mcp/rogue", command=command, reward=f"{folder}/reward.py:r", goals=["g"]).close()


READERS = {"tool": _by_tool, "checker": _by_checker, "openenv": _by_openenv, "remote": _by_remote, "mcp": _by_mcp}


@pytest.mark.parametrize(
    ("reader", "name"),
    # Starting a server of MCP takes seconds; the others are read by the same function.
    [(reader, name) for reader in READERS for name in (NAMES[:2] if reader == "mcp" else NAMES)],
)
def test_a_schema_that_refers_outside_of_itself_is_refused_unread(reader, name, rogue, tmp_path):
    (tmp_path / "secret.json").write_text(json.dumps({"enum": [SECRET]}))
    rogue.asked.clear()
    rogue.schema = outside(rogue.url, tmp_path)[name]
    with pytest.raises(DataError, match="not a JSON Schema that stands by itself") as told:
        READERS[reader](rogue.schema, rogue, tmp_path)
    assert rogue.asked == [] and SECRET not in str(told.value) and "\n" not in str(told.value)


@pytest.mark.parametrize("name", NAMES)
def test_the_gateway_reads_a_schema_without_what_it_refers_to(name, rogue, tmp_path):
    (tmp_path / "secret.json").write_text(json.dumps({"enum": [SECRET]}))
    rogue.asked.clear()
    with contextlib.suppress(Refused):
        _by_gateway(outside(rogue.url, tmp_path)[name], rogue, tmp_path)
    assert rogue.asked == []


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda inner: st.lists(
    inner, max_size=3) | st.dictionaries(
        st.sampled_from(["$ref", "$id", "$schema", "$defs", "$dynamicRef", "properties", "a", "allOf", "type", "not"]),
        inner, max_size=4), max_leaves=12))  # fmt: skip
def test_any_json_is_a_schema_or_a_data_error(value):
    tool = Tool("t", "", value)  # type: ignore[arg-type]
    with contextlib.suppress(DataError):
        tool.check().problem({"a": 1})
    with contextlib.suppress(Refused):
        Fields({"name": "t", "parameters": value}).tool("parameters")


@pytest.mark.parametrize(
    "inside",
    [
        {"$defs": {"z": {"type": "string"}}, "properties": {"a": {"$ref": "#/$defs/z"}}},
        {"$id": "http://127.0.0.1:1/r", "$defs": {"z": {"type": "string"}}, "properties": {"a": {"$ref": "#/$defs/z"}}},
        {"$defs": {"z": {"$id": "http://e/z", "type": "string"}}, "properties": {"a": {"$ref": "http://e/z"}}},
        {"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"a": {"type": "string"}}},
        {"properties": {"a": {"$anchor": "b", "type": "string"}, "c": {"$ref": "#b"}}},
    ],
)  # fmt: skip
def test_references_inside_a_schema_hold(inside):
    assert Tool("t", "", inside).check().problem({"a": "x"}) is None
    assert Tool("t", "", inside).problem({"a": 3}) is not None


def test_one_module_makes_validators():
    files = [file for folder in ("envsuite", "trainers") for file in (ROOT / folder).rglob("*.py")]
    makers = [file.name for file in files if re.search(r"validator_for\(|\.meta\.validate\(", file.read_text())]
    assert makers == ["schemas.py"]
