"""Environments for openenv-core's own clients, and for whoever speaks its contract.

Sessions that clients of OpenEnv's contract create at /mcp, attach WebSockets to, and call tools in.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import anyio
import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from talk import EACH, at, empty, example, played, run
from websockets.asyncio.client import ClientConnection, connect

from envsuite.textcraft.env import TextCraft


async def say(socket: ClientConnection, message: Any) -> dict[str, Any]:
    await socket.send(message if isinstance(message, str | bytes) else json.dumps(message))
    return json.loads(await socket.recv())


STEP = {"type": "step", "data": {"tool_name": "env_step", "arguments": {}}}
WRONG: dict[str, tuple[Any, ...]] = {
    "INVALID_JSON": ("{", b"\xff\xfe", "", "[" * 100_000),
    "VALIDATION_ERROR": (
        *([], 7, {}, {"type": ["reset"]}, {"type": "step"}, {"type": "step", "data": {"command": "look"}}),
        *({"type": "reset", "data": {"seed": -1}}, {"type": "reset", "data": []}),
    ),
    "UNKNOWN_TYPE": ({"type": "dance"},),
    "EXECUTION_ERROR": (
        STEP,
        {"type": "reset", "data": {"task_id": "cyan_baner"}},
    ),
}


async def test_a_message_that_makes_no_sense_is_answered_with_the_contracts_error(bridge):
    async with connect(f"{at(bridge)}/ws".replace("http", "ws")) as socket:
        for code, messages in WRONG.items():
            for message in messages:
                told = await say(socket, message)
                assert (told["type"], told["data"]["code"]) == ("error", code), message
                assert told["data"]["message"]
        assert (await say(socket, {"type": "reset", "data": {"model": "unknown names are ignored"}}))["data"]
        assert (await say(socket, STEP))["data"]["observation"]["metadata"]["valid"] is False
        listed = await say(socket, {"type": "mcp", "data": {"jsonrpc": "2.0", "id": 5, "method": "tools/list"}})
        assert listed["data"]["id"] == 5 and len(listed["data"]["result"]["tools"]) == 1
    assert empty(bridge)


def test_a_client_that_vanishes_in_mid_step_frees_its_seat(bridge):
    async def talk() -> None:
        socket = await connect(f"{at(bridge, 'talk:Patient-v0')}/ws".replace("http", "ws"))
        await say(socket, {"type": "reset"})
        sleep = {"type": "step", "data": {"tool_name": "do", "arguments": {"command": "sleep 0.3"}}}
        await socket.send(json.dumps(sleep))
        await asyncio.sleep(0.1)
        assert bridge.seats.taken == 1
        socket.transport.abort()

    run(talk)
    assert empty(bridge)


async def test_a_player_that_idles_is_told_and_sent_away(start):
    bridge = start(idle_seconds=0.3)
    async with connect(f"{at(bridge)}/ws".replace("http", "ws")) as socket:
        await socket.send('{"type": "reset"}')
        *_, told = [json.loads(message) async for message in socket]
    assert told["data"]["code"] == "SESSION_ERROR" and "0.3 s" in told["data"]["message"]
    assert empty(bridge)


def test_single_requests_are_answered_as_the_contract_has_them(bridge):
    url = at(bridge)
    begun = httpx2.post(f"{url}/reset", json={"seed": 0}).json()
    assert begun["observation"]["task"] == played("TextCraft-v0", 0).task and begun["done"] is False
    assert httpx2.post(f"{url}/reset").status_code == 200, "the body may be left out"
    assert httpx2.get(f"{url}/state").json()["step_count"] == 0
    schema = httpx2.get(f"{url}/schema").json()
    assert schema["action"]["oneOf"][0]["properties"]["arguments"] == dict(TextCraft.tools[0].parameters)
    for path, body, status, words in (
        ("/step", {"action": {"tool_name": "env_step", "arguments": {"command": "x"}}}, 409, "/ws"),
        ("/step", {"action": {}}, 422, "tool_name"),
        ("/step", [], 422, "object"),
        ("/reset", {"seed": "x"}, 422, "seed"),
        ("/reset", {"task_id": "cyan_baner"}, 409, "cyan_banner"),
    ):
        reply = httpx2.post(f"{url}{path}", json=body)
        assert reply.status_code == status and words in reply.json()["detail"][0]["msg"], reply.text
    assert httpx2.post(f"{url}/mcp", content=b"{").json()["error"]["code"] == -32700
    assert httpx2.get(f"{url}/reset").status_code == 405
    missing = httpx2.get(f"{bridge.url}/openenv/TextCraft-v1/health")
    assert missing.status_code == 404 and "/openenv/TextCraft-v0" in missing.json()["detail"]
    assert empty(bridge)


def test_the_example_of_the_page_plays(bridge, root, capsys):
    pytest.importorskip("openenv.core", reason="needs openenv-core; docs/bridges.md#openenv says how to install it")
    exec(example("python\nfrom openenv", root).replace("http://127.0.0.1:8000", bridge.url), {})
    assert "Goal: craft" in capsys.readouterr().out
    assert empty(bridge)


def test_the_task_api_lists_what_the_environment_has_and_a_reset_takes_its_index(bridge):
    tasks, url = TextCraft(split=None).tasks, f"{at(bridge)}/textcraft-V0"
    assert httpx2.get(f"{at(bridge)}/list_environments").json() == ["TextCraft-v0"]
    assert httpx2.get(f"{url}/splits").json() == [{"name": name, "type": name} for name in tasks.splits]
    for split, ids in tasks.splits.items():
        listed = httpx2.post(f"{url}/tasks", json={"split": split}).json()["tasks"]
        assert [(task["id"], task["index"]) for task in listed] == [(name, i) for i, name in enumerate(ids)]
        assert httpx2.post(f"{url}/num_tasks", json={"split": split}).json() == {"num_tasks": len(ids)}
        assert httpx2.post(f"{url}/task", json={"split": split, "index": 3}).json() == {"task": listed[3]}
        for start, stop in ((None, 2), (3, 5), (-2, None), (5, 3), (10**6, None)):
            part = httpx2.post(f"{url}/task_range", json={"split": split, "start": start, "stop": stop}).json()
            assert part == {"tasks": listed[start:stop]}
        begun = httpx2.post(f"{at(bridge)}/reset", json={"split": split, "index": 3}).json()
        assert begun["observation"]["metadata"]["task_id"] == ids[3]


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("TextCraft-v0/num_tasks", {"split": "tset"}, 400, "'test'"),
        ("TextCraft-v0/task", {"split": "test", "index": 10**6}, 400, "counted from 0"),
        ("TextCraft-v0/task", {"split": "test", "index": -1}, 400, "counted from 0"),
        ("TextCraft-v0/task", {"split": "test"}, 422, "index"),
        ("TextCraft-v0/tasks", [], 422, "object"),
        ("TextCraft-v0/dance", {"split": "test"}, 404, "task_range"),
        ("WebShop-v0/tasks", {"split": "test"}, 404, "TextCraft-v0"),
        ("reset", {"split": "test"}, 422, "split and index together"),
        ("reset", {"index": 3}, 422, "split and index together"),
        ("reset", {"split": "test", "index": 3, "task_id": "cyan_banner"}, 422, "split and index together"),
        ("reset", {"split": "test", "index": 10**6}, 409, "counted from 0"),
        ("reset", {"split": "tset", "index": 1}, 409, "'test'"),
    ],
)
def test_a_task_that_does_not_exist_is_answered_with_what_does(bridge, path, body, status, words):
    reply = httpx2.post(f"{at(bridge)}/{path}", json=body)
    assert reply.status_code == status and words in reply.text, reply.text


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


async def exchange(socket: ClientConnection, kind: str, **data: Any) -> dict[str, Any]:
    await socket.send(json.dumps({"type": kind, "data": data}))
    return json.loads(await socket.recv())


@EACH
async def test_calls_of_tools_and_steps_are_those_of_one_episode(bridge, start, env_id):
    url = at(bridge if env_id in bridge.endpoints else start(env_id), env_id)
    here = played(env_id, 0)

    name = created(url)
    async with attach(url, name) as socket:
        begun = (await exchange(socket, "reset", seed=0))["data"]
        assert (begun["observation"]["task"], begun["observation"]["text"]) == (here.task, here.text)
        assert begun["observation"]["metadata"].items() >= here.info.items() and begun["reward"] is None
        for number, (call, came) in enumerate(here.steps):
            arguments = dict(call.arguments)
            if number % 2:
                data = (await exchange(socket, "step", tool_name=call.name, arguments=arguments))["data"]
                told = {**data["observation"], "reward": data["reward"], "done": data["done"]}
            else:
                asked = {"name": call.name, "arguments": arguments, "session_id": name}
                told = ask(url, "tools/call", **asked)["result"]
            for key in ("text", "commands", "reward"):
                assert told[key] == came[key]
            ends = {key: came[key] for key in ("terminated", "truncated")}
            assert told["metadata"] == {**came["info"], **ends} and told["done"] == any(ends.values())
            assert told["tool_name"] == call.name
        assert (await exchange(socket, "state"))["data"]["step_count"] == len(here.steps)
    after = ask(url, "tools/call", name=call.name, arguments=arguments, session_id=name)["error"]
    assert after["code"] == -32603 and "the episode has ended" in after["message"]
    assert ask(url, CLOSE, session_id=name)["result"] == {"session_id": name, "closed": True}
    assert empty(bridge)


async def test_a_session_outlives_its_websocket_until_it_is_closed(bridge):
    url, look = at(bridge), {"name": "env_step", "arguments": {"command": "inventory"}}

    name = created(url)
    async with attach(url, name) as socket:
        await exchange(socket, "reset", seed=0)
    assert "Inventory" in ask(url, "tools/call", session_id=name, **look)["result"]["text"]
    async with attach(url, name) as socket:
        assert (await exchange(socket, "state"))["data"]["step_count"] == 1
        assert ask(url, CLOSE, session_id=name)["result"] == {"session_id": name, "closed": False, "closing": True}
        assert ask(url, "tools/call", session_id=name, **look)["result"]["done"] is False
    assert await anyio.to_thread.run_sync(empty, bridge)
    assert ask(url, "tools/call", session_id=name, **look)["error"]["code"] == -32602


async def test_sessions_do_not_mix(bridge):
    url = at(bridge)

    names = [created(url) for _ in range(3)]
    for seed, name in enumerate(names):
        async with attach(url, name) as socket:
            await exchange(socket, "reset", seed=seed)
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
        again = (await exchange(first, "mcp", jsonrpc="2.0", id=1, method=CREATE))["data"]["error"]
        assert again["code"] == -32602 and "session already" in again["message"]
        await exchange(first, "reset", seed=0)
        params = {"name": "env_step", "arguments": {"command": "inventory"}}
        called = (await exchange(first, "mcp", jsonrpc="2.0", id=1, method="tools/call", params=params))["data"]
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
        await exchange(socket, "reset", seed=0)
    assert empty(bridge)
    assert "unknown" in ask(url, CLOSE, session_id=name)["error"]["message"]


@pytest.mark.slow
async def test_a_websocket_is_not_idle_while_tools_are_called_in_its_session(start):
    bridge = start(idle_seconds=3.0)
    url, look = at(bridge), {"name": "env_step", "arguments": {"command": "inventory"}}

    name = created(url)
    async with attach(url, name) as socket:
        await exchange(socket, "reset", seed=0)
        for _ in range(4):
            await anyio.sleep(1.0)
            await anyio.to_thread.run_sync(lambda: ask(url, "tools/call", session_id=name, **look)["result"])
        assert (await exchange(socket, "state"))["data"]["step_count"] == 4
        told = json.loads(await socket.recv())["data"]
        assert told["code"] == "SESSION_ERROR" and "nobody called for 3 s" in told["message"]
    assert await anyio.to_thread.run_sync(empty, bridge)
    assert "unknown" in ask(url, CLOSE, session_id=name)["error"]["message"]


async def test_a_bridge_that_ends_closes_its_sessions(start):
    bridge = start()
    url = at(bridge)

    async with attach(url, created(url)) as socket:
        await exchange(socket, "reset", seed=0)
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
