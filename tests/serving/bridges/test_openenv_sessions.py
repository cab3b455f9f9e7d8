"""Sessions that clients of OpenEnv's contract create at /mcp, attach WebSockets to, and call tools in."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import anyio
import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from talk import EACH, at, empty, played
from websockets.asyncio.client import ClientConnection, connect

from envsuite.serving.bridges.server import Bridge

Start = Callable[..., Bridge]
CREATE, CLOSE = "openenv/session/create", "openenv/session/close"


def ask(url: str, method: str, **params: Any) -> dict[str, Any]:
    """The answer to a JSON-RPC request."""
    body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
    answer: dict[str, Any] = httpx2.post(f"{url}/mcp", json=body).json()
    assert (answer["jsonrpc"], answer["id"]) == ("2.0", 7) and len(answer) == 3
    return answer


def created(url: str) -> str:
    name: str = ask(url, CREATE)["result"]["session_id"]
    return name


def attach(url: str, name: str) -> connect:
    return connect(f"{url}/ws?session_id={name}".replace("http", "ws", 1))


async def say(socket: ClientConnection, kind: str, **data: Any) -> dict[str, Any]:
    await socket.send(json.dumps({"type": kind, "data": data}))
    return json.loads(await socket.recv())


@EACH
async def test_calls_of_tools_and_steps_are_those_of_one_episode(bridge, start, env_id):
    url = at(bridge if env_id in bridge.endpoints else start(env_id), env_id)
    here = played(env_id, 0)

    name = created(url)
    async with attach(url, name) as socket:
        begun = (await say(socket, "reset", seed=0))["data"]
        assert (begun["observation"]["task"], begun["observation"]["text"]) == (here.task, here.text)
        assert begun["observation"]["metadata"].items() >= here.info.items() and begun["reward"] is None
        for number, (call, came) in enumerate(here.steps):
            arguments = dict(call.arguments)
            if number % 2:
                data = (await say(socket, "step", tool_name=call.name, arguments=arguments))["data"]
                told = {**data["observation"], "reward": data["reward"], "done": data["done"]}
            else:
                asked = {"name": call.name, "arguments": arguments, "session_id": name}
                told = ask(url, "tools/call", **asked)["result"]
            for key in ("text", "commands", "reward"):
                assert told[key] == came[key]
            ends = {key: came[key] for key in ("terminated", "truncated")}
            assert told["metadata"] == {**came["info"], **ends} and told["done"] == any(ends.values())
            assert told["tool_name"] == call.name
        assert (await say(socket, "state"))["data"]["step_count"] == len(here.steps)
    after = ask(url, "tools/call", name=call.name, arguments=arguments, session_id=name)["error"]
    assert after["code"] == -32603 and "the episode has ended" in after["message"]
    assert ask(url, CLOSE, session_id=name)["result"] == {"session_id": name, "closed": True}
    assert empty(bridge)


async def test_a_session_outlives_its_websocket_until_it_is_closed(bridge):
    url, look = at(bridge), {"name": "env_step", "arguments": {"command": "inventory"}}

    name = created(url)
    async with attach(url, name) as socket:
        await say(socket, "reset", seed=0)
    assert "Inventory" in ask(url, "tools/call", session_id=name, **look)["result"]["text"]
    async with attach(url, name) as socket:
        assert (await say(socket, "state"))["data"]["step_count"] == 1
        assert ask(url, CLOSE, session_id=name)["result"] == {"session_id": name, "closed": False, "closing": True}
        assert ask(url, "tools/call", session_id=name, **look)["result"]["done"] is False
    assert await anyio.to_thread.run_sync(empty, bridge)
    assert ask(url, "tools/call", session_id=name, **look)["error"]["code"] == -32602


async def test_sessions_do_not_mix(bridge):
    url = at(bridge)

    names = [created(url) for _ in range(3)]
    for seed, name in enumerate(names):
        async with attach(url, name) as socket:
            await say(socket, "reset", seed=seed)
    for seed, name in enumerate(names):
        call, came = played("TextCraft-v0", seed).steps[0]
        asked = {"name": call.name, "arguments": dict(call.arguments), "session_id": name}
        assert ask(url, "tools/call", **asked)["result"]["text"] == came["text"]
    for name in names:
        assert ask(url, CLOSE, session_id=name)["result"]["closed"]
    assert empty(bridge)


async def test_what_cannot_be_done_in_a_session_is_said(bridge):
    url = at(bridge)
    name = created(url)
    for method, params, code, words in (
        ("tools/call", {"name": "env_step"}, -32602, CREATE),
        ("tools/call", {"name": "env_step", "session_id": "x"}, -32602, "unknown session_id 'x'"),
        ("tools/call", {"name": "env_step", "session_id": name}, -32603, "call reset"),
        ("tools/call", {"session_id": name}, -32602, "name"),
        ("tools/call", {"name": "env_step", "arguments": [], "session_id": name}, -32602, "arguments"),
        (CLOSE, {}, -32602, "session_id"),
        (CLOSE, {"session_id": "x"}, -32602, "unknown session_id 'x'"),
        ("dance", {}, -32601, "tools/call"),
    ):
        error = ask(url, method, **params)["error"]
        assert error["code"] == code and words in error["message"], (method, params, error)

    async with attach(url, "x") as lost:
        refused = json.loads(await lost.recv())["data"]
        assert refused["code"] == "SESSION_ERROR" and "unknown session_id 'x'" in refused["message"]
    async with attach(url, name) as first:
        async with attach(url, name) as second:
            refused = json.loads(await second.recv())["data"]
            assert refused["code"] == "SESSION_ERROR" and "another WebSocket" in refused["message"]
        again = (await say(first, "mcp", jsonrpc="2.0", id=1, method=CREATE))["data"]["error"]
        assert again["code"] == -32602 and "session already" in again["message"]
        await say(first, "reset", seed=0)
        params = {"name": "env_step", "arguments": {"command": "inventory"}}
        called = (await say(first, "mcp", jsonrpc="2.0", id=1, method="tools/call", params=params))["data"]
        assert "Inventory" in called["result"]["text"]
    assert ask(url, CLOSE, session_id=name)["result"]["closed"]
    assert empty(bridge)


def test_there_are_as_many_sessions_as_seats(start):
    url = at(start(max_sessions=2))
    name, _ = created(url), created(url)
    full = ask(url, CREATE)["error"]
    assert full["code"] == -32000 and full["data"] == {"active_sessions": 2, "max_sessions": 2}
    assert ask(url, CLOSE, session_id=name)["result"]["closed"] and created(url) != name


async def test_an_idle_session_is_closed_and_its_seat_freed(start):
    bridge = start(idle_seconds=0.5)
    url = at(bridge)
    name = created(url)

    async with attach(url, name) as socket:
        await say(socket, "reset", seed=0)
    assert empty(bridge)
    assert "unknown" in ask(url, CLOSE, session_id=name)["error"]["message"]


@pytest.mark.slow
async def test_a_websocket_is_not_idle_while_tools_are_called_in_its_session(start):
    bridge = start(idle_seconds=3.0)
    url, look = at(bridge), {"name": "env_step", "arguments": {"command": "inventory"}}

    name = created(url)
    async with attach(url, name) as socket:
        await say(socket, "reset", seed=0)
        for _ in range(4):
            await anyio.sleep(1.0)
            await anyio.to_thread.run_sync(lambda: ask(url, "tools/call", session_id=name, **look)["result"])
        assert (await say(socket, "state"))["data"]["step_count"] == 4
        told = json.loads(await socket.recv())["data"]
        assert told["code"] == "SESSION_ERROR" and "nobody called for 3 s" in told["message"]
    assert await anyio.to_thread.run_sync(empty, bridge)
    assert "unknown" in ask(url, CLOSE, session_id=name)["error"]["message"]


async def test_a_bridge_that_ends_closes_its_sessions(start):
    bridge = start()
    url = at(bridge)

    async with attach(url, created(url)) as socket:
        await say(socket, "reset", seed=0)
    assert bridge.seats.taken == 1
    bridge.stop()
    assert empty(bridge)


@settings(max_examples=60)
@given(
    method=st.sampled_from(["tools/list", "tools/call", CLOSE]) | st.text(max_size=8),
    params=st.one_of(
        st.none(),
        st.lists(st.integers(), max_size=2),
        st.dictionaries(
            st.sampled_from(["name", "arguments", "session_id"]),
            st.none() | st.text(max_size=4) | st.integers() | st.just({}) | st.just("env_step") | st.just([]),
        ),
    ),
)
def test_every_request_for_tools_has_a_result_or_an_error(bridge, http, method, params):
    body = {"jsonrpc": "2.0", "id": "a", "method": method, "params": params}
    reply = http.post(f"{at(bridge)}/mcp", json=body)
    answer = reply.json()
    assert reply.status_code == 200 and answer["id"] == "a" and ("result" in answer) != ("error" in answer)
    if "error" in answer:
        assert answer["error"]["code"] in (-32601, -32602) and answer["error"]["message"]
