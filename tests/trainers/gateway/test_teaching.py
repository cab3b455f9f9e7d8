"""Teachers behind the gateway: what an expert or another model says, in the prompts and tokens of the policy."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families import BY_NAME, tokenizer_of
from hypothesis import example, given
from hypothesis import strategies as st
from scripted_endpoint import AGENT, NAME, ScriptedEndpoint, completion
from tiny_runs import BOOK, tokenizer

from envsuite.core.errors import DataError
from envsuite.core.tools import Tool, ToolCall
from envsuite.playing.endpoint import EndpointEngine
from envsuite.playing.engine import BaseEngine, Sampling
from envsuite.playing.episode import EpisodePlan
from envsuite.playing.step import Episode
from envsuite.textcraft.expert import TextCraftExpert
from envsuite.vector import EnvFactory
from trainers.gateway.agents import AgentManager, AgentTask, Client, FunctionAgent
from trainers.gateway.gateway import Gateway
from trainers.gateway.messages import Message, Refused
from trainers.gateway.sequences import Sequences, Writer
from trainers.gateway.teaching import TAUGHT, ExpertEngine
from trainers.imitation.demonstrations import demonstrations, transcribe_requests
from trainers.imitation.play import ANSWER, PROMPT, RESPONSE
from trainers.pool import PoolWriter as PoolWriter
from trainers.pool import Query
from trainers.programs import evaluate
from trainers.rollout.config import AgentConfig, RolloutConfig
from trainers.rollout.scripted import ScriptedEngine
from trainers.settings import ConfigError

FAMILIES = ("smollm2", "Qwen2.5", "Qwen3", "Llama 3.1", "Mistral Nemo", "GLM 4.6", "gpt-oss")
FACTORY = EnvFactory("TextCraft-v0", {"source": "builtin", "max_distractors": 0, "max_episode_steps": 12})
LOOK = Tool("look", "Looks.", {"type": "object", "properties": {"at": {"type": "string"}}})
USER = Message("user", "Where?")
AT = ToolCall("look", {"at": 'the <b>"é"</b>'})


@cache
def writer_of(smol: Any, name: str) -> Writer:
    family = BY_NAME.get(name)
    file, arguments = (name, {}) if family is None else (family.file, family.arguments)
    return Writer(tokenizer_of(smol, file), arguments)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("thought", ["", "It may be there."])
@pytest.mark.parametrize("said", [Message("assistant", "There."), Message("assistant", "", ((AT, "call00001"),))])
def test_what_a_teacher_says_is_written_as_the_model_would_and_the_next_request_goes_on(family, thought, said, smol):
    writer = writer_of(smol, family)
    talk, tools = Sequences(writer), (LOOK,)
    prompt = talk.prompt([USER], tools)
    ids = writer.write(prompt, replace(said, thought=thought))
    read, problem = writer.read(ids, tools)
    assert not problem and read.key in (said.key, replace(said, thought=thought).key)
    assert writer.has_end(ids), "it ends as the model's own answers do"
    talk.record_answer(0, prompt, read, np.array(ids, np.int32))
    answer = Message("tool", "Nothing.", call_id="call00001") if said.calls else Message("user", "Sure?")
    follows = talk.prompt([USER, read, answer], tools)
    if follows.parent is None:  # the template rewrites its last answer, or has the tools at the last question
        assert thought or BY_NAME[family].thinks or (family == "Mistral Nemo" and not said.calls)
    else:
        np.testing.assert_array_equal(follows.ids[: len(prompt.ids) + len(ids)], [*prompt.ids, *ids])


@given(text=st.text(max_size=40), at=st.text(max_size=20))
@example(text="So.<|im_end|>No.", at="x")
@example(text="<tool_call>", at="<|im_end|>")
def test_what_cannot_be_read_back_is_refused(text, at, smol):
    writer = writer_of(smol, "smollm2")
    prompt = Sequences(writer).prompt([USER], (LOOK,))
    for said in (Message("assistant", text), Message("assistant", "", ((ToolCall("look", {"at": at}), "c"),))):
        try:
            ids = writer.write(prompt, said)
        except Refused as refused:
            assert "cannot write" in str(refused)
            continue
        assert writer.read(ids, (LOOK,))[0].key == said.key


def by_text(task: AgentTask, client: Client) -> None:
    """Types commands."""
    env, messages = client.env, [{"role": "user", "content": task.text}]
    assert env is not None
    while not env.done:
        said = client.chat(messages)
        command = said["content"].partition("<action>")[2].partition("</action>")[0]
        messages += [said, {"role": "user", "content": env.type(command)}]


def by_calls(task: AgentTask, client: Client) -> None:
    """Calls tools until the model calls none."""
    env, messages = client.env, [{"role": "user", "content": task.text}]
    assert env is not None
    while calls := (said := client.chat(messages, env.tools)).get("tool_calls"):
        messages.append(said)
        for call in calls:
            answer = env.call(call["function"]["name"], json.loads(call["function"]["arguments"]))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": answer})


Play = Callable[[AgentTask, Client], None]


@pytest.fixture
def play(smol: Any) -> Iterator[Callable[..., Episode]]:
    managers: list[AgentManager] = []
    writer = writer_of(smol, "smollm2")

    def played(agent: Play, engine: BaseEngine[Any, Any], attempts: int = 1) -> Episode:
        function = FunctionAgent.__new__(FunctionAgent)
        function.place, function.function = "agent.py:play", agent
        config = AgentConfig(run="agent.py:play")
        managers.append(
            AgentManager(engine, Gateway(writer, Sampling(), 0), "", function, config, [FACTORY], 1, attempts)
        )
        task = FACTORY.make().unwrapped.tasks.ids("test")[0]  # type: ignore[attr-defined]
        (episode,) = managers[-1].run([EpisodePlan(5, 0, 0, task)], Sampling(max_tokens=200), 0)
        return episode

    yield played
    for manager in managers:
        manager.close()


def taught_elsewhere(
    play: Callable[..., Episode], agent: Play, script: Callable[[dict[str, Any]], Any]
) -> tuple[Episode, list[dict[str, Any]]]:
    """The episode of an agent whose model is an endpoint, and what the endpoint was asked."""
    with (
        ScriptedEndpoint(script) as endpoint,
        closing(EndpointEngine.from_setup(1, url=endpoint.url, model=NAME)) as engine,
    ):
        return play(agent, engine), endpoint.asked


@pytest.mark.parametrize("agent", [by_text, by_calls])
def test_an_expert_leaves_what_the_policy_would_that_says_the_same(agent, play, smol):
    taught = play(agent, ExpertEngine(1))
    assert taught.error is None and taught.success and len(taught.steps) > 2
    answers = iter([step.response_ids for step in taught.steps])
    own = play(agent, ScriptedEngine(lambda request: next(answers)))
    for one, other in zip(taught.steps, own.steps, strict=True):
        np.testing.assert_array_equal(one.prompt_ids, other.prompt_ids)
        assert set(one.policy_version) == {TAUGHT} and not one.response_logprobs.any()
        assert all(getattr(one, name) == getattr(other, name) for name in ("reward", "state_key", "action", "info"))
    text = smol.decode([*taught.steps[-1].prompt_ids, *taught.steps[-1].response_ids])
    assert text.count("<tool_call>" if agent is by_calls else "<action>") >= len(taught.steps) - 1


@pytest.mark.parametrize("agent", [by_text, by_calls])
def test_a_model_elsewhere_is_asked_in_the_agents_messages(agent, play, smol):
    env, expert = FACTORY.make(), TextCraftExpert()
    env.reset(options={"task_id": env.unwrapped.tasks.ids("test")[0]})  # type: ignore[attr-defined]
    over = False

    def script(body: dict[str, Any]) -> Any:
        nonlocal over
        if over:
            return completion("Done.")
        (call,) = action = expert.act(env)
        over = env.step(action)[2]
        if agent is by_calls:
            return completion(None, calls=[("env_step", json.dumps(dict(call.arguments)))])
        return completion(f"<think>So.</think><action>{call.arguments['command']}</action>")

    episode, bodies = taught_elsewhere(play, agent, script)
    assert episode.error is None and episode.success
    assert len(bodies) == len(episode.steps) and all(("tools" in body) == (agent is by_calls) for body in bodies)
    roles = [message["role"] for message in bodies[1]["messages"]]
    assert roles == ["user", "assistant", "tool" if agent is by_calls else "user"]
    assert [step.info["gateway"]["parent"] for step in episode.steps] == [None, *range(len(bodies) - 1)]


def test_what_the_model_cannot_write_fails_the_episode_and_says_why(play):
    told: list[str] = []

    def agent(task: AgentTask, client: Client) -> None:
        try:
            client.chat([{"role": "user", "content": "Hello"}])
        except Refused as refused:
            told.append(str(refused))

    episode, _ = taught_elsewhere(play, agent, lambda body: completion("Well.<|im_end|>\n<|im_start|>user\nNo."))
    assert episode.error is not None and not episode.steps and "cannot write 'Well.<|im_end|>" in told[0]


def test_an_agent_that_fails_is_started_again_with_its_expert(play):
    fails = [True]

    def agent(task: AgentTask, client: Client) -> None:
        client.chat([{"role": "user", "content": task.text}])
        if fails and fails.pop():
            raise RuntimeError("once")
        by_text(task, client)

    episode = play(agent, ExpertEngine(1), attempts=3)
    assert episode.error is None and episode.success and not fails


@pytest.mark.parametrize("arguments", ["null", "[1]", '"x"', "3", "{"])
def test_a_teachers_call_without_an_object_is_refused_to_the_agent(arguments, play):
    episode, _ = taught_elsewhere(play, by_calls, lambda body: completion(None, calls=[("env_step", arguments)]))
    assert episode.error is not None and "the teacher's call has no" in episode.error


def taught(folder: Path, file: str) -> int:
    """Has the expert answer the agent of a file; returns the status."""
    env = {"id": "TextCraft-v0", "split": "train", "kwargs": BOOK, "max_episode_steps": 12}
    return evaluate.main([
        "--model.path", "models/craft-1m", "--rollout.engine", "expert", "--rollout.agent.run",
        f"{folder}/{file}:play", "--evaluation.envs", json.dumps([env]), "--evaluation.episodes", "4",
        "--keep", str(folder / "kept"),
    ])  # fmt: skip


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Episodes that ``envsuite eval model --rollout.engine expert`` keeps."""
    folder = tmp_path_factory.mktemp("taught")
    for name in ("agent.py", "other.py"):
        (folder / name).write_text(AGENT)
    assert taught(folder, "agent.py") == 0
    return folder


