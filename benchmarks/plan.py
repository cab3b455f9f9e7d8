"""``python -m benchmarks.plan``: the memory that ``envsuite plan`` expects beside what updates take on this machine.

Each cell is a process of its own: a model with random weights (hidden size 512, four layers), AdamW, and two updates of
two micro-batches each, of rows with 896 prompt and 128 response tokens. Measured is the peak of the second update above
what the process held before it made the model: weights, gradients, moments, activations. ``passes`` is what of both
figures is left without weights, gradients and moments. With --processes 2 each cell is two processes over gloo, copies
or sharded, and the figures are those of the first.

    python -m benchmarks.plan                       # the whole grid: half an hour on two cores, up to 8 GiB
    python -m benchmarks.plan --tokens 4096 --vocabulary 32000 --train lora --dtype bfloat16 --checkpointing yes no
    python -m benchmarks.plan --processes 2 --tokens 4096 --shard none full
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from transformers import Qwen2Config, Qwen2ForCausalLM

from trainers.planning.dry_run import DryRunRows, MemoryTrial
from trainers.policy.accumulation import Batch
from trainers.policy.adapter import add_adapter
from trainers.policy.attention import checkpoint_activations
from trainers.policy.config import AdapterConfig, ModelConfig, OptimConfig
from trainers.policy.loss import ObjectiveConfig
from trainers.policy.model import Policy
from trainers.policy.optimizer import make_optimizer
from trainers.policy.sharding import shard
from trainers.policy.update import Updater
from trainers.steps import StepTable
from trainers.steps.table import Ragged

PROMPT, RESPONSE, GIB = 896, 128, 2**30


@dataclass(frozen=True)
class Cell:
    """One measurement."""

    train: str
    dtype: str
    checkpointing: bool
    vocabulary: int
    tokens: int
    """Of a micro-batch."""
    shard: str
    processes: int

    @property
    def shape(self) -> Qwen2Config:
        """Configuration of the model."""
        return Qwen2Config(
            vocab_size=self.vocabulary, hidden_size=512, intermediate_size=1536, num_hidden_layers=4,
            num_attention_heads=8, num_key_value_heads=2, tie_word_embeddings=True,
        )  # fmt: skip

    @property
    def model(self) -> ModelConfig:
        """Settings of the model."""
        base = "bfloat16" if self.dtype == "bfloat16" else "float32"
        return ModelConfig(
            compute_dtype=self.dtype, gradient_checkpointing=self.checkpointing, shard=self.shard,
            adapter=AdapterConfig(base=base) if self.train == "lora" else None,
        )  # type: ignore[arg-type]  # fmt: skip

    @property
    def rows(self) -> DryRunRows:
        """Rows of a micro-batch."""
        return DryRunRows(self.tokens // (PROMPT + RESPONSE), PROMPT, RESPONSE)

    def __str__(self) -> str:
        kind = f"{self.train}, {self.dtype}, {'with' if self.checkpointing else 'without'} checkpointing"
        spread = "" if self.processes == 1 else f" | {self.processes} processes, shard: {self.shard}"
        return f"{kind}{spread} | {self.vocabulary:,} | {self.tokens:,}"


def memory(field: str) -> int:
    """``VmRSS`` or ``VmHWM`` (its highest value) of this process, bytes."""
    text = Path("/proc/self/status").read_text()
    return 1024 * int(next(line.split()[1] for line in text.splitlines() if line.startswith(field)))


def planned(cell: Cell) -> tuple[float, float]:
    """Gibibytes that the plan expects: all, and of the passes alone."""
    found = MemoryTrial(cell.shape, cell.model, OptimConfig(), cell.processes, cell.processes, cell.rows).run()
    sizes, copies = found.sizes, cell.processes > 1 and cell.shard == "none"
    held = sizes.weights + sizes.gradients * (2 if copies else 1) + sizes.moments
    passes = max(found.update.peak, found.step.peak)
    return (held + passes) / GIB, passes / GIB


def measured(cell: Cell) -> float:
    """Gibibytes at the peak of an update above what the process held before it made the model."""
    accelerator = Accelerator(cpu=True)
    _update(replace(cell, vocabulary=64, tokens=PROMPT + RESPONSE), accelerator)  # torch loads what it needs
    gc.collect()
    before = memory("VmRSS")
    return (_update(cell, accelerator) - before) / GIB


def _update(cell: Cell, accelerator: Accelerator) -> int:
    """The most memory of this process in the second of two updates, bytes."""
    count = 2 * cell.rows.count * cell.processes
    rng = np.random.default_rng(0)
    whole = StepTable(
        group_id=np.arange(count), episode_id=np.arange(count), t=np.zeros(count, np.int64), reward=np.ones(count),
        state_key=np.full(count, "s", object), valid=np.ones(count, np.bool_),
        prompt=Ragged.of(rng.integers(0, cell.vocabulary, (count, PROMPT)), np.int32),
        response=Ragged.of(rng.integers(0, cell.vocabulary, (count, RESPONSE)), np.int32),
        logprob=Ragged.of(np.full((count, RESPONSE), -10.0), np.float32),
    )  # fmt: skip
    own = whole.take(np.arange(accelerator.process_index, count, cell.processes))
    batch = Batch(own, rng.normal(size=len(own.response.values)))
    frozen = cell.model.adapter is not None and cell.model.adapter.base != "float32"
    made = Qwen2ForCausalLM(cell.shape).to(torch.bfloat16 if frozen else torch.float32)
    if cell.model.adapter is not None:
        add_adapter(made, cell.model.adapter, "base")
    if cell.checkpointing:
        checkpoint_activations(made)
    policy: Any = Policy(made, compute_dtype=cell.model.compute_dtype)
    optim = OptimConfig(tokens_per_microbatch=cell.tokens)
    if cell.shard != "none":
        shard(policy, cell.model, accelerator)
        optimizer = accelerator.prepare(make_optimizer(policy.parameters(), optim))
    else:
        policy, optimizer = accelerator.prepare(policy, make_optimizer(policy.parameters(), optim))
    updater = Updater(accelerator, policy, optimizer, optim, ObjectiveConfig(entropy_coef=0.001))
    updater.update(batch.take(np.arange(1)), np.random.default_rng(0))  # makes the moments
    Path("/proc/self/clear_refs").write_text("5")  # the highest value is counted anew
    updater.update(batch, np.random.default_rng(0))
    return memory("VmHWM")


def _run(cell: Cell, keeps: bool) -> float:
    """:func:`measured` in a process of its own, or in several."""
    words = ["-m", "benchmarks.plan", "--one", json.dumps(asdict(cell))]
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", str(cell.processes)] if cell.processes > 1 else []
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true"}
    if not keeps:
        environment["MALLOC_MMAP_THRESHOLD_"] = "65536"  # blocks from this size on are given back when they are freed
    told = subprocess.check_output([sys.executable, *launch, *words], text=True, env=environment)
    return float(next(line for line in told.splitlines() if line.startswith("GiB")).split()[1])


def main() -> int:
    """Print one row per cell; returns 1 where the worst error is above 15 %."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", nargs="+", choices=("full", "lora"), default=["full", "lora"])
    parser.add_argument("--dtype", nargs="+", choices=("float32", "bfloat16"), default=["float32", "bfloat16"])
    parser.add_argument("--checkpointing", nargs="+", choices=("no", "yes"), default=["no", "yes"])
    parser.add_argument("--vocabulary", nargs="+", type=int, default=[32_000, 151_936])
    parser.add_argument("--tokens", nargs="+", type=int, default=[4_096, 16_384], help="of a micro-batch")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--shard", nargs="+", choices=("none", "full"), default=["none"])
    parser.add_argument(
        "--keeps", action="store_true", help="let the allocator keep freed memory, as it does by default"
    )
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        cell = Cell(**json.loads(given.one))
        found = measured(cell)
        if os.environ.get("RANK", "0") == "0":
            print(f"GiB {found}")
        return 0
    processes = "" if given.processes == 1 else " processes |"
    print(
        f"| trained |{processes} vocabulary | tokens | measured, GiB | planned | error | passes: measured | planned |"
    )
    print("|---|" + ("---|" if processes else "") + "---:|" * 7)
    worst = 0.0
    grid = itertools.product(
        given.train, given.dtype, given.checkpointing, given.vocabulary, given.tokens, given.shard, [given.processes]
    )
    for train, dtype, checkpointing, *rest in grid:
        cell = Cell(train, dtype, checkpointing == "yes", *rest)
        plan, measure = planned(cell), _run(cell, given.keeps)
        error, passes = plan[0] / measure - 1, measure - plan[0] + plan[1]
        worst = max(worst, error, key=abs)
        print(
            f"| {cell} | {measure:.2f} | {plan[0]:.2f} | {100 * error:+.1f} % | {passes:.2f} | {plan[1]:.2f} |",
            flush=True,
        )
    print(f"\nWorst error: {100 * worst:+.1f} %")
    return int(abs(worst) > 0.15)


if __name__ == "__main__":
    sys.exit(main())
