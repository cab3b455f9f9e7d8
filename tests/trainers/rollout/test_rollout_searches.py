"""Episodes that search a corpus: of several agents, each with a conversation of its own, and in Search-R1's format."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from byte_tokens import byte_tokenizer

from envsuite.core.errors import UsageError
from envsuite.playing.engine import Request, Sampling
from envsuite.playing.episode import EpisodePlan
from envsuite.playing.step import Episode
from envsuite.retrieval.corpus_build import build
from envsuite.retrieval.documents import Document, InMemory
from trainers.rollout.config import EnvConfig, PromptConfig, RolloutConfig
from trainers.rollout.environments import make_manager
from trainers.rollout.scripted import ScriptedEngine


class Team(ScriptedEngine):
    """Searches the words of the query, or keeps the first candidate; an odd episode keeps nothing."""

    def __init__(self) -> None:
        super().__init__(self._play)
        self.tokenizer = byte_tokenizer()
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


def test_each_agent_has_a_conversation_and_tools_of_its_own(played):
    engine, episodes = played
    assert [episode.error for episode in episodes] == [None] * 4
    for prompt in engine.prompts:
        turn = prompt[prompt.rindex("It is the ") :]
        searcher = turn.startswith("It is the searcher")
        tools = ["search", "expand"] if searcher else ["keep"]
        assert re.findall(r'^\{"name": "(\w+)", "description"', prompt, re.MULTILINE) == tools
        assert {*re.findall(r'<tool_call>\{"name": "(\w+)"', prompt)} <= {*tools}


def test_steps_name_their_agents_and_rewards_go_to_them(played):
    _, episodes = played
    for episode in episodes:
        assert [step.agent for step in episode.steps] == ["searcher_0", "selector_0", "searcher_0", "searcher_0"]
        assert episode.own_rewards == [1.0, 1.0 if episode.episode_id % 2 == 0 else 0.0, 0.0, 0.0]


class Searcher(ScriptedEngine):
    """Searches once, then answers with what it was told."""

    def __init__(self) -> None:
        super().__init__(self._play)
        self.tokenizer = byte_tokenizer()
        self.prompts: list[list[int]] = []

    def _play(self, request: Request) -> Sequence[int]:
        self.prompts.append(request.prompt_ids.tolist())
        told = self.tokenizer.decode(self.prompts[-1])
        text = "<answer>Ada</answer>" if "Ada built the mill" in told else "<think>Who?</think><search>mill</search>"
        return [*self.tokenizer.encode(text, add_special_tokens=False), self.tokenizer.eos_token_id]


def test_an_episode_in_the_format_of_search_r1(tmp_path):
    task = {
        "text": "Who built the mill?", "answers": ["Ada"], "support": ["Mill"], "kind": "bridge", "hops": 1,
        "data_set": "x", "answerable": True,
    }  # fmt: skip
    tasks = [{**task, "id": f"{split}-0", "split": split} for split in ("train", "validation", "test")]
    pages = [Document("Mill", "Mill", "Ada built the mill."), Document("Dam", "Dam", "Nobody built the dam.")]
    corpus = build(InMemory("pages", pages, tasks), tmp_path / "pages.corpus")
    env = EnvConfig("SearchQA-v0", "train", {"source": str(corpus), "observation": "search-r1"}, max_episode_steps=4)
    engine = Searcher()
    prompt = PromptConfig(codec="search-r1", memory="full")
    manager = make_manager(RolloutConfig(), prompt, [env], 1, engine, engine.tokenizer)
    with manager.vector:
        (episode,) = manager.run([EpisodePlan(0, 0, 0, "train-0")], Sampling(max_tokens=200), 0)
    assert (episode.success, episode.total_reward, len(episode.steps)) == (True, 1.0, 2)
    first, second = engine.prompts
    answer = episode.steps[0].response_ids.tolist()
    assert second[: len(first) + len(answer) - 1] == first + answer[:-1], "in the same turn, token by token"
    added = engine.tokenizer.decode(second[len(first) + len(answer) - 1 :])
    assert "<information>" in added
    assert "[assistant]" not in added
