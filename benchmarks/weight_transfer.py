"""Seconds of an update of the weights of a vLLM server on a CPU, by files and by sockets, in turns.

``python -m benchmarks.weight_transfer PYTHON``, where PYTHON is an interpreter with vLLM, prints a table.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, PreTrainedModel

from trainers.policy.config import ModelConfig
from trainers.rollout.engine import EngineSetup
from trainers.rollout.vllm.engine import VLLMEngine

CRAFT = Path("trainers/models/craft-1m")


def like_smollm2() -> PreTrainedModel:
    """Random weights in the sizes of SmolLM2-135M."""
    config = LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=2048, tie_word_embeddings=True, bos_token_id=None,
    )  # fmt: skip
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    return model


MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "craft-1m": lambda: AutoModelForCausalLM.from_pretrained(CRAFT, dtype=torch.float32),
    "like SmolLM2-135M": like_smollm2,
}


def seconds(model: PreTrainedModel, python: str, rounds: int) -> dict[str, list[float]]:
    """Times of updates, with their proof, by each way; the first of each, in which both sides warm up, comes first."""
    setup = EngineSetup(model.train(False), AutoTokenizer.from_pretrained(CRAFT), ModelConfig(), 4)
    found: dict[str, list[float]] = {}
    with ExitStack() as stack:
        engines = {}
        for way in ("files", "gloo"):
            engines[way] = VLLMEngine.from_setup(setup, python=python, transfer=way)
            stack.callback(engines[way].close)
        for version in range(rounds + 1):
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(1.001)
            for way, engine in engines.items():
                began = time.perf_counter()
                engine.sync(model.named_parameters(), version)
                found.setdefault(way, []).append(time.perf_counter() - began)
    return found


def main(given: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("python", help="interpreter with vLLM")
    parser.add_argument("--models", nargs="*", choices=MODELS, default=[*MODELS])
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args(given)
    print("| model | MB | way | median, s | range, s | the first, s |\n|---|---:|---|---:|---|---:|")
    for name in asked.models:
        model = MODELS[name]()
        size = sum(parameter.nbytes for parameter in model.parameters()) / 1e6
        for way, (first, *times) in seconds(model, asked.python, asked.rounds).items():
            spread = f"{min(times):.2f} to {max(times):.2f}"
            print(f"| {name} | {size:.0f} | {way} | {median(times):.2f} | {spread} | {first:.2f} |", flush=True)


if __name__ == "__main__":
    main()
