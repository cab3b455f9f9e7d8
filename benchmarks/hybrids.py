"""A training step of hybrid models in a tree of tokens, beside the same step row by row.

    python -m benchmarks.hybrids

Recorded episodes as in ``benchmarks.training``, models of six layers and 256 channels with random weights. Both ways
are measured in turns, in CPU seconds of one thread; medians are shown. ``positions`` are those that recurrent layers
compute, with what fills runs, chunks or rows up, in distinct tokens.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from benchmarks.training.episodes import Cell, record
from benchmarks.training.models import SHAPES, model_folder
from benchmarks.training.ours import Ours, step_table
from benchmarks.training.rows import Rows
from trainers.policy.packing import distinct_tokens, micro_batches
from trainers.policy.recurrent import TreeLevels, chunk_of
from trainers.policy.rows import padded_rows, use_rows

_WIDE = {"max_position_embeddings": 32_768, "tie_word_embeddings": True, **SHAPES["small"]}
_LINEAR = {
    "linear_num_key_heads": 4, "linear_num_value_heads": 4, "linear_key_head_dim": 64, "linear_value_head_dim": 64,
}  # fmt: skip
_STATES = {
    "mamba_n_heads": 8, "mamba_d_head": 64, "mamba_d_state": 64, "mamba_n_groups": 1, "attn_layer_indices": [2, 5],
}  # fmt: skip
_MIXED = ["linear_attention", "linear_attention", "full_attention"] * 2
MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3_5_text": {**_LINEAR, "head_dim": 64, "layer_types": _MIXED},
    "lfm2": {"layer_types": ["conv", "conv", "full_attention"] * 2, "block_ff_dim": 768},
    "bamba": _STATES,
}
"""Families by name, with their own settings."""


def made(name: str, folder: Path) -> Path:
    """A model of a family in a folder, with the tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(model_folder("small"))
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        name, **{**_WIDE, **MODELS[name]}, pad_token_id=None, bos_token_id=None, eos_token_id=None
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder / name)
    tokenizer.save_pretrained(folder / name)
    return folder / name


class ByRows(Ours):
    """The same by rows."""

    def __init__(self, folder: Path, rows: Rows, budget: int) -> None:
        super().__init__(folder, rows, budget)
        use_rows(self.model, "a benchmark")


def positions(rows: Rows, budget: int) -> tuple[float, float]:
    """Positions that recurrent layers compute in a tree, and by rows, in distinct tokens."""
    table, in_tree = step_table(rows), 0
    for tree in micro_batches(table, budget, True):
        for runs in (runs for level in TreeLevels.of(tree, torch.device("cpu")).levels for runs in level):
            count, length = runs.tokens.shape
            chunk = chunk_of(length, 64, runs.tokens.device)
            in_tree += count * -(-length // chunk) * chunk
    by_row = sum(padded_rows(tree)[0].size for tree in micro_batches(table, budget, True, rows=True))
    distinct = distinct_tokens(table, True)
    return in_tree / distinct, by_row / distinct


def main() -> None:
    """Measures, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), help="(default: all)")
    parser.add_argument("--turns", type=int, nargs="+", default=[8, 16], help="of an episode (default: 8 16)")
    parser.add_argument("--memories", nargs="+", default=["full", "window(2)"], help="(default: full window(2))")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each (default: 3)")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print("| model | prompts | turns x group | tree, s | rows, s | rows / tree | positions, tree | rows |")
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as place:
        for name in given.models:
            folder = made(name, Path(place))
            for memory in given.memories:
                for turns in given.turns:
                    rows = record(Cell("TextCraft", memory, turns, 8), folder).renumber_images(
                        SHAPES["small"]["vocab_size"]
                    )
                    ways = [Ours(folder, rows, 4096), ByRows(folder, rows, 4096)]
                    seconds: list[list[float]] = [[], []]
                    for _ in range(given.rounds):
                        for way, own in zip(ways, seconds, strict=True):
                            began = time.process_time()
                            way.run(0)
                            own.append(time.process_time() - began)
                    tree, apart = map(statistics.median, seconds)
                    filled = positions(rows, 4096)
                    print(
                        f"| {name} | `{memory}` | {turns} x 8 | {tree:.2f} | {apart:.2f} | {apart / tree:.2f} "
                        f"| {filled[0]:.2f} | {filled[1]:.2f} |"
                    )
                    sys.stdout.flush()


if __name__ == "__main__":
    main()
