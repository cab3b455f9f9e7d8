"""Agents behind the gateway are given the tools of their time, and their requests' tools are those that are read."""

from __future__ import annotations

from typing import Any

from bakery_world import BAKE, bake, reply
from talking import Place

from envsuite.core.tools import REPLY, ToolCall
from envsuite.playing.engine import ChatRequest, Sampling
from envsuite.vector import EnvFactory
from trainers.gateway.agents import AgentEpisode
from trainers.gateway.messages import Message, ParsedRequest
from trainers.gateway.teaching import ExpertEngine


def names(game: AgentEpisode) -> list[str]:
    return [tool["function"]["name"] for tool in game.tools]


class Baker:
    """Replies, bakes, replies."""

    def act(self, env: Any) -> Any:
        world = env.unwrapped
        return bake() if world.replies and not world.baked else reply("All is done.")


def test_an_agent_s_tools_are_those_that_can_be_called_now_and_prompts_have_them(speaks):
    place = Place(speaks, lambda prompt: "Well.")
    session, game = place.open(), AgentEpisode(EnvFactory("bakery_world:Bakery-v0").make(), "rye", place.gateway)
    game.join_session(session)
    assert names(game) == ["knead", "sell", "reply"]
    prompts = []
    for number in range(2):
        ask = ParsedRequest("policy", (Message("user", game.text),), game.offered, body=b"%d" % number)
        _, asked = place.gateway.ask(session.key, ask)
        place.gateway.pump(place.engine, 0.0)
        place.gateway.deliver(session, asked)
        prompts.append(asked.prompt.text)
        if not number:
            assert "unknown tool 'bake'" in game.call("bake", {"bread": "rye"})
            assert game.call("reply", {"text": "Done."}) == "User: Now bake."
            assert names(game) == ["sell", "bake", "reply"]
    assert BAKE.description not in prompts[0] and BAKE.description in prompts[1]


def test_the_expert_replies_with_a_text_where_the_agent_s_model_has_no_tool_for_it(speaks):
    place = Place(speaks, lambda prompt: "Well.")
    game = AgentEpisode(EnvFactory("bakery_world:Bakery-v0").make(), "rye", place.gateway)
    game.join_session(place.open())
    engine = ExpertEngine(1)
    engine.join(7, game, Baker())
    for without in (True, False):
        tools = [tool.as_openai() for tool in game.offered if not (without and tool == REPLY)]
        engine.submit([ChatRequest(1, (), tools, Sampling(), 7, 0)])
        (completion,) = engine.poll()
        calls = [ToolCall(call.name, {}).name for call in completion.answer.calls]
        assert (completion.answer.content, calls) == (("All is done.", []) if without else ("", ["reply"]))
