"""What this machine can do at most, and how near the hf engine comes to it while it decodes.

    python -m benchmarks.limits            bandwidth and products of matrices of this machine
    python -m benchmarks.limits --engine   and the quick start's model decoding on it

Bandwidth is that of reading float32 numbers that lie in memory (1 GiB), in the last level of the processor's cache
(64 MiB, the size of the keys and values of the quick start's episodes) and near it (1 MiB); products are those of large
matrices, and of those that a decoding step of the quick start's model multiplies. The best of several rounds counts, in
CPU time of this process, so that other programs disturb little; with one thread.

The least time of decoding is that of its arithmetic at the speed of such products, and of reading the keys and values
of each sequence once a step (``unshared``), or each distinct one (``shared``), at that of the last-level cache.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from trainers.policy.config import ModelConfig
from trainers.policy.loading import load_model
from trainers.rollout.engine import Request, Sampling
from trainers.rollout.hf_engine import HFEngine

ROWS, GROUP, PROMPT, RESPONSE = 64, 8, 300, 64
"""Sequences that decode at a time, those of a group that share a prompt, its tokens, and those of a response."""


def best(work: Callable[[], object], rounds: int = 7) -> float:
    """The least CPU seconds of ``work``."""
    work()
    times = []
    for _ in range(rounds):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return min(times)


def bandwidth(megabytes: int) -> float:
    """Bytes a CPU second of reading so much memory again and again: the greatest of all numbers is looked for."""
    numbers = torch.ones(megabytes << 18)
    times = max(1, 256 // megabytes)

    def read() -> None:
        for _ in range(times):
            numbers.max()

    return times * numbers.nbytes / best(read)


def products(rows: int, inner: int, columns: int) -> float:
    """Floating-point operations a CPU second of products (rows, inner) x (inner, columns)."""
    left, right = torch.randn(rows, inner), torch.randn(columns, inner)
    times = max(1, 2**28 // (rows * inner * columns))

    def multiply() -> None:
        for _ in range(times):
            torch.nn.functional.linear(left, right)

    return times * 2.0 * rows * inner * columns / best(multiply)


def machine() -> dict[str, float]:
    """Bandwidths in bytes, and products in operations a CPU second."""
    return {
        "memory (1 GiB)": bandwidth(1024),
        "last-level cache (64 MiB)": bandwidth(64),
        "near cache (1 MiB)": bandwidth(1),
        "products of 1024 x 1024": products(1024, 1024, 1024),
        "products of 64 x 128 x 512": products(64, 128, 512),
    }


def decoding(limits: dict[str, float]) -> Table:
    """Decodes with the quick start's model, and compares with the least time."""
    model = load_model(ModelConfig(path="models/craft-1m"))
    config = model.config
    engine = HFEngine(model, max_batch=ROWS, seed=0)
    random = np.random.default_rng(0)
    firsts = [random.integers(3, config.vocab_size, size=PROMPT) for _ in range(ROWS // GROUP)]
    tokens = 0

    def begin() -> None:
        """Computes the prompts, and the first token of each response."""
        engine.sync([], 0)
        sampling = Sampling(max_tokens=RESPONSE, ignore_eos=True)
        engine.submit([Request(number, firsts[number // GROUP], sampling, seed=number) for number in range(ROWS)])
        engine.poll(0.0)

    def go_on() -> float:
        """CPU seconds of the other tokens, once prompts are computed."""
        nonlocal tokens
        begin()
        began = time.process_time()
        tokens = sum(len(done.token_ids) - 1 for _ in iter(lambda: engine.pending, 0) for done in engine.poll())
        return time.process_time() - began

    go_on()
    seconds = min(go_on() for _ in range(3))
    per_key = 2 * 4 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    weights = sum(p.numel() for p in model.parameters())
    length = PROMPT + RESPONSE / 2
    arithmetic = tokens * 2 * weights / limits["products of 64 x 128 x 512"]
    table = Table(title=f"{ROWS} sequences of {PROMPT} + {RESPONSE} tokens, {GROUP} with one prompt; {tokens} tokens")
    for column in ("", "CPU s", "tokens/CPU s", "engine takes"):
        table.add_column(column, justify="left" if not column else "right")
    table.add_row("hf engine", f"{seconds:.2f}", f"{tokens / seconds:.0f}", "")
    for name, keys in (("unshared", length), ("shared", PROMPT / GROUP + RESPONSE / 2)):
        least = arithmetic + tokens * keys * per_key / limits["last-level cache (64 MiB)"]
        table.add_row(f"least, {name}", f"{least:.2f}", f"{tokens / least:.0f}", f"{seconds / least:.1f} x")
    return table


def main(argv: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.limits", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", action="store_true", help="also decode with the quick start's model")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    limits, console = machine(), Console(width=120)
    table = Table(title="this machine, one thread")
    for column in ("", "per CPU second"):
        table.add_column(column, justify="left" if not column else "right")
    for name, rate in limits.items():
        table.add_row(name, f"{rate / 1e9:.1f} {'GFLOP' if name.startswith('products') else 'GB'}")
    console.print(table)
    if args.engine:
        with torch.no_grad():
            console.print(decoding(limits))


if __name__ == "__main__":
    main()