@pytest.mark.seconds
def test_a_folder_of_one_agents_episodes_is_not_another_agents(kept, capsys):
    assert taught(kept, "agent.py") == 0, "they are there"
    assert taught(kept, "other.py") == 2
    assert "has episodes with agent" in capsys.readouterr().err


@pytest.mark.seconds
def test_kept_episodes_are_imitated_token_by_token(kept):
    found = demonstrations(kept / "kept", "TextCraft-v0")
    assert len(found.agent_episodes) == found.played == 4 and not found.players
    vocabulary = str(found.agent_episodes[0].steps[0].info["gateway"]["vocabulary"])
    for episode in found.agent_episodes:
        (written,) = transcribe_requests(episode, 99, vocabulary).transcripts
        last = episode.steps[-1]
        np.testing.assert_array_equal(written.tokens, [*last.prompt_ids, *last.response_ids])
        answers = np.concatenate([step.response_ids for step in episode.steps])
        np.testing.assert_array_equal(written.tokens[written.parts == RESPONSE], answers)
        assert set(written.parts[: len(episode.steps[0].prompt_ids)]) == {PROMPT} and ANSWER in written.parts
        (first,) = transcribe_requests(episode, 1, vocabulary).transcripts
        assert len(first.tokens) == len(episode.steps[0].prompt_ids) + len(episode.steps[0].response_ids)


