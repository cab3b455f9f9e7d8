"""Servers, vectors and bridges follow the tools that change in mid-conversation."""

from __future__ import annotations

import pytest
from bakery_world import Bakery, bake, reply
from mcp import Client
from talk import run

from envsuite.core import ToolCall
from envsuite.remote import RemoteEnv
from envsuite.serving.bridges.openenv import OpenEnvEpisodes
from envsuite.serving.bridges.players import BridgePlayer, Seats, offer
from envsuite.serving.bridges.server import bridging
from envsuite.serving.bridges.settings import BridgeSettings
from envsuite.serving.server import serving
from envsuite.serving.settings import ServerSettings
from envsuite.vector import EnvFactory, make_vector

BAKERY = "bakery_world:Bakery-v0"


def test_an_environment_on_a_server_names_and_refuses_the_same_tools():
    with serving(ServerSettings((BAKERY,), port=0, workers=0)) as server:
        here, remote = Bakery(), RemoteEnv(server.url, BAKERY)
        assert remote.observation_space == here.observation_space and remote.tools_change
        assert here.reset() == remote.reset()
        for action in (bake(), reply(), bake(), (ToolCall("knead", {"dough": "rye"}),), reply()):
            assert here.step(action) == remote.step(action)
            assert [tool.name for tool in here.offered] == [tool.name for tool in remote.offered]
        remote.close()


@pytest.mark.parametrize("workers", [0, 1])
def test_vectors_pass_the_tools_on(workers):
    with make_vector([EnvFactory(BAKERY)], slots=1, workers=workers) as vector:
        vector.reset(0, 0, task_id="rye")
        seen = [vector.poll(60.0)[0].observation]
        vector.step(0, reply())
        seen.append(vector.poll(60.0)[0].observation)
        assert [observation["tools"] for observation in seen] == [("knead", "sell", "reply"), ("sell", "bake", "reply")]


def test_mcp_lists_the_tools_of_its_session_and_says_when_they_are_others():
    async def play() -> None:
        async with Client(f"{bridge.url}/mcp/{BAKERY}") as client:

            async def listed() -> list[str]:
                return [tool.name for tool in (await client.list_tools()).tools]

            assert await listed() == ["reset", "knead", "sell", "bake", "reply"]
            begun = await client.call_tool("reset", {})
            assert begun.structured_content["tools"] == ["knead", "sell", "reply"]
            assert await listed() == ["reset", "knead", "sell", "reply"]
            refused = await client.call_tool("bake", {"bread": "rye"})
            assert refused.structured_content["valid"] is False
            came = await client.call_tool("reply", {"text": "Done."})
            assert "The tools are others now: list them again." in [block.text for block in came.content]
            assert await listed() == ["reset", "sell", "bake", "reply"]

    with bridging(BridgeSettings((BAKERY,), port=0)) as bridge:
        run(play)


def test_openenv_names_the_tools_in_observations_and_lists_those_of_the_session():
    async def play() -> None:
        episodes = OpenEnvEpisodes(BridgePlayer(offer(BAKERY), Seats(1)))

        async def names(message: dict[str, object]) -> list[str]:
            observation = (await episodes.answer(message))["data"]["observation"]
            return [tool if isinstance(tool, str) else tool["name"] for tool in observation["tools"]]

        listing = {"type": "step", "data": {"type": "list_tools"}}
        assert await names({"type": "reset"}) == await names(listing) == ["knead", "sell", "reply"]
        step = {"tool_name": "reply", "arguments": {"text": "Done."}}
        assert await names({"type": "step", "data": step}) == await names(listing) == ["sell", "bake", "reply"]

    run(play)
