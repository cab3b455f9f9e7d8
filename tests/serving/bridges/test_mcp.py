"""Environments for the official MCP client, over real connections."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import UNSUPPORTED_PROTOCOL_VERSION
from talk import EACH, OPEN, called, empty, example, opened, played
from waiting import until

from envsuite.serving.bridges import mcp
from envsuite.serving.bridges.players import RESET
from envsuite.serving.bridges.server import Bridge, bridging
from envsuite.serving.bridges.settings import BridgeSettings
from envsuite.textcraft.env import TextCraft

PATIENT = "talk:Patient-v0"


def texts(result: Any) -> list[str]:
    return [block.text for block in result.content]


def at(bridge: Bridge, env_id: str = "TextCraft-v0", **more: Any) -> Client:
    return Client(f"{bridge.url}/mcp/{env_id}", **more)


async def play(client: Client, env_id: str, seed: int) -> None:
    """Play an episode, and compare it with the one that was played here."""
    here = played(env_id, seed)
    begun = await client.call_tool("reset", {"seed": seed})
    assert texts(begun)[:2] == [here.task, here.text] and not begun.is_error
    assert begun.structured_content["task_id"] == here.info["task_id"]
    for call, came in here.steps:
        result = await client.call_tool(call.name, dict(call.arguments))
        told = result.structured_content
        assert not result.is_error and texts(result)[0] == told["observation"] == came["text"]
        for name in ("commands", "reward", "terminated", "truncated"):
            assert told[name] == came[name]
        for name in ("valid", "error", "success", "score", "task_type", "split"):
            assert told[name] == came["info"][name]
    assert "The episode has ended" in texts(result)[-1]
    after = await client.call_tool(call.name, dict(call.arguments))
    assert after.is_error and texts(after) == ["the episode has ended: call reset to start another one"]


@EACH
async def test_an_episode_by_mcp_is_the_local_one_step_for_step(bridge, start, env_id):
    bridge = bridge if env_id in bridge.endpoints else start(env_id)

    async with at(bridge, env_id) as client:
        for seed in (0, 3, 4):
            await play(client, env_id, seed)
    assert empty(bridge)


@pytest.mark.parametrize("mode", ["auto", pytest.param("legacy", marks=pytest.mark.slow)])
async def test_an_episode_over_stdio_is_the_local_one_with_and_without_handshake(mode, root, tmp_path):
    server = json.loads(example("json", root))["mcpServers"]["textcraft"]
    assert server.pop("command") == "envsuite"
    command = StdioServerParameters(command=sys.executable, args=["-m", "envsuite.cli", *server.pop("args")])

    with (tmp_path / "errors").open(
        "w"
    ) as errors:  # the server writes there: under mutmut standard error has no number
        async with Client(stdio_client(command, errors), mode=mode) as client:
            await play(client, "TextCraft-v0", 2)


async def test_tools_and_what_cannot_be_done_are_told_to_the_model(bridge):
    async with at(bridge) as client:
        assert "env_step" in client.instructions and client.server_info.name == "TextCraft-v0"
        listed = [(one.name, one.description, one.input_schema) for one in (await client.list_tools()).tools]
        assert listed == [(one.name, one.description, dict(one.parameters)) for one in (RESET, *TextCraft.tools)]
        early = await client.call_tool("env_step", {"command": "inventory"})
        assert early.is_error and texts(early) == ["no episode is running: call reset to start one"]
        assert (await client.call_tool("reset", {"task_id": "cyan_banner"})).structured_content["task_id"]
        for wrong, message in (
            ({"task_id": "cyan_baner"}, "cyan_banner"),
            ({"seed": -1}, "seed"),
            ({"sed": 1}, "sed"),
            ({"seed": "\u2603"}, "seed"),
        ):
            result = await client.call_tool("reset", wrong)
            assert result.is_error and message in texts(result)[0]
        goes_on = await client.call_tool("env_step", {"command": "inventory"})
        assert goes_on.structured_content["task_id"] == "cyan_banner", "the episode is still under way"


@pytest.mark.parametrize("fleet", [False, True], ids=["here", "fleet"])
async def test_clients_that_play_at_the_same_time_do_not_mix(start, server, fleet):
    bridge = start(urls=(server,) if fleet else ())

    async def one(seed: int) -> None:
        async with at(bridge) as client:
            await play(client, "TextCraft-v0", seed)

    async with anyio.create_task_group() as group:
        for seed in (0, 2, 4, 6):
            group.start_soon(one, seed)
    assert empty(bridge)


async def test_a_client_of_the_revision_without_sessions_is_told_which_have_them(bridge):
    async with at(bridge, mode="2026-07-28") as client:
        assert len((await client.list_tools()).tools) == 2
        with pytest.raises(MCPError) as refused:
            await client.call_tool("reset", {})
    error = refused.value.error
    assert error.code == UNSUPPORTED_PROTOCOL_VERSION and "2025-11-25" in error.data["supported"]


def test_a_client_that_vanishes_frees_its_seat(start, monkeypatch):
    monkeypatch.setattr(mcp, "RECONNECT_SECONDS", 0.2)
    bridge = start()
    with opened(bridge) as (http, url):
        with http.stream("GET", url) as listening:
            assert listening.status_code == 200
            time.sleep(0.5)
            assert called(http, url, "env_step", command="inventory")["isError"] is False
        assert empty(bridge)
        until(lambda: called(http, url, "reset") == 404)  # its session has ended, too


@contextlib.contextmanager
def listening(http: httpx2.Client, url: str) -> Iterator[None]:
    """Opens the stream of server messages; it is refused until the server has noticed the end of the one before."""
    for _ in range(100):
        with http.stream("GET", url) as stream:
            if stream.status_code == 200:
                yield
                return
            assert stream.status_code == 409
        time.sleep(0.02)
    raise AssertionError("the end of the last stream is not noticed")


@pytest.mark.slow
def test_a_client_that_comes_back_in_time_keeps_its_episode(start, monkeypatch):
    monkeypatch.setattr(mcp, "RECONNECT_SECONDS", 3.0)
    bridge = start()
    with opened(bridge) as (http, url):
        for _ in range(2):
            with listening(http, url):
                pass
        with listening(http, url):
            time.sleep(4)
            assert called(http, url, "env_step", command="inventory")["isError"] is False


def test_a_bridge_that_ends_does_not_wait_for_clients_that_listen():
    with contextlib.ExitStack() as stack:
        with bridging(BridgeSettings(("TextCraft-v0",), port=0)) as bridge:
            http, url = stack.enter_context(opened(bridge))
            listening = stack.enter_context(http.stream("GET", url))
        assert list(listening.iter_lines()) == [] and bridge.seats.taken == 0


def test_a_client_that_ends_its_session_frees_its_seat_at_once(start):
    bridge = start()
    with opened(bridge) as (http, url):
        assert http.delete(url).status_code == 200
        assert bridge.seats.taken == 0


async def test_an_episode_that_idles_is_ended_and_the_client_told(start):
    bridge = start(idle_seconds=0.4)

    async with at(bridge) as client:
        await client.call_tool("reset", {})
        assert await anyio.to_thread.run_sync(empty, bridge)
        late = await client.call_tool("env_step", {"command": "inventory"})
        assert late.is_error and "nobody called for 0.4 s" in texts(late)[0]
        assert not (await client.call_tool("reset", {})).is_error


async def test_a_slow_world_delays_nobody_and_a_broken_one_only_its_player(bridge):
    OPEN.clear()
    waited = []

    async def slow(started: anyio.Event) -> None:
        async with at(bridge, PATIENT) as client:
            await client.call_tool("reset", {})
            started.set()
            waited.append(texts(await client.call_tool("do", {"command": "wait"})))

    started = anyio.Event()
    async with anyio.create_task_group() as group, at(bridge, PATIENT) as client:
        group.start_soon(slow, started)
        await started.wait()
        for verb in ("raise", "unsendable"):
            assert texts(await client.call_tool("reset", {}))[0].startswith("Count in")
            result = await client.call_tool("do", {"command": verb})
            assert result.is_error and "the world failed" in texts(result)[0]
            result = await client.call_tool("do", {"command": "go"})
            assert result.is_error and "call reset" in texts(result)[0]
        assert not waited
        OPEN.set()
    assert waited == [["a 1"]]


async def test_only_who_has_the_token_may_ask(start):
    bridge = start(token="secret")
    url = f"{bridge.url}/mcp/TextCraft-v0"

    async def asked(headers: dict[str, str]) -> bool:
        with contextlib.suppress(MCPError, ExceptionGroup):
            async with httpx2.AsyncClient(headers=headers) as http:
                async with Client(streamable_http_client(url, http_client=http)) as client:
                    return not (await client.call_tool("reset", {})).is_error
        return False

    assert await asked({"Authorization": "Bearer secret"})
    for headers in ({}, {"Authorization": "Bearer secre"}, {"Authorization": "Basic secret"}):
        assert not await asked(headers)
    health = f"{bridge.url}/openenv/TextCraft-v0/health"
    for password, status in (("secre", 401), ("secret", 200)):  # as openenv's client shows it
        assert httpx2.get(health.replace("://", f"://envsuite:{password}@")).status_code == status
    reply = httpx2.post(url, json={})
    assert reply.status_code == 401 and reply.json()["type"] == "urn:envsuite:problem:unauthorized"
    assert reply.headers["www-authenticate"] == "Bearer"
