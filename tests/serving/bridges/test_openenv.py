"""Environments for openenv-core's own clients, and for whoever speaks its contract."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from talk import EACH, OPEN, empty, example, played, run
from websockets.asyncio.client import ClientConnection, connect

from envsuite.serving.bridges.server import Bridge
from envsuite.textcraft.env import TextCraft

Start = Callable[..., Bridge]
PATIENT = "talk:Patient-v0"


@pytest.fixture(scope="module")
def core() -> Any:
    """The package whose clients are tested."""
    return pytest.importorskip(
        "openenv.core", reason="needs openenv-core; docs/bridges.md#openenv says how to install it"
    )


def at(bridge: Bridge, env_id: str = "TextCraft-v0") -> str:
    return f"{bridge.url}/openenv/{env_id}"


def action(call: Any) -> dict[str, Any]:
    return {"tool_name": call.name, "arguments": dict(call.arguments)}


async def play(client: Any, env_id: str, seed: int) -> None:
    """Play an episode, and compare it with the one that was played here."""
    here = played(env_id, seed)
    begun = await client.reset(seed=seed, episode_id=f"number {seed}")
    assert (begun.observation["task"], begun.observation["text"]) == (here.task, here.text)
    assert begun.observation["metadata"].items() >= here.info.items() and begun.reward is None and not begun.done
    for number, (call, came) in enumerate(here.steps, start=1):
        result = await client.step(action(call))
        seen = result.observation
        assert (seen["text"], seen["commands"], result.reward) == (came["text"], came["commands"], came["reward"])
        assert result.done == (came["terminated"] or came["truncated"])
        ends = {name: came[name] for name in ("terminated", "truncated")}
        assert seen["metadata"] == {**came["info"], **ends} and seen["tool_name"] == call.name
        state = await client.state()
        assert (state["episode_id"], state["step_count"]) == (f"number {seed}", number)
    with pytest.raises(RuntimeError, match="the episode has ended: call reset"):
        await client.step(action(call))


@EACH
def test_an_episode_of_openenvs_client_is_the_local_one_step_for_step(
    bridge: Bridge, start: Start, core: Any, env_id: str
) -> None:
    bridge = bridge if env_id in bridge.endpoints else start(env_id)

    async def talk() -> None:
        async with core.GenericEnvClient(at(bridge, env_id)) as client:
            for seed in (0, 3, 4):
                await play(client, env_id, seed)

    run(talk)
    assert empty(bridge)


def test_openenvs_clients_that_play_at_the_same_time_do_not_mix(start: Start, server: str, core: Any) -> None:
    bridge = start(urls=(server,))

    async def one(seed: int) -> None:
        async with core.GenericEnvClient(at(bridge)) as client:
            await play(client, "TextCraft-v0", seed)

    async def talk() -> None:
        async with anyio.create_task_group() as group:
            for seed in (0, 2, 4, 6):
                group.start_soon(one, seed)

    run(talk)
    assert empty(bridge)


def test_openenvs_client_of_tools_lists_and_calls_them(bridge: Bridge, core: Any) -> None:
    async def talk() -> None:
        async with core.MCPToolClient(at(bridge)) as client:
            (tool,) = await client.list_tools()
            assert (tool.name, tool.input_schema) == ("env_step", dict(TextCraft.tools[0].parameters))
            begun = await client.reset(seed=0)
            assert begun.observation.result == f"{played('TextCraft-v0', 0).task}\n\n{played('TextCraft-v0', 0).text}"
            assert "Inventory" in await client.call_tool("env_step", command="inventory")
            assert (await client.state()).step_count == 1

    run(talk)


def test_openenvs_own_check_of_a_running_environment_passes(bridge: Bridge, core: Any) -> None:
    checks = pytest.importorskip("openenv.cli._validation")
    report = checks.validate_running_environment(at(bridge))
    assert report["passed"], [criterion for criterion in report["criteria"] if not criterion["passed"]]
    assert (report["mode"], report["standard_version"]) == ("simulation", "1.0.0")


def test_a_full_bridge_answers_a_reset_with_the_contracts_error(start: Start, core: Any) -> None:
    bridge = start(max_sessions=1)

    async def talk() -> None:
        async with core.GenericEnvClient(at(bridge)) as second:
            async with core.GenericEnvClient(at(bridge)) as first:
                await first.reset()
                with pytest.raises(RuntimeError, match=r"all 1 seats are taken.*CAPACITY_REACHED"):
                    await second.reset()
                reply = await anyio.to_thread.run_sync(lambda: httpx2.post(f"{at(bridge)}/reset", json={}))
                assert reply.status_code == 429
            assert await anyio.to_thread.run_sync(empty, bridge)
            assert (await second.reset()).observation["task"]

    run(talk)


def test_openenvs_client_shows_the_token_as_a_password(start: Start, core: Any) -> None:
    bridge = start(token="secret")

    async def talk() -> None:
        for user, welcome in (("", False), ("envsuite:secre@", False), ("envsuite:secret@", True)):
            client = core.GenericEnvClient(at(bridge).replace("://", f"://{user}"))
            if not welcome:
                with pytest.raises(ConnectionError, match="401"):
                    await client.connect()
                continue
            async with client:
                assert (await client.reset()).observation["task"]

    run(talk)
    assert httpx2.get(f"{at(bridge)}/health").status_code == 401
    assert httpx2.get(f"{at(bridge)}/health", headers={"Authorization": "Bearer secret"}).json()["status"] == "healthy"


async def say(socket: ClientConnection, message: Any) -> dict[str, Any]:
    await socket.send(message if isinstance(message, str | bytes) else json.dumps(message))
    return json.loads(await socket.recv())


def test_a_message_that_makes_no_sense_is_answered_with_the_contracts_error(bridge: Bridge) -> None:
    step = {"type": "step", "data": {"tool_name": "env_step", "arguments": {}}}

    async def talk() -> None:
        async with connect(f"{at(bridge)}/ws".replace("http", "ws")) as socket:
            for message, code in (
                ("{", "INVALID_JSON"),
                (b"\xff\xfe", "INVALID_JSON"),
                ("", "INVALID_JSON"),
                ("[" * 100_000, "INVALID_JSON"),
                ([], "VALIDATION_ERROR"),
                (7, "VALIDATION_ERROR"),
                ({}, "VALIDATION_ERROR"),
                ({"type": ["reset"]}, "VALIDATION_ERROR"),
                ({"type": "dance"}, "UNKNOWN_TYPE"),
                (step, "EXECUTION_ERROR"),
                ({"type": "reset", "data": {"seed": -1}}, "VALIDATION_ERROR"),
                ({"type": "reset", "data": {"task_id": "cyan_baner"}}, "EXECUTION_ERROR"),
                ({"type": "reset", "data": []}, "VALIDATION_ERROR"),
                ({"type": "step", "data": {"command": "look"}}, "VALIDATION_ERROR"),
                ({"type": "step"}, "VALIDATION_ERROR"),
            ):
                told = await say(socket, message)
                assert (told["type"], told["data"]["code"]) == ("error", code), message
                assert told["data"]["message"]
            assert (await say(socket, {"type": "reset", "data": {"model": "unknown names are ignored"}}))["data"]
            assert (await say(socket, step))["data"]["observation"]["metadata"]["valid"] is False
            listed = await say(socket, {"type": "mcp", "data": {"jsonrpc": "2.0", "id": 5, "method": "tools/list"}})
            assert listed["data"]["id"] == 5 and len(listed["data"]["result"]["tools"]) == 1

    run(talk)
    assert empty(bridge)


def test_a_client_that_vanishes_in_mid_step_frees_its_seat(bridge: Bridge) -> None:
    async def talk() -> None:
        socket = await connect(f"{at(bridge, PATIENT)}/ws".replace("http", "ws"))
        await say(socket, {"type": "reset"})
        sleep = {"type": "step", "data": {"tool_name": "do", "arguments": {"command": "sleep 0.3"}}}
        await socket.send(json.dumps(sleep))
        await asyncio.sleep(0.1)
        assert bridge.seats.taken == 1
        socket.transport.abort()

    run(talk)
    assert empty(bridge)


def test_a_broken_world_ends_its_episode_only_and_a_slow_one_delays_nobody(bridge: Bridge) -> None:
    def do(command: str) -> dict[str, Any]:
        return {"type": "step", "data": {"tool_name": "do", "arguments": {"command": command}}}

    async def talk() -> None:
        url = f"{at(bridge, PATIENT)}/ws".replace("http", "ws")
        async with connect(url) as slow, connect(url) as other:
            assert (await say(slow, {"type": "reset"}))["type"] == (await say(other, {"type": "reset"}))["type"]
            OPEN.clear()
            await slow.send(json.dumps(do("wait")))
            failed = await say(other, do("raise"))
            assert failed["data"]["code"] == "EXECUTION_ERROR" and "ZeroDivisionError" in failed["data"]["message"]
            assert "call reset" in (await say(other, do("go")))["data"]["message"]
            assert (await say(other, {"type": "reset"}))["data"]["observation"]["text"] == "0"
            assert (await say(other, do("go")))["data"]["reward"] == 0.5
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(slow.recv(), 0.01)
            OPEN.set()
            assert json.loads(await slow.recv())["data"]["observation"]["text"] == "a 1"

    run(talk)
    assert empty(bridge)


def test_a_player_that_idles_is_told_and_sent_away(start: Start) -> None:
    bridge = start(idle_seconds=0.3)

    async def talk() -> list[Any]:
        async with connect(f"{at(bridge)}/ws".replace("http", "ws")) as socket:
            await socket.send('{"type": "reset"}')
            return [json.loads(message) async for message in socket]

    told = run(talk)[-1]
    assert told["data"]["code"] == "SESSION_ERROR" and "0.3 s" in told["data"]["message"]
    assert empty(bridge)


def test_single_requests_are_answered_as_the_contract_has_them(bridge: Bridge) -> None:
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


def test_the_example_of_the_page_plays(
    bridge: Bridge, core: Any, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exec(example("python\nfrom openenv", root).replace("http://127.0.0.1:8000", bridge.url), {})
    assert "Goal: craft" in capsys.readouterr().out
    assert empty(bridge)


def test_the_task_api_lists_what_the_environment_has_and_a_reset_takes_its_index(bridge: Bridge) -> None:
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
def test_a_task_that_does_not_exist_is_answered_with_what_does(
    bridge: Bridge, path: str, body: object, status: int, words: str
) -> None:
    reply = httpx2.post(f"{at(bridge)}/{path}", json=body)
    assert reply.status_code == status and words in reply.text, reply.text
