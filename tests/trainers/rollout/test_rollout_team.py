"""Episodes of several agents: each has a conversation of its own, with its own tools, and steps of its own."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from transformers import ByT5Tokenizer

from envsuite.core.errors import UsageError
from envsuite.retrieval.corpus_build import build
from envsuite.retrieval.documents import Document, InMemory
from trainers.credit.estimators.gigpo import GiGPO
from trainers.credit.rows import unshaped
from trainers.report.methods import step_means
from trainers.rollout.config import EnvConfig, PromptConfig, RolloutConfig
from trainers.rollout.engine import Request, Sampling
from trainers.rollout.environments import make_manager
from trainers.rollout.episode import EpisodePlan
from trainers.rollout.scripted import ScriptedEngine
from trainers.steps import Episode

TEMPLATE = (
    "{% for message in messages %}[{{ message.role }}] {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)


def _tokenizer() -> Any:
    """A tokenizer of bytes, which loses nothing."""
    made = ByT5Tokenizer()
    made.chat_template = TEMPLATE
    return made


class Team(ScriptedEngine):
    """Searches the words of the query, or keeps the first candidate; an odd episode keeps nothing."""

    def __init__(self) -> None:
        super().__init__(self._play)
        self.tokenizer = _tokenizer()
        self.prompts: list[str] = []

    def _play(self, request: Request) -> Sequence[int]:
        prompt = self.tokenizer.decode(request.prompt_ids.tolist())
        self.prompts.append(prompt)
        turn = prompt.rindex("It is the ")
        if prompt[turn:].startswith("It is the searcher"):
            call = {"name": "search", "arguments": {"query": f"walking {prompt.count('[assistant]')}"}}
        else:
            first = re.search(r"Candidates \(\d+\):\n(\S+)", prompt[turn:])
            assert first is not None
            call = {"name": "keep", "arguments": {"paper_ids": [first[1]] if request.session % 2 == 0 else []}}
        text = f"<tool_call>{json.dumps(call)}</tool_call>"
        return [*self.tokenizer.encode(text, add_special_tokens=False), self.tokenizer.eos_token_id]


@pytest.fixture
def played(tmp_path: Path) -> tuple[Team, list[Episode]]:
    papers = [
        Document("g1", "walking robots", "robots walk", 20100101),
        Document("x1", "sitting dogs", "dogs sit while others are walking", 20080101),
    ]
    tasks = [
        {"id": f"{split}-0", "text": "walking robots", "gold": ["g1"], "date": 0, "kind": "test", "split": split}
        for split in ("train", "validation", "test")
    ]
    corpus = build(InMemory("team", papers, tasks), tmp_path / "team.corpus")
    env = EnvConfig(
        "PaperSearchTeam-v0", "train", {"source": str(corpus), "end_when_found": False}, max_episode_steps=4
    )
    engine = Team()
    prompt = PromptConfig(codec="tools", think=False, memory="full")
    manager = make_manager(RolloutConfig(), prompt, [env], 4, engine, engine.tokenizer)
    with manager.vector:
        plans = [EpisodePlan(number, 0, 0, "train-0") for number in range(4)]
        with pytest.raises(UsageError, match=r"vector that takes snapshots|several agents cannot branch"):
            manager.open(Sampling(), 0, branches={})
        return engine, manager.run(plans, Sampling(max_tokens=400), 0)


def test_each_agent_has_a_conversation_and_tools_of_its_own(played: tuple[Team, list[Episode]]) -> None:
    engine, episodes = played
    assert [episode.error for episode in episodes] == [None] * 4
    for prompt in engine.prompts:
        turn = prompt[prompt.rindex("It is the ") :]
        searcher = turn.startswith("It is the searcher")
        tools = ["search", "expand"] if searcher else ["keep"]
        assert re.findall(r'^\{"name": "(\w+)", "description"', prompt, re.MULTILINE) == tools
        assert {*re.findall(r'<tool_call>\{"name": "(\w+)"', prompt)} <= {*tools}


def test_steps_name_their_agents_and_rewards_go_to_them(played: tuple[Team, list[Episode]]) -> None:
    _, episodes = played
    for episode in episodes:
        assert [step.agent for step in episode.steps] == ["searcher_0", "selector_0", "searcher_0", "searcher_0"]
        assert episode.own_rewards == [1.0, 1.0 if episode.episode_id % 2 == 0 else 0.0, 0.0, 0.0]


def test_methods_credit_each_agent_by_itself(played: tuple[Team, list[Episode]]) -> None:
    _, episodes = played
    table = unshaped(episodes, 1)
    advantages = step_means(table, GiGPO()(table))
    agents = table.extra["agent"]
    assert not advantages[agents == "searcher_0"].any(), "all searchers did the same"
    kept = table.extra["played"] == 1
    assert (advantages[kept] > 0).tolist() == [True, False, True, False]
    assert (advantages[kept] < 0).tolist() == [False, True, False, True]
