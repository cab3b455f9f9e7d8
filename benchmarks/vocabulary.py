"""``python -m benchmarks.vocabulary``: memory and time of log-probabilities under a vocabulary of 151,936 tokens.

Forward and backward pass of a model with hidden size 512 and two layers, over responses of 512 tokens, with the
log-probability and entropy of every token in the loss. ``parts`` is how the trainer computes them, ``whole`` has all
logits at once, and ``trl`` is TRL's fused head (``pip install trl``; left out where it is missing). Each runs in a
process of its own, the ways in turn; memory is the peak of the process above what it holds before the pass, weights and
gradients included.

    python -m benchmarks.vocabulary --tokens 1024 4096 16384 --ways parts trl --dtype float32
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import torch
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from trainers.policy.model import Policy
from trainers.policy.precision import computing
from trainers.policy.tree import TokenSequence, token_tree

VOCABULARY, PROMPT, RESPONSE = 151_936, 16, 512
WAYS = ("parts", "whole", "trl")


def _model() -> PreTrainedModel:
    torch.manual_seed(0)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=VOCABULARY, hidden_size=512, intermediate_size=1536, num_hidden_layers=2, num_attention_heads=8,
            num_key_value_heads=2, tie_word_embeddings=True,
        )
    )  # fmt: skip


def _policy(model: PreTrainedModel, way: str, dtype: str) -> Callable[[np.ndarray], torch.Tensor]:
    policy = Policy(model, compute_dtype="bfloat16" if dtype == "bfloat16" else "float32").train()
    assert policy.output is not None
    if way == "whole":
        policy.output = replace(policy.output, elements=sys.maxsize)

    def loss(ids: np.ndarray) -> torch.Tensor:
        place = np.arange(PROMPT - 1, PROMPT - 1 + RESPONSE)
        stats = policy(token_tree([TokenSequence.of(row, place, RESPONSE * n) for n, row in enumerate(ids)]))
        return -(stats.logprob.mean() + 0.001 * stats.entropy.mean())

    return loss


def _trl(model: PreTrainedModel, dtype: str) -> Callable[[np.ndarray], torch.Tensor]:
    from trl.trainer.utils import add_fused_lm_head

    add_fused_lm_head(model, temperature=1.0, outputs=("log_probs", "entropy"))
    model.train()

    def loss(ids: np.ndarray) -> torch.Tensor:
        tokens = torch.from_numpy(ids)
        labels = tokens.clone()
        labels[:, :PROMPT] = -100
        with computing("bfloat16" if dtype == "bfloat16" else "float32", tokens.device):
            out = model(
                input_ids=tokens, attention_mask=torch.ones_like(tokens), labels=labels, fused_lm_head=True,
                use_cache=False,
            )  # fmt: skip
        return -(out.log_probs[:, -RESPONSE:].mean() + 0.001 * out.entropy[:, -RESPONSE:].mean())

    return loss


def memory(field: str) -> int:
    """``VmRSS`` or ``VmHWM`` (its highest value) of this process, bytes."""
    text = Path("/proc/self/status").read_text()
    return 1024 * int(next(line.split()[1] for line in text.splitlines() if line.startswith(field)))


def one(way: str, tokens: int, dtype: str) -> dict[str, float]:
    """Gibibytes above the start, seconds, and the loss, of one pass."""
    model = _model()
    loss = _trl(model, dtype) if way == "trl" else _policy(model, way, dtype)
    rng = np.random.default_rng(0)
    loss(rng.integers(0, VOCABULARY, (1, PROMPT + RESPONSE))).backward()  # the gradients' memory
    model.zero_grad(set_to_none=False)
    Path("/proc/self/clear_refs").write_text("5")  # the highest value is counted anew
    before, start = memory("VmRSS"), time.perf_counter()
    value = loss(rng.integers(0, VOCABULARY, (tokens // RESPONSE, PROMPT + RESPONSE)))
    value.backward()
    return {
        "seconds": time.perf_counter() - start,
        "gib": (memory("VmHWM") - before) / 2**30,
        "loss": float(value.detach()),
        "gradient": float(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).norm()),
    }


def main() -> int:
    """Print one row per way and number of tokens."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--tokens", type=int, nargs="+", default=[1024, 4096], help="of the responses (default 1024 4096)"
    )
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS, help="default: all that are installed")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="number format of products")
    parser.add_argument("--repeats", type=int, default=3, help="the median of so many runs (default 3)")
    parser.add_argument("--one", nargs=2, metavar=("WAY", "TOKENS"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(one(given.one[0], int(given.one[1]), given.dtype)))
        return 0
    ways = [way for way in given.ways if way != "trl" or importlib.util.find_spec("trl")]
    if len(ways) < len(given.ways):
        print("TRL is not installed; left out\n")
    print(
        "| tokens | way | GiB above the start | seconds | loss | norm of the gradient |\n|---:|---|---:|---:|---:|---:|"
    )
    for tokens in given.tokens:
        found: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
        for _ in range(given.repeats):
            for way in ways:
                needed = 6 * 4 * tokens * VOCABULARY
                if way == "whole" and needed > psutil.virtual_memory().available:
                    continue
                command = [sys.executable, "-m", "benchmarks.vocabulary", "--dtype", given.dtype]
                told = subprocess.check_output([*command, "--one", way, str(tokens)], text=True)
                found[way].append(json.loads(told.splitlines()[-1]))
        for way, runs in found.items():
            if not runs:
                print(f"| {tokens:,} | {way} | not run: more than this machine has | | | |")
                continue
            gib, seconds = (statistics.median(run[key] for run in runs) for key in ("gib", "seconds"))
            loss, norm = runs[0]["loss"], runs[0]["gradient"]
            print(f"| {tokens:,} | {way} | {gib:.2f} | {seconds:.1f} | {loss:.5f} | {norm:.5f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
