"""Models in the shapes of published ones, with random weights made on the device, and episodes of random tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen2Config

from envsuite.alfworld.practice import texts as alfworld_texts
from trainers.imitation.vocabulary import word_tokenizer
from trainers.steps import StepTable
from trainers.steps.table import Ragged

_QWEN = {"num_hidden_layers": 28, "max_position_embeddings": 32768, "rope_theta": 1e6}
SHAPES: dict[str, dict[str, Any]] = {
    "1.5b": {
        **_QWEN, "vocab_size": 151_936, "hidden_size": 1536, "intermediate_size": 8960, "num_attention_heads": 12,
        "num_key_value_heads": 2, "tie_word_embeddings": True,
    },
    "7b": {
        **_QWEN, "vocab_size": 152_064, "hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28,
        "num_key_value_heads": 4, "tie_word_embeddings": False,
    },
    "tiny": {
        "num_hidden_layers": 2, "max_position_embeddings": 4096, "vocab_size": 2048, "hidden_size": 64,
        "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True,
    },
}  # fmt: skip
"""Those of Qwen2.5-1.5B and 7B, and one for trying this."""


def made(shape: str, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    """A model with random weights, made on ``device``."""
    torch.manual_seed(0)
    config = Qwen2Config(**SHAPES[shape], bos_token_id=None, eos_token_id=None, pad_token_id=None)
    with torch.device(device):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return model.train(False)


def saved(shape: str, folder: Path, device: torch.device) -> Path:
    """The folder of a model in bfloat16 with a tokenizer of ALFWorld's words; written once."""
    place = folder / shape
    if not (place / "done").exists():
        tokenizer = word_tokenizer(alfworld_texts(), SHAPES[shape]["max_position_embeddings"])
        model = made(shape, device, torch.bfloat16)
        model.config.eos_token_id = model.generation_config.eos_token_id = tokenizer.eos_token_id
        model.save_pretrained(place)
        tokenizer.save_pretrained(place)
        (place / "done").touch()
    return place


def episodes(size: int, *, groups: int, members: int, steps: int, prompt: int, response: int) -> StepTable:
    """Episodes of random tokens, in groups that begin with one prompt; each prompt extends the step before.

    Args:
        size: Tokens of the vocabulary.
        groups: Number of groups.
        members: Episodes of a group.
        steps: Steps of an episode.
        prompt: Tokens of the first prompt.
        response: Tokens of each response, and of each observation after it.
    """
    rng = np.random.default_rng(0)
    rows = []
    for group in range(groups):
        first = rng.integers(size, size=prompt)
        for member in range(members):
            text = first
            for t in range(steps):
                answer = rng.integers(size, size=response)
                rows.append((group, group * members + member, t, text, answer))
                text = np.concatenate([text, answer, rng.integers(size, size=response)])
    return StepTable(
        group_id=np.array([row[0] for row in rows], np.int64),
        episode_id=np.array([row[1] for row in rows], np.int64),
        t=np.array([row[2] for row in rows], np.int64),
        reward=np.zeros(len(rows)),
        state_key=np.full(len(rows), "s", object),
        valid=np.ones(len(rows), np.bool_),
        prompt=Ragged.of((row[3] for row in rows), np.int64),
        response=Ragged.of((row[4] for row in rows), np.int64),
        logprob=Ragged.of((np.full(response, -np.log(size)) for _ in rows), np.float32),
    )
