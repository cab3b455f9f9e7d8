"""Rewards belong to the answers that acted, whoever else speaks in between."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import httpx2
import pytest
from bringing import PROTOCOLS, agent_settings
from hypothesis import given
from hypothesis import strategies as st
from talking import Place, ask, body

from envsuite.core.tools import ToolCall
from envsuite.playing.engine import Sampling
from envsuite.playing.episode import EpisodePlan
from envsuite.playing.step import Episode, Step
from envsuite.vector import EnvFactory
from trainers.gateway.agents import Agent, AgentEpisode, AgentManager, FunctionAgent
from trainers.gateway.command import CommandAgent
from trainers.gateway.messages import Message, ParsedRequest
from trainers.gateway.session import AnsweredRequest
from trainers.rollout.config import AgentConfig

FACTORY = EnvFactory("counting_world:Counting-v0", {"max_episode_steps": 3})
PLAN = EpisodePlan(0, 0, 0, "one")
JUDGES = {
    "a verdict": lambda said: "Fine.",
    "the action again": lambda said: f"Fine: <action>{said}</action>",
    "nothing": lambda said: "",
}
ACTIONS = {"an action": "<action>go {}</action>", "no action": "I think {}", "the same action": "<action>go</action>"}


def played(place: Place, settings: dict[str, Any], says: Callable[[str], str]) -> Episode:
    """The episode of an agent whose model says what ``says`` returns for the end of a prompt."""
    place.engine.answer = lambda request: place.engine.ids(says(str(place.engine.tokenizer.decode(request.prompt_ids))))
    config = AgentConfig(**settings)
    agent: Agent = FunctionAgent(str(config.function)) if config.function else CommandAgent(config)
    manager = AgentManager(place.engine, place.gateway, place.url, agent, config, [FACTORY], 1, 1)
    with closing(manager):
        (episode,) = manager.run([PLAN], Sampling(max_tokens=64), 0)
    assert episode.error is None
    return episode


@pytest.fixture
def address(speaks: Any) -> Iterator[Place]:
    """A gateway at an address, whose engine the manager asks."""
    from trainers.gateway.app import serve

    place = Place(speaks)
    with serve(place.gateway) as place.url:
        yield place


def rewards(steps: tuple[Step, ...] | list[Step]) -> list[float]:
    return [step.reward for step in steps]


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("way", "protocol", "kind", "judge"),
    [
        *itertools.product(["function"], PROTOCOLS, ACTIONS, JUDGES),
        *itertools.product(["command"], PROTOCOLS, ["no action"], ["the action again"]),
    ],
)
def test_a_judge_between_answer_and_action_earns_nothing(way, protocol, kind, judge, address, tmp_path):
    numbers = itertools.count()

    def says(prompt: str) -> str:
        if "Judge." in prompt:
            asked = prompt.rpartition("user\n")[2].partition("<|im_end|>")[0]
            return JUDGES[judge](asked.partition("<action>")[2].partition("</action>")[0])
        return ACTIONS[kind].format(next(numbers))

    episode = played(address, agent_settings(way, tmp_path, protocol), says)
    actor, judged = episode.steps[::2], episode.steps[1::2]
    invalid = kind == "no action" and way == "function"  # a command calls the tool, with an empty text
    assert rewards(actor) == ([0.0] * 3 if invalid else [1.0, 2.0, 4.0]) and rewards(judged) == [0.0] * 3
    assert [step.valid for step in episode.steps] == [not invalid, True] * 3
    assert not {step.state_key for step in actor} & {step.state_key for step in judged}
    assert [step.state_key for step in actor] == (["0"] * 3 if invalid else ["0", "1", "2"])


_ops = st.lists(
    st.tuples(
        st.sampled_from(["ask", "ask", "act"]),
        st.integers(0, 2),  # who
        st.integers(1, 3),  # choices
        st.integers(0, 9),  # of which answer
        st.sampled_from(["type", "call", "id", "step"]),
    ),
    min_size=1,
    max_size=14,
)


@pytest.mark.seconds
@given(ops=_ops, distinct=st.booleans(), posted=st.none() | st.just(1000.0))
def test_no_reward_is_lost_or_doubled_and_each_is_the_answers_that_has_the_action(ops, distinct, posted, speaks):
    place, numbers = Place(speaks), itertools.count()
    call_of = '<tool_call>\n{"name": "do", "arguments": {"command": "go %d"}}\n</tool_call>'
    place.engine.answer = lambda request: place.engine.ids(call_of % (next(numbers) if distinct else 0))
    session, env = place.open(), AgentEpisode(EnvFactory("counting_world:Counting-v0").make(), "one", place.gateway)
    env.join_session(session)
    talks: dict[int, list[Message]] = {who: [Message("user", f"You are {who}. {env.text}")] for who in range(3)}
    left: list[tuple[AnsweredRequest, int]] = []
    expected: dict[tuple[int, int], float] = {}
    first = 0.0
    for what, who, count, which, how in ops:
        if what == "ask":
            ask = ParsedRequest("policy", tuple(talks[who]), env.offered, count, body=b"%d" % next(numbers))
            _, asked = place.gateway.ask(session.key, ask)
            place.gateway.pump(place.engine, 0.0)
            place.gateway.deliver(session, asked)
            left += [(asked, index) for index in range(count)]
            said = asked.choices[0].message
            talks[who] += [said, Message("user", f"Go on. {env.text}")]
            continue
        reward = 2.0**env._env.unwrapped.count  # type: ignore[attr-defined]
        if not left:
            env.type("alone")
            first += 0.0 if session.asked else reward
            continue
        asked, index = left.pop(which % len(left))
        ((call, given_id),) = asked.choices[index].message.calls
        expected[asked.number, index] = reward
        if how == "type":
            env.type(str(call.arguments["command"]))
        elif how == "step":
            env.step([ToolCall(call.name, dict(call.arguments))])
        else:
            env.call(call.name, dict(call.arguments), given_id if how == "id" else "")
    if not session.asked:
        return
    session.reward = posted
    total = float(2**env._env.unwrapped.count - 1) + (posted or 0.0)  # type: ignore[attr-defined]
    steps = session.episode().steps
    assert sum(rewards(list(steps))) == total
    found, at = {}, iter(steps)
    for asked in session.asked:
        for index in range(asked.ask.count):
            found[asked.number, index] = next(at).reward
    if distinct and posted is None and "alone" not in {acted.command for acted in session.actions}:
        assert {place: reward for place, reward in found.items() if reward} == expected


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_an_agent_says_which_answer_acts_by_the_calls_id_and_by_the_parent_of_a_judge(path, made):
    call = '<tool_call>\n{"name": "do", "arguments": {"command": "go"}}\n</tool_call>'
    place = made(lambda prompt: call)
    session, env = place.open(), AgentEpisode(EnvFactory("counting_world:Counting-v0").make(), "one", place.gateway)
    env.join_session(session)
    tools = env.tools if "chat" in path else [{**env.tools[0]["function"], "input_schema": {"type": "object"}}]
    sent = body("Go", max_tokens=64, tools=tools)
    first, second = (ask(place, path, session.key, {**sent, "metadata": {"x": str(n)}}).json() for n in range(2))
    judged = ask(place, path, session.key, {**sent, "metadata": {"parent": second["id"], "state_key": "mine"}})
    assert judged.status_code == 200
    wrong = ask(place, path, session.key, {**sent, "metadata": {"parent": "chatcmpl-0-0"}})
    assert wrong.status_code == 400 and "metadata.parent" in wrong.text
    ids = [asked.choices[0].message.calls[0][1] for asked in session.asked]
    named = {"name": "do", "arguments": {"command": "go"}, "_meta": {"tool_call_id": ids[0]}}
    headers = {"Authorization": f"Bearer {session.key}", "Accept": "application/json, text/event-stream"}
    request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": named}
    assert httpx2.post(f"{place.url}/env/mcp", json=request, headers=headers).json()["result"]["content"]
    env.call("do", {"command": "go"})
    steps = session.episode("").steps
    assert rewards(steps) == [1.0, 2.0, 0.0] and first["id"] != second["id"]
    assert [step.state_key for step in steps] == ["0", "0", "mine"]
