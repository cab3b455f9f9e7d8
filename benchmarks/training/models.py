"""Models of random weights, with SmolLM2's tokenizer, in folders from which every way loads them."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from benchmarks.smollm2 import smollm2_folder

SHAPES: dict[str, dict[str, Any]] = {
    "small": {
        "vocab_size": 2048, "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 6,
        "num_attention_heads": 4, "num_key_value_heads": 2,
    },
    "smollm2": {
        "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
        "num_key_value_heads": 3,
    },
    "tiny": {
        "vocab_size": 2048, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2,
    },
}  # fmt: skip
"""Shapes by name; ``smollm2`` is that of SmolLM2-135M, ``tiny`` is for tests.

A small model with a large vocabulary would spend its time in the output layer, which in a large model is a tenth of the
work. Those with a ``vocab_size`` here are trained on :meth:`~benchmarks.training.rows.Rows.renumbered` tokens.
"""


def model_folder(name: str) -> Path:
    """A folder with model and tokenizer, in the temporary directory; made once.

    Raises:
        DataError: SmolLM2, whose tokenizer it is, is not installed.
    """
    folder = Path(tempfile.gettempdir()) / f"benchmarks-training-{name}-{SHAPES[name].get('vocab_size', 'whole')}"
    if (folder / "done").exists():
        return folder
    tokenizer = AutoTokenizer.from_pretrained(smollm2_folder())
    torch.manual_seed(0)
    config = LlamaConfig(
        max_position_embeddings=32_768, tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id, bos_token_id=tokenizer.bos_token_id, pad_token_id=tokenizer.pad_token_id,
        **{"vocab_size": len(tokenizer)} | SHAPES[name],
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "done").touch()
    return folder
