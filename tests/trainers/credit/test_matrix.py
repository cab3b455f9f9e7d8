"""Every kind of training in every way of sharing it: the loss and gradient of float32 in one process."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from accelerate import Accelerator
from ranks import on_ranks
from tiny_runs import model
from torch import Tensor, nn
from update_cases import SIZE, share, table

from trainers.policy.accumulation import Accumulator, Tally
from trainers.policy.adapter import add_adapter
from trainers.policy.attention import checkpoint_activations
from trainers.policy.config import AdapterConfig, ComputeDtype, ModelConfig, OptimConfig
from trainers.policy.loss import Objective
from trainers.policy.model import Policy
from trainers.policy.sharding import shard, spreads, whole


@dataclass(frozen=True)
class Case:
    """One cell of the matrix, but for the processes."""

    lora: bool = False
    dtype: ComputeDtype = "float32"
    checkpointing: bool = False
    shard: bool = False

    def __str__(self) -> str:
        words = ["LoRA" if self.lora else "full", self.dtype, "checkpointing" if self.checkpointing else ""]
        return " ".join(word for word in words if word)


CASES = [
    Case(lora, dtype, checkpointing)
    for lora in (False, True)
    for dtype in ("float32", "bfloat16")
    for checkpointing in (False, True)
]
WAYS = {"one process": (1, False), "two, DDP": (2, False), "two, FSDP2": (2, True)}
NEAR = {"float32": (1e-6, 1e-6), "bfloat16": (5e-3, 1e-1)}
"""Largest difference of the loss, and of the gradient in parts of its norm."""


def computed(accelerator: Accelerator, cases: list[Case]) -> list[tuple[float, dict[str, Tensor]]]:
    """Loss and gradient of one optimiser batch, of which each process has some rows."""
    found = []
    for case in cases:
        base = model("qwen2", SIZE)  # tied embeddings
        if case.lora:
            # Copies begin with the first process's adapter, whatever their own.
            torch.manual_seed(0 if case.shard else accelerator.process_index)
            add_adapter(base, AdapterConfig(rank=4), "owner/base")
            torch.manual_seed(1)
            for name, parameter in base.named_parameters():
                if ".lora_B." in name:  # it begins at zero, and A then has no gradient
                    parameter.data.normal_(0.0, 0.1)
        if case.checkpointing:
            checkpoint_activations(base)
        inner = Policy(base, compute_dtype=case.dtype)
        policy: nn.Module = inner
        config = ModelConfig(shard="full" if case.shard else "none")
        if spreads(config, accelerator):
            shard(inner, config, accelerator)
        else:
            policy = accelerator.prepare(inner)
        policy.train()
        tally, optim = Tally(), OptimConfig(tokens_per_microbatch=60)
        own = share(accelerator, table())
        # gpg has no clip, at which bfloat16 would take other tokens
        Accumulator(accelerator, policy, optim, Objective(loss="gpg"))(own, tally, seed=0, first=True)
        merged = tally.gather_metrics(accelerator)
        gradient = {name: whole(p.grad).clone() for name, p in inner.named_parameters() if p.grad is not None}
        found.append((sum(value for name, value in merged.items() if name.endswith("_loss")), gradient))
    return found


@pytest.fixture(scope="module")
def exact() -> dict[bool, tuple[float, dict[str, Tensor]]]:
    """Loss and gradient in float32 in one process, without checkpointing: of the whole model, and of an adapter."""
    (found,) = on_ranks(computed, 1, [Case(lora) for lora in (False, True)])
    return dict(zip((False, True), found, strict=True))


@pytest.mark.seconds
@pytest.mark.parametrize("way", WAYS)
def test_losses_and_gradients_are_those_of_float32_in_one_process(way, exact):
    ranks, sharded = WAYS[way]
    for rank, found in enumerate(on_ranks(computed, ranks, [replace(case, shard=sharded) for case in CASES])):
        for case, (loss, gradient) in zip(CASES, found, strict=True):
            own_loss, own = exact[case.lora]
            assert gradient.keys() == own.keys() and all(".lora_" in name for name in own) == case.lora
            flat = [torch.cat([each[name].flatten() for name in own]) for each in (gradient, own)]
            off = float((flat[0] - flat[1]).norm() / flat[1].norm())
            print(f"{way}, {case}, rank {rank}: loss off by {abs(loss - own_loss):.1e}, gradient by {off:.1e}")
            near = NEAR[case.dtype]
            assert abs(loss - own_loss) <= near[0] and off <= near[1], (way, str(case), rank, loss, own_loss, off)
            assert off > 0.0 or (case.dtype == "float32" and not case.shard), "bfloat16 was not computed in bfloat16"
