"""What holds for both protocols: limits, who may ask, raw input, the command."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import anyio
import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp import Client
from talk import empty, opened, run
from waiting import until
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from envsuite.core import Tool, UsageError
from envsuite.core.errors import UnknownName
from envsuite.serving.bridges import players
from envsuite.serving.bridges.players import offer
from envsuite.serving.bridges.server import Bridge

BOTH = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
CALL = st.fixed_dictionaries({"name": st.sampled_from(["reset", "env_step"]) | JSON}, optional={"arguments": JSON})
METHODS = st.sampled_from(["initialize", "tools/call", "tools/list", "server/discover", "ping", "dance"])
RPC = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.just("2.0") | JSON,
        "id": st.integers() | JSON,
        "method": METHODS | JSON,
        "params": JSON | CALL,
    },
)
MESSAGES = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["reset", "step", "state", "mcp", "list_tools"]) | JSON,
        "data": JSON
        | st.fixed_dictionaries({"tool_name": st.just("env_step") | JSON}, optional={"arguments": JSON, "type": JSON})
        | RPC,
    },
)


def raw(values: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    return st.binary(max_size=40) | values.map(lambda value: json.dumps(value).encode())


@pytest.fixture(scope="module")
def live(bridge: Bridge) -> Iterator[str]:
    """A session of MCP in which an episode is under way."""
    with opened(bridge) as (client, url):
        yield client.headers["mcp-session-id"]
        client.delete(url)


@settings(max_examples=100)
@given(
    body=raw(RPC | JSON),
    session=st.sampled_from([None, "live", "unknown"]),
    version=st.sampled_from([None, "2025-06-18", "2026-07-28", "x"]),
)
def test_no_body_makes_mcp_fail(bridge, live, http, body, session, version):
    headers = BOTH | ({} if version is None else {"mcp-protocol-version": version})
    headers |= {} if session is None else {"mcp-session-id": live if session == "live" else "unknown"}
    reply = http.post(f"{bridge.url}/mcp/TextCraft-v0", content=body, headers=headers)
    assert reply.status_code < 500, reply.text


@settings(max_examples=60)
@given(body=raw(MESSAGES | JSON), path=st.sampled_from(["reset", "step", "mcp"]))
def test_no_body_makes_openenv_fail(bridge, http, body, path):
    reply = http.post(f"{bridge.url}/openenv/TextCraft-v0/{path}", content=body)
    assert reply.status_code in (200, 409, 422) and isinstance(reply.json(), dict)


@settings(max_examples=15)
@given(frames=st.lists(raw(MESSAGES | JSON) | st.text(max_size=20), max_size=20))
def test_no_frames_make_a_conversation_fail(bridge, frames):
    async def talk() -> None:
        async with connect(f"{bridge.url}/openenv/TextCraft-v0/ws".replace("http", "ws")) as socket:
            for frame in frames:
                await socket.send(frame)
                told = json.loads(await socket.recv())
                assert told["type"] in ("observation", "state", "error", "mcp")
            await socket.send('{"type": "state"}')
            assert json.loads(await socket.recv())["type"] == "state"

    run(talk)


async def test_what_is_too_long_is_refused(start):
    url = start(max_body=2048).url
    long = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "x" * 3000})
    assert httpx2.post(f"{url}/mcp/TextCraft-v0", content=long, headers=BOTH).status_code == 413
    parts = (part for part in [b" " * 1500, b" " * 1500])
    assert httpx2.post(f"{url}/openenv/TextCraft-v0/reset", content=parts).status_code == 413

    async with connect(f"{url}/openenv/TextCraft-v0/ws".replace("http", "ws")) as socket:
        await socket.send(long)
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1009


async def test_a_page_in_a_browser_cannot_open_a_websocket(bridge):
    with pytest.raises(InvalidStatus) as refused:
        await connect(f"{bridge.url}/openenv/TextCraft-v0/ws".replace("http", "ws"), origin="https://evil.example")  # type: ignore[arg-type]
    assert refused.value.response.status_code == 403


def test_a_bridge_for_other_machines_takes_any_name_but_no_foreign_page(start):
    url = start(host="0.0.0.0").url.replace("0.0.0.0", "127.0.0.1") + "/openenv/TextCraft-v0/health"
    assert httpx2.get(url, headers={"Host": "box:8000"}).status_code == 200
    assert httpx2.get(url, headers={"Host": "box:8000", "Origin": "http://box:8000"}).status_code == 200
    assert httpx2.get(url, headers={"Host": "box:8000", "Origin": "http://evil.example"}).status_code == 403


async def test_clients_of_both_protocols_share_the_seats(start):
    bridge = start(max_sessions=2)
    address = f"{bridge.url}/openenv/TextCraft-v0"

    async def reset(socket: ClientConnection) -> dict[str, Any]:
        await socket.send('{"type": "reset"}')
        return json.loads(await socket.recv())

    url = f"{address}/ws".replace("http", "ws")
    async with connect(url) as one, connect(url) as other, Client(f"{bridge.url}/mcp/TextCraft-v0") as second:
        assert (await reset(one))["type"] == "observation"
        async with Client(f"{bridge.url}/mcp/TextCraft-v0") as first:
            assert not (await first.call_tool("reset", {})).is_error
            full = {"code": "CAPACITY_REACHED", "active_sessions": 2, "max_sessions": 2}
            assert (await reset(other))["data"].items() >= full.items()
            told = await second.call_tool("reset", {})
            assert told.is_error and "all 2 seats are taken" in told.content[0].text
            async with httpx2.AsyncClient() as http:
                assert (await http.post(f"{address}/reset", json={})).status_code == 429
            assert not (await first.call_tool("env_step", {"command": "inventory"})).is_error
        assert not (await second.call_tool("reset", {})).is_error
        await one.close()
        await anyio.to_thread.run_sync(until, lambda: bridge.seats.taken == 1)
        assert (await reset(other))["type"] == "observation"
    assert empty(bridge)


def test_what_cannot_be_offered_is_refused_at_the_start(start, monkeypatch):
    with pytest.raises(UnknownName, match="TextCraft-v0"):
        start("TextCraf-v0")
    with pytest.raises(UnknownName, match="environment"):
        start("no_such_module:World-v0")
    with pytest.raises(UsageError, match="is not a ToolEnv"):
        start("CartPole-v1")
    with pytest.raises(UsageError, match="cannot listen at"):
        start(port=int(start().url.rpartition(":")[2]))
    monkeypatch.setattr(players, "RESET", Tool("env_step", "", {}))
    with pytest.raises(UsageError, match="has a tool 'env_step'"):
        offer("TextCraft-v0")


def test_the_command_says_where_it_listens_and_ends_on_a_signal(data_folder):
    command = [sys.executable, "-m", "envsuite.cli", "serve", "bridge", "TextCraft-v0", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert "this machine only; no token is needed" in line
        url = next(word for word in line.split() if word.endswith("/openenv/TextCraft-v0"))

        async def talk() -> None:
            async with (
                Client(url.replace("openenv", "mcp")) as client,
                connect(f"{url}/ws".replace("http", "ws")) as socket,
            ):
                await socket.send('{"type": "reset"}')
                assert json.loads(await socket.recv())["type"] == "observation"
                assert not (await client.call_tool("reset", {})).is_error
                process.send_signal(signal.SIGTERM)
                with pytest.raises(ConnectionClosed):
                    await socket.recv()

        run(talk)
        assert process.wait(20) == 0 and "Traceback" not in process.stderr.read()


def test_stdio_plays_one_environment(capsys):
    from envsuite.cli import main

    assert main(["serve", "bridge", "TextCraft-v0", "WebShop-v0", "--stdio"]) == 2
    assert "--stdio plays one environment" in capsys.readouterr().err
