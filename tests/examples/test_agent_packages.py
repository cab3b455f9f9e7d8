"""Agents of other packages, as ``examples/agents.py`` has them, play a game at the gateway.

What the model says is an expert's, in the model's format of calls: the agents, their clients and the address are real.
"""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from envsuite.core.tools import ToolCall
from envsuite.playing.engine import Sampling
from envsuite.playing.episode import EpisodePlan
from envsuite.prompting import NativeCodec, make_codec
from envsuite.prompting.shipped import read_template
from envsuite.textcraft.expert import TextCraftExpert
from envsuite.vector import EnvFactory
from trainers.gateway.agents import AgentManager, FunctionAgent
from trainers.gateway.app import serve
from trainers.gateway.gateway import Gateway
from trainers.gateway.sequences import Writer
from trainers.rollout.config import AgentConfig
from trainers.rollout.scripted import ScriptedEngine

FILE = Path(__file__).resolve().parents[2] / "examples/agents.py"
FACTORY = EnvFactory("TextCraft-v0", {"source": "builtin", "max_distractors": 0, "max_episode_steps": 12})
PACKAGES = {
    "openai_agents": "agents", "langgraph": "langgraph", "pydantic_ai": "pydantic_ai", "smolagents": "smolagents",
    "mini_swe_agent": "minisweagent",
}  # fmt: skip


def _commands(task: str) -> list[str]:
    """What an expert does in a task."""
    env, done, found = FACTORY.make(), False, list[str]()
    env.reset(options={"task_id": task})
    while not done:
        (call,) = action = TextCraftExpert().act(env)
        found.append(call.arguments["command"])
        *_, done, _, _ = env.step(action)
    return found


@pytest.mark.seconds
@pytest.mark.parametrize("name", PACKAGES)
def test_an_agent_plays_a_game_to_its_end(name, smol):
    if importlib.util.find_spec(PACKAGES[name]) is None:
        pytest.skip(f"needs the package {PACKAGES[name]}: the head of examples/agents.py says what to install")
    smol = copy.deepcopy(smol)
    smol.chat_template = read_template("smollm2", "chat_templates", "chat template")
    task = FACTORY.make().unwrapped.tasks.ids("test")[0]  # type: ignore[attr-defined]
    commands, native, typed = _commands(task), NativeCodec(smol), make_codec("tags", think=False)

    def says() -> Iterator[str]:
        for command in commands:
            call = ToolCall("env_step", {"command": command})
            yield typed.write([call]) if name == "mini_swe_agent" else native.write([call])
        if name == "smolagents":
            yield native.write([ToolCall("final_answer", {"answer": "Done."})])
        yield "Done."

    lines = says()
    engine = ScriptedEngine(lambda request: [*smol.encode(next(lines), add_special_tokens=False), smol.eos_token_id])
    gateway = Gateway(Writer(smol), Sampling(), 0, masking="ignore")
    with serve(gateway) as url:
        agent, config = FunctionAgent(f"{FILE}:{name}"), AgentConfig(run="agents.py:f")
        manager = AgentManager(engine, gateway, url, agent, config, [FACTORY], 1, 1)
        (episode,) = manager.run([EpisodePlan(1, 0, 0, task)], Sampling(max_tokens=200), 0)
        manager.close()
    assert episode.error is None and episode.success, [step.info for step in episode.steps]
    assert [step.reward for step in episode.steps][len(commands) - 1] == 1.0
    assert len(episode.steps) >= len(commands) > 1
    goes_on = [step.info["gateway"]["parent"] for step in episode.steps[: len(commands)]]
    if name == "smolagents":  # says its calls again as text, so that each request begins a sequence
        assert goes_on == [None] * len(commands)
    else:
        assert goes_on == [None, *range(len(commands) - 1)], "each request goes on from the answer before it"
