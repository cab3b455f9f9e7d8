"""The setting of one training, and what those of several papers are put together from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainers.settings.words import merge

Settings = Mapping[str, Any]

MODELS = {
    "qwen2.5-1.5b": "Qwen/Qwen2.5-1.5B-Instruct",
    "qwen2.5-7b": "Qwen/Qwen2.5-7B-Instruct",
    "qwen2.5-32b": "Qwen/Qwen2.5-32B-Instruct",
    "qwen3-1.7b": "Qwen/Qwen3-1.7B",
    "qwen3-4b": "Qwen/Qwen3-4B-Instruct-2507",
    "qwen3-32b": "Qwen/Qwen3-32B",
}
"""Names on the Hugging Face hub."""
ENVIRONMENTS = {
    "alfworld": "ALFWorld", "webshop": "WebShop", "textcraft": "TextCraft", "mathematics": "mathematics",
    "hotpotqa": "SearchQA, HotpotQA", "2wiki": "SearchQA, 2WikiMultiHopQA", "musique": "SearchQA, MuSiQue",
    "researchquery": "PaperSearch, PaSa's queries",
}  # fmt: skip
SMALL = ("qwen2.5-1.5b", "qwen3-1.7b")
"""Models beside which a critic of the same size fits; the critic of others is a head."""


@dataclass(frozen=True)
class Setting:
    """How one training is run."""

    recipe: str
    gpus: str
    """Hardware of the paper, as ``envsuite plan --gpus`` takes it."""
    settings: Settings = field(default_factory=dict)
    """Sections of the file, beside name and recipe."""
    stated: tuple[str, ...] = ()
    """Where the paper states what."""
    taken: tuple[str, ...] = ()
    """What it does not state, and what was taken."""

    def __add__(self, other: Setting) -> Setting:
        return Setting(
            other.recipe or self.recipe, other.gpus or self.gpus, merge(self.settings, other.settings),
            self.stated + other.stated, self.taken + other.taken,
        )  # fmt: skip


def more(settings: Settings | None = None, *taken: str, recipe: str = "") -> Setting:
    """A departure from what other rows have."""
    return Setting(recipe, "", settings or {}, (), taken)


THREE_SEEDS = "seeds: three; this file has the first (--seed 1, --seed 2 and another --name for the others)"


def world_of(env: str, horizon: int, *splits: str, source: str = "official", **kwargs: Any) -> dict[str, Any]:
    """Sections ``envs`` and ``evaluation.envs``: official data, the split train, and these for evaluation."""
    made = {"id": env, "kwargs": {"source": source, **kwargs}, "max_episode_steps": horizon}
    return {
        "envs": [{**made, "split": "train"}],
        "evaluation": {"envs": [{**made, "split": split} for split in splits]},
    }


def critic_for(model: str) -> Setting:
    """The critic of the papers, a model of its own, where it fits; else a head."""
    if model in SMALL:
        return more({"method": {"critic": {"kind": "model", "lr": 1e-5, "epochs": 1, "minibatches": 1}}})
    return more(
        {"method": {"critic": {"kind": "head"}}},
        "critic: a head on the policy's hidden states. The paper's is a model of its own (learning rate 1e-5), which "
        "does not fit beside a policy of this size here, as its weights are not sharded",
    )