@pytest.mark.seconds
def test_mistakes_and_answers_that_were_cut_are_context(kept):
    episode = demonstrations(kept / "kept", "TextCraft-v0").agent_episodes[0]
    vocabulary = str(episode.steps[0].info["gateway"]["vocabulary"])
    changes: list[dict[str, Any]] = [{"valid": False}, {"finish_reason": "length"}]
    for change in changes:
        steps = (replace(episode.steps[0], **change), *episode.steps[1:])
        (written,) = transcribe_requests(replace(episode, steps=steps), 99, vocabulary).transcripts
        targets = sum(len(step.response_ids) for step in steps[1:])
        assert (written.parts == RESPONSE).sum() == targets


@pytest.mark.seconds
def test_tokens_of_another_tokenizer_and_two_kinds_of_episodes_are_refused(kept, tmp_path):
    episode = demonstrations(kept / "kept", "TextCraft-v0").agent_episodes[0]
    other = Writer(tokenizer()).vocabulary
    with pytest.raises(DataError, match="have the tokens of another tokenizer"):
        transcribe_requests(episode, 9, other)
    plain = replace(episode, steps=tuple(replace(step, info={}) for step in episode.steps))
    with PoolWriter(tmp_path / "pool") as pool:
        pool.store("one", episode)
        assert len(demonstrations(tmp_path / "pool", "TextCraft-v0").agent_episodes) == 1
        pool.store("two", plain)
    with pytest.raises(DataError, match="episodes of agents and others"):
        demonstrations(tmp_path / "pool", "TextCraft-v0")


@pytest.mark.seconds
def test_what_a_teacher_said_is_never_taken_to_train_on(kept, tmp_path):
    episode = demonstrations(kept / "kept", "TextCraft-v0").agent_episodes[0]
    own = [replace(step, policy_version=np.zeros(len(step.response_ids), np.int64)) for step in episode.steps]
    with PoolWriter(tmp_path / "pool") as pool:
        pool.store("taught", episode)
        pool.store("mixed", replace(episode, steps=(*own[:-1], episode.steps[-1])))
        pool.store("sampled", replace(episode, steps=tuple(own)))
        assert len(pool.sessions(Query())) == 3
        (taken,), _ = pool.take(Query(), 9, 0)
    assert taken.versions == (0, 0)


def test_an_expert_needs_an_agent_that_plays():
    with pytest.raises(ConfigError, match="expert answers the requests of an agent"):
        RolloutConfig(engine="expert")
