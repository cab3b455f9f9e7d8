"""Environments for openenv-core's own clients, and for whoever speaks its contract."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from talk import at, empty, example, played, run
from websockets.asyncio.client import ClientConnection, connect

from envsuite.serving.bridges.server import Bridge
from envsuite.textcraft.env import TextCraft

Start = Callable[..., Bridge]


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
