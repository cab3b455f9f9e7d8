"""A run in Search-R1's format: what the environment finds goes on in the model's own turn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from transformers import ByT5Tokenizer

from envsuite.retrieval.corpus_build import build
from envsuite.retrieval.documents import Document, InMemory
from trainers.rollout.config import EnvConfig, PromptConfig, RolloutConfig
from trainers.rollout.engine import Request, Sampling
from trainers.rollout.environments import make_manager
from trainers.rollout.episode import EpisodePlan
from trainers.rollout.scripted import ScriptedEngine

TEMPLATE = (
    "{% for message in messages %}[{{ message.role }}] {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)


class Searcher(ScriptedEngine):
    """Searches once, then answers with what it was told."""

    def __init__(self) -> None:
        super().__init__(self._play)
        self.tokenizer = ByT5Tokenizer()
        self.tokenizer.chat_template = TEMPLATE
        self.prompts: list[list[int]] = []

    def _play(self, request: Request) -> Sequence[int]:
        self.prompts.append(request.prompt_ids.tolist())
        told = self.tokenizer.decode(self.prompts[-1])
        text = "<answer>Ada</answer>" if "Ada built the mill" in told else "<think>Who?</think><search>mill</search>"
        return [*self.tokenizer.encode(text, add_special_tokens=False), self.tokenizer.eos_token_id]


def test_an_episode_in_the_format_of_search_r1(tmp_path: Path) -> None:
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
