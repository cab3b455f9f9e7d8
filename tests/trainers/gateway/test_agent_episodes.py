"""Episodes of agents: those of our own player are what the rollout manager plays, and what else becomes of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from broken_worlds import FAILURES
from tiny_runs import BOOK, model, tokenizer

from envsuite.core.errors import WorkerLost
from envsuite.core.tools import UnparsedAction
from envsuite.playing.dialog import TokenDialogs
from envsuite.playing.engine import Sampling
from envsuite.playing.episode import EpisodePlan
from envsuite.playing.manager import RolloutManager
from envsuite.playing.step import Episode
from envsuite.prompting import PromptSpec, make_codec, make_memory
from envsuite.textcraft.env import TextCraft
from envsuite.vector import EnvFactory, make_vector
from trainers.gateway import agents
from trainers.gateway.agents import AgentManager, AgentTask, Client, FunctionAgent, ServiceAgent
from trainers.gateway.gateway import Gateway
from trainers.gateway.messages import Message, ParsedRequest, Refused
from trainers.gateway.sequences import Writer
from trainers.policy.model import stop_ids
from trainers.rollout.config import AgentConfig
from trainers.rollout.hf_engine import HFEngine
from trainers.settings import ConfigError
from trainers.steps import StepTable

FACTORY = EnvFactory("TextCraft-v0", {**BOOK, "max_episode_steps": 4})
CODEC = make_codec("tags", think=False)
Play = Callable[[AgentTask, Client], float | None]


def asked(client: Client, messages: list[Message]) -> str:
    """The text of the model's answer."""
    ask = ParsedRequest(client.model, tuple(messages), body=repr(messages).encode())
    session, taken = client.gateway.ask(client.api_key, ask)
    (choice,) = taken.done.result()
    client.gateway.deliver(session, taken)
    return choice.message.text


def player(task: AgentTask, client: Client) -> None:
    """Plays as the trainer's own prompts do: the codec ``tags``, all of the conversation."""
    env = client.env
    assert env is not None
    messages = [Message("user", f"{env.goal}\n\n{env.text}")]
    while not env.done:
        text = asked(client, messages)
        parsed = CODEC.parse(text, env.offered, 1)
        answer = env.step(parsed.action if parsed.action is not None else UnparsedAction(parsed.error or ""))
        messages += [Message("assistant", text), Message("user", answer)]


def _engine() -> HFEngine:
    return HFEngine(model("qwen2", len(tokenizer())), max_batch=8)


def _sampling() -> Sampling:
    return Sampling(max_tokens=7, stop_ids=tuple(stop_ids(model("qwen2", len(tokenizer())), tokenizer(), ())))


