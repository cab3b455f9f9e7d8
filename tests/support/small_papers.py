"""A published setting made small enough for two iterations in seconds: all that is overridden is said here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tiny_runs import model
from transformers import PreTrainedTokenizerFast

from benchmarks.papers.plans import config_of
from trainers.imitation.vocabulary import word_tokenizer
from trainers.papers.index import PaperRun

WORLDS: dict[str, dict[str, Any]] = {
    "ALFWorld-v0": {"source": "builtin", "games": 18},
    "WebShop-v0": {"source": "builtin", "products": 60},
    "TextCraft-v0": {"source": "builtin"},
    "PythonMath-v0": {"source": "builtin", "tasks": ["arithmetic-1"]},
}
"""Built-in worlds in place of the official data; other arguments of the environment stay."""


_PLAIN = ("inventory", "look")
ANSWERS = {
    "ALFWorld-v0": _PLAIN,
    "TextCraft-v0": _PLAIN,
    "WebShop-v0": ("search[red]", "search[blue]"),
    "PythonMath-v0": ("python[1]", "answer[2]"),
}
"""Actions of the tiny model by environment; beside them, an answer that is none."""


def save_model(folder: Path, actions: Sequence[str]) -> Path:
    """A tiny model that draws one of a few answers, whatever it is asked, so that episodes differ."""
    answers = [*(f"<think>so</think><action>{action}</action>" for action in actions), "no"]
    return save_taught(folder, answers, word_tokenizer(answers, 512))


def save_taught(folder: Path, answers: Sequence[str], tokenizer: PreTrainedTokenizerFast) -> Path:
    """A tiny model that draws one of ``answers``, whatever it is asked."""
    policy = model("qwen2", len(tokenizer))
    policy.config.eos_token_id = policy.generation_config.eos_token_id = tokenizer.eos_token_id
    for layer in policy.model.layers:  # without attention the next token depends on the last one alone
        layer.self_attn.o_proj.weight.data.zero_()
    begin = tokenizer.convert_tokens_to_ids("<|assistant|>")
    rows = [[begin, *tokenizer.encode(answer, add_special_tokens=False), tokenizer.eos_token_id] for answer in answers]
    ids = torch.tensor([row + [tokenizer.eos_token_id] * (max(map(len, rows)) - len(row)) for row in rows])
    trained = [weight for name, weight in policy.named_parameters() if "self_attn" not in name]
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    for _ in range(60):
        policy(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    policy.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def overrides(run: PaperRun, model: Path, output: Path) -> dict[str, Any]:
    """Settings that are replaced, by their dotted names; everything else is the run's."""
    config = config_of(run)
    many = config.rollout.group_size > 1
    small: dict[str, Any] = {
        "output": str(output), "iterations": 2, "report": False, "episodes_every": 0, "checkpoint_every": 10,
        "model.path": str(model), "model.compute_dtype": "float32", "model.gradient_checkpointing": False,
        "model.shard": "none",
        "envs": [_small(env) for env in config.envs],
        "rollout.engine": "hf", "rollout.engine_options": {}, "rollout.tasks": 2 if many else 4,
        "rollout.group_size": 2 if many else 1, "rollout.sampling.max_tokens": 16, "rollout.slots": 4,
        "evaluation.envs": [_small(env) for env in config.evaluation.envs[:1]], "evaluation.episodes": 1,
        "evaluation.repeats": 1, "evaluation.every": 0, "evaluation.sampling.max_tokens": 16,
        "optim.tokens_per_microbatch": 2048,
    }  # fmt: skip
    if config.rollout.episode_tokens is not None:
        small["rollout.episode_tokens"] = 24
    if config.prompt.truncate == "left":
        small["prompt.max_tokens"] = 160  # cuts the prompts of most steps
    if config.prompt.codec == "native":
        # The tiny model's chat template takes no tools.
        small["prompt.codec"] = "tags" if config.envs[0].id == "ALFWorld-v0" else "brackets"
    if config.method.estimator == "bipace":
        small["method.options.layer"] = -1  # of two
    if "scpo" in config.method.shapers:
        small |= {"method.shapers.scpo.scorer": "exact", "method.shapers.scpo.scorer_options": {}}
    if config.method.replay is not None:
        small["method.replay.size"] = 1
    return small


def arguments(run: PaperRun, model: Path, output: Path) -> list[str]:
    """The command line of the small run."""
    words = ["--config", run.name]
    for name, value in overrides(run, model, output).items():
        words += [f"--{name}", value if isinstance(value, str) else json.dumps(value)]
    return words


def _small(env: Any) -> dict[str, Any]:
    kwargs = {**env.kwargs, **WORLDS[env.id]}
    return {"id": env.id, "split": env.split, "kwargs": kwargs, "max_episode_steps": 2}