def _plans(count: int = 4) -> list[EpisodePlan]:
    env = FACTORY.make()
    tasks = env.unwrapped.tasks.ids("train")[: count // 2]  # type: ignore[attr-defined]
    return [EpisodePlan(7 + i, i // 2, 0, tasks[i // 2]) for i in range(count)]


@pytest.fixture
def made() -> Iterator[Callable[..., AgentManager]]:
    managers = []

    def make(play: Play | None, **settings: Any) -> AgentManager:
        gateway = Gateway(Writer(tokenizer()), _sampling(), 0)
        config = AgentConfig(run="agent.py:play", **settings)
        agent = ServiceAgent(gateway) if play is None else FunctionAgent.__new__(FunctionAgent)
        if isinstance(agent, FunctionAgent):
            agent.place, agent.function = "agent.py:play", play  # type: ignore[assignment]
        manager = AgentManager(_engine(), gateway, "", agent, config, [FACTORY], 3, 1)
        managers.append(manager)
        return manager

    yield make
    for manager in managers:
        manager.close()


@pytest.mark.parametrize("slots", [1, 3])
def test_our_own_player_has_the_episodes_of_the_rollout_manager(slots, made):
    """With several at a time, log-probabilities are equal to the rounding of other batches."""
    plans, own_player = _plans(6), made(player)
    own_player.slots = slots
    ours = own_player.run(plans, _sampling(), 5)
    spec = PromptSpec(CODEC, make_memory("full"), instructions=False, commands=False)
    manager = RolloutManager(
        _engine(), make_vector([FACTORY], slots), ["TextCraft-v0"], TokenDialogs(tokenizer(), spec)
    )
    own = manager.run(plans, _sampling(), 5)
    manager.close()
    assert sum(len(episode.steps) for episode in own) > len(plans)
    found = [StepTable.from_episodes(episodes) for episodes in (ours, own)]
    for name in ("prompt", "response", "logprob", "policy_version"):
        one, two = (getattr(table, name) for table in found)
        np.testing.assert_array_equal(one.offsets, two.offsets)
        np.testing.assert_allclose(one.values, two.values, rtol=0, atol=0 if slots == 1 or name != "logprob" else 1e-5)
    for name in ("group_id", "episode_id", "t", "reward", "state_key", "valid"):
        np.testing.assert_array_equal(*(getattr(table, name) for table in found))
    one, two = ([(e.success, e.score, e.terminated, e.truncated, e.error) for e in some] for some in (ours, own))
    assert one == two
    assert all(step.info["gateway"]["parent"] == (step.t - 1 if step.t else None) for e in ours for step in e.steps)


def _alone(manager: AgentManager) -> Episode:
    (episode,) = manager.run(_plans(2)[:1], _sampling(), 5)
    return episode


def _returning(reward: float | None) -> Play:
    """An agent that asks once, and returns this."""

    def play(task: AgentTask, client: Client) -> float | None:
        asked(client, [Message("user", task.text)])
        return reward

    return play


def test_the_reward_that_an_agent_returns_is_its_episodes_and_without_one_the_episode_is_left_out(made):
    episode = _alone(made(_returning(0.25)))
    assert [step.reward for step in episode.steps] == [0.25] and episode.error is None
    assert (episode.score, episode.success, episode.terminated) == (0.25, False, True)
    assert "no finite number from -1000 to 1000" in str(_alone(made(_returning(1e308))).error)
    assert "AgentSilent" in str(_alone(made(lambda task, client: 1.0)).error)
    without = _alone(made(_returning(None), environment=False))
    assert without.error is not None and without.error.startswith("NoReward") and without.unanswered
    assert not len(StepTable.from_episodes([without]))


def test_an_agent_that_never_stops_is_cut_at_its_limits(made):
    refused: list[Refused] = []

    def talks(task: AgentTask, client: Client) -> None:
        try:
            for number in range(100):
                asked(client, [Message("user", f"{number}")])
        except Refused as error:
            refused.append(error)
            raise RuntimeError("the client of some package says so in its own words") from error

    episode = _alone(made(talks, requests=3))
    assert len(episode.steps) == 3 and episode.truncated and episode.error is None
    assert refused[0].status == 403 and "3 requests" in str(refused[0])
    episode = _alone(made(talks, tokens=9))
    assert episode.truncated and sum(len(step.response_ids) for step in episode.steps) <= 9


def test_an_agent_that_outlives_its_time_holds_nobody_up(made):
    late: list[Refused] = []
    over, asked_again = threading.Event(), threading.Event()

    def sleeps(task: AgentTask, client: Client) -> None:
        asked(client, [Message("user", "a")])
        over.wait(60.0)
        try:
            asked(client, [Message("user", "b")])
        except Refused as error:
            late.append(error)
        asked_again.set()

    manager = made(sleeps, seconds=0.3)
    manager.agent.grace = 0.1
    episode = _alone(manager)
    assert len(episode.steps) == 1 and episode.truncated
    over.set()
    assert asked_again.wait(60.0) and late[0].status == 401, "its key is worth nothing after the episode"


def test_an_environment_that_cannot_begin_fails_its_episode_and_no_other(made, monkeypatch):
    reset, failing = TextCraft.reset, _plans(4)[0].task_id

    def broken(self: TextCraft, **given: Any) -> Any:
        if given["options"]["task_id"] == failing:
            raise WorkerLost("the server has gone")
        return reset(self, **given)

    monkeypatch.setattr(TextCraft, "reset", broken)
    manager = made(player)
    manager.attempts = 2
    one, two, *others = manager.run(_plans(4), _sampling(), 5)
    assert {one.error, two.error} == {"TextCraft-v0: WorkerLost: the server has gone"}
    assert all(episode.error is None and episode.steps for episode in others)
    assert manager.timing.repeated == 2


def test_a_service_posts_its_reward_after_the_end_or_is_left_out(made, monkeypatch):
    monkeypatch.setattr(agents, "REWARD_WAIT", 0.2)
    manager = made(None, environment=False)
    gateway = manager.gateway

    def service() -> None:
        for number in range(2):
            while (session := gateway.next()) is None:
                time.sleep(0.01)
            client = Client(gateway, "", session.key, None)
            asked(client, [Message("user", session.about["task"])])
            gateway.finish(session.number)
            if number == 0:
                gateway.reward(session.number, 1.0)

    thread = threading.Thread(target=service)
    thread.start()
    one, two = manager.run(_plans(2), _sampling(), 5)
    thread.join()
    assert one.success and one.error is None
    assert str(two.error).startswith("NoReward")


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("nothing.py:play", "file.py:function"),
        ("agent.py", "file.py:function"),
        ("{}/agent.py:sing", "has no function sing"),
        ("{}/wrong.py:play", "wrong.py.*SyntaxError"),
    ],
)
def test_a_function_that_is_not_there_is_named(place, told, tmp_path):
    (tmp_path / "agent.py").write_text("def play(task, client):\n    return 1\n")
    (tmp_path / "wrong.py").write_text("def play(:\n")
    with pytest.raises(ConfigError, match=told):
        FunctionAgent(place.format(tmp_path))
    assert FunctionAgent(f"{tmp_path}/agent.py:play").function(None, None) == 1


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, r"rollout\.agent\.run is missing: file\.py:function, a program"),
        ({"run": "service", "models": {"policy": "http://h/v1"}}, "policy, which is the model that is trained"),
    ],
)
def test_settings_of_an_agent_that_contradict_each_other_are_refused(given, told):
    with pytest.raises(ConfigError, match=told):
        AgentConfig(**given)


@pytest.mark.parametrize("listen", ["127.0.0.1", "::1", ":80", "[]:80", "a:65536", "a:-1", "http://a:80", "[::1]"])
def test_what_is_no_address_with_a_port_is_refused(listen):
    for right, address in {"[::1]:8080": ("::1", 8082), "localhost:0": ("localhost", 0)}.items():
        assert AgentConfig(run="service", listen=right).address(2) == address
    with pytest.raises(ConfigError, match=r"rollout\.agent\.listen is .*; write an address and a port"):
        AgentConfig(run="service", listen=listen)


@pytest.mark.parametrize("kind", FAILURES)
def test_an_agent_that_fails_in_any_way_ends_its_own_episode_at_once(kind, made):
    def fails(task: AgentTask, client: Client) -> Any:
        asked(client, [Message("user", task.text)])
        return FAILURES[kind][0]() if task.id == _plans()[0].task_id else 0.5

    began, manager = time.monotonic(), made(fails)
    first, *_, last = manager.run(_plans(), _sampling(), 5)
    assert time.monotonic() - began < 60 and last.error is None
    assert FAILURES[kind][1] in str(first.error) and "agent.py:play" in str(first.error)
    assert StepTable.from_episodes([first, last]).episode_id.tolist() == [last.episode_id]


@pytest.mark.parametrize("swallowed", [True, False])
def test_an_environment_that_fails_in_a_call_is_not_the_agents_failure(swallowed, made, monkeypatch):
    def play(task: AgentTask, client: Client) -> float | None:
        assert client.env is not None
        try:
            client.env.type("inventory")
        except Exception:
            if not swallowed:
                raise
        return 1.0

    monkeypatch.setattr(TextCraft, "_call", lambda self, call: FAILURES["exit"][0]())
    episode = _alone(made(play))
    assert str(episode.error).startswith("the environment failed: CodeError: SystemExit was raised: usage")
    assert f"task {episode.task_id}" in str(episode.error)
