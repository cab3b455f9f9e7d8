"""What the trainer computes on the device, for ``test_devices``: each case in a process of its own."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from architectures import architecture
from fake_gpu import DEVICE, FakeGPU, processes, register
from tiny_runs import step_table
from transformers import AttentionInterface, AutoModelForCausalLM, Qwen2Config

from benchmarks.gpu.shapes import SHAPES, episodes
from envsuite.playing.engine import Request, Sampling
from trainers.credit.critic import ValueModel
from trainers.policy import attention, sharding, transfer
from trainers.policy.accumulation import Batch, log_probabilities
from trainers.policy.adapter import add_adapter, as_reference, merged_weights
from trainers.policy.attention import NAME, attending, checkpoint_activations
from trainers.policy.config import AdapterConfig, ModelConfig, OptimConfig
from trainers.policy.flat import flatten
from trainers.policy.hidden import Fingerprint, at_prompt_ends
from trainers.policy.kernels import seen_tokens, varlen_tree_attention
from trainers.policy.loss import Objective
from trainers.policy.model import Policy
from trainers.policy.packing import micro_batches
from trainers.policy.selfcheck import sample_tree
from trainers.policy.update import Updater
from trainers.rollout import slot_attention
from trainers.rollout.hf_engine import HFEngine

SIZE = 31
DTYPES = ("float32", "bfloat16")
OPTIM = OptimConfig(tokens_per_microbatch=60, minibatches=2)


@dataclass
class Outcome:
    """What a case did."""

    error: str | None
    waits: dict[str, int]
    copies: dict[str, int]


def _registered() -> Any:
    """The device, on which the engine attends as on CUDA."""
    transfer.PINNED |= {DEVICE}
    slot_attention.EFFICIENT |= {DEVICE}
    HFEngine._check_model = lambda self: None  # type: ignore[method-assign]  # compares numbers, which mean nothing here
    return register()


def run(accelerator: Accelerator, names: Sequence[str]) -> dict[str, Outcome]:
    """Runs the cases one after the other."""
    kept = _registered()
    AttentionInterface.register("test_varlen", partial(varlen_tree_attention, varlen=lambda: _copies))
    found = {}
    for name in names:
        gpu = FakeGPU()
        try:
            CASES[name](gpu, accelerator)
            found[name] = Outcome(None, dict(gpu.waits), dict(gpu.copies))
        except Exception:
            found[name] = Outcome(traceback.format_exc(), dict(gpu.waits), dict(gpu.copies))
    del kept
    return found


def update(name: str, dtype: str) -> Callable[[FakeGPU, Accelerator], None]:
    """A whole update of two optimiser steps: every micro-batch forward and backward, clipping, AdamW."""

    def case(gpu: FakeGPU, accelerator: Accelerator) -> None:
        table = step_table(np.random.default_rng(0), SIZE, groups=16)
        assert len([*micro_batches(table, OPTIM.tokens_per_microbatch)]) > 2 * OPTIM.minibatches
        inner = Policy(architecture(name, SIZE), temperature=0.4, compute_dtype=dtype)
        with gpu:
            policy = gpu.moved(inner)
            assert policy.model.device.type == DEVICE
            optimizer = torch.optim.AdamW(policy.parameters(), lr=0.1)
            objective = Objective(entropy_coef=0.1)
            updater = Updater(accelerator, policy, optimizer, OPTIM, objective, recompute=True)
            updater.update(Batch(table, np.ones(len(table.response.values))), np.random.default_rng(0))
            formats = {p.grad.dtype for p in policy.parameters() if p.grad is not None}
        assert formats <= {torch.float32}

    return case


def adapted(gpu: FakeGPU, accelerator: Accelerator) -> None:
    """An update of an adapter with frozen weights in bfloat16 and checkpointing, and its reference."""
    base = architecture("qwen2", SIZE).to(torch.bfloat16)
    add_adapter(base, AdapterConfig(rank=4, base="bfloat16"), "owner/base")
    checkpoint_activations(base)
    table = step_table(np.random.default_rng(0), SIZE, groups=4)
    inner = Policy(base, compute_dtype="bfloat16")
    with gpu:
        policy = gpu.moved(inner)
        trained = [p for p in policy.parameters() if p.requires_grad]
        with as_reference(policy.model):
            log_probabilities(policy, table, OPTIM)
        updater = Updater(accelerator, policy, torch.optim.AdamW(trained, lr=0.1), OPTIM, Objective())
        updater.update(Batch(table, np.ones(len(table.response.values))), np.random.default_rng(0))


def sharded(adapted: bool, offload: bool) -> Callable[[FakeGPU, Accelerator], None]:
    """An update of a policy that two processes share, and what reads its weights and states."""

    def case(gpu: FakeGPU, accelerator: Accelerator) -> None:
        base = architecture("qwen2", SIZE)
        if adapted:
            add_adapter(base.to(torch.bfloat16), AdapterConfig(rank=4, base="bfloat16"), "owner/base")
        checkpoint_activations(base)
        table = step_table(np.random.default_rng(0), SIZE, groups=4)
        inner = Policy(base, compute_dtype="bfloat16")
        two: Any = SimpleNamespace(device=torch.device(DEVICE), num_processes=2)
        config = ModelConfig(compute_dtype="bfloat16", shard="full", offload=offload)
        with processes(2) as mesh, gpu:
            sharding._mesh = lambda *_: mesh
            policy = gpu.moved(inner)
            sharding.shard(policy, config, two)
            trained = [p for p in policy.parameters() if p.requires_grad]
            assert all(sharding.is_offloaded(p) == offload for p in policy.parameters())  # type: ignore[arg-type]
            updater = Updater(accelerator, policy, torch.optim.AdamW(trained, lr=0.1), OPTIM, Objective())
            updater.update(Batch(table, np.ones(len(table.response.values))), np.random.default_rng(0))
            for _, tensor in sharding.each_whole(merged_weights(policy.model)):
                assert tensor.device.type == DEVICE
            at_prompt_ends(
                policy.model, table, [Fingerprint()], budget=60, compute_dtype="bfloat16"
            )  # fmt: skip

    return case


def states(gpu: FakeGPU, accelerator: Accelerator) -> None:
    """Hidden states of several layers, each pooling."""
    table = step_table(np.random.default_rng(0), SIZE)
    wanted = [Fingerprint(layer, pooling) for layer in (-1, -2) for pooling in ("last", "mean")]
    inner = architecture("qwen2-sliding", SIZE)
    with gpu:
        model = gpu.moved(inner)
        at_prompt_ends(model, table, wanted, budget=60, compute_dtype="bfloat16")


def values(gpu: FakeGPU, accelerator: Accelerator) -> None:
    """A critic's forward and backward pass."""
    inner = ValueModel(architecture("qwen2", SIZE).base_model, "bfloat16")
    tree, _ = sample_tree(SIZE)
    with gpu:
        gpu.moved(inner)(tree).sum().backward()


def _copies(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **named: Any) -> torch.Tensor:
    """In the place of FlashAttention: looks at what it is given."""
    for tensor in (query, key, value, named["cu_seqlens_q"], named["cu_seqlens_k"]):
        assert tensor.device.type == DEVICE
    assert query.dtype == key.dtype == value.dtype == torch.bfloat16
    assert named["cu_seqlens_q"].dtype == named["cu_seqlens_k"].dtype == torch.int32
    return query.clone()


def kernels(gpu: FakeGPU, accelerator: Accelerator) -> None:
    """The patterns that other kernels of attention take; instead of FlashAttention a stand-in that copies queries."""
    inner = architecture("qwen2-sliding", SIZE)
    tree, _ = sample_tree(SIZE)

    with gpu:
        model = gpu.moved(inner)
        flat = flatten(tree, model)
        with attending(model, "test_varlen"), torch.autocast(DEVICE, torch.bfloat16):
            model(**flat.arguments).logits.sum().backward()
        tokens = flat.arguments["input_ids"].shape[1]
        index = torch.arange(tokens, device=DEVICE)
        for window in (None, 3):
            seen = seen_tokens(flat.arguments["tree_plan"], window)(index, index, index[:, None], index)
            assert seen.device.type == DEVICE and seen.shape == (tokens, tokens)
        with attending(model, NAME):
            model(**flat.arguments)


def engine(name: str, dtype: str, sampling: Sampling) -> Callable[[FakeGPU, Accelerator], None]:
    """Two turns of six episodes in two groups; the second turn goes on from the first."""

    def case(gpu: FakeGPU, accelerator: Accelerator) -> None:
        rng = np.random.default_rng(0)
        inner = architecture(name, SIZE)
        with gpu:
            ours = HFEngine(gpu.moved(inner), max_batch=8, compute_dtype=dtype)
            prompts = [rng.integers(SIZE, size=70) for _ in range(2)]
            for _ in range(2):
                ours.submit([Request(number, prompts[number % 2], sampling, session=number) for number in range(6)])
                while ours.pending:
                    for done in ours.poll():
                        assert len(done.token_ids) == sampling.max_tokens
                prompts = [
                    np.concatenate([prompt, np.zeros(sampling.max_tokens, np.int64), [3, 4]]) for prompt in prompts
                ]
            ours.sync([], 1)

    return case


_PLAIN = Sampling(max_tokens=4)
CASES: dict[str, Callable[[FakeGPU, Accelerator], None]] = {
    **{f"update-{name}-{dtype}": update(name, dtype) for name in ("qwen2", "gemma2", "gpt2") for dtype in DTYPES},
    "update-qwen2-sliding": update("qwen2-sliding", "bfloat16"),
    "adapter": adapted,
    "hidden-states": states,
    "values": values,
    "kernels": kernels,
    **{f"engine-{name}-{dtype}": engine(name, dtype, _PLAIN) for name in ("qwen2", "gemma2") for dtype in DTYPES},
    "engine-sliding": engine("qwen2-sliding", "bfloat16", _PLAIN),
    "engine-nucleus": engine("qwen2", "bfloat16", Sampling(temperature=0.4, top_p=0.9, max_tokens=4)),
    "engine-greedy": engine("qwen2", "bfloat16", Sampling(temperature=0, max_tokens=4)),
    "sharded": sharded(False, False),
    "sharded-adapter": sharded(True, False),
    "sharded-offloaded": sharded(False, True),
}


def operations(accelerator: Accelerator) -> dict[str, int]:
    """Operations of a tree of the benchmark's episodes, with recomputed layers, forward and backward, in bfloat16."""
    kept, counts = register(), []
    attention._runs_flash = lambda device, dtype: dtype == torch.bfloat16  # type: ignore[assignment]
    (tree,) = micro_batches(episodes(SIZE, groups=1, members=8, steps=12, prompt=512, response=64), 16384)
    for layers in (2, 3):
        shape = {**SHAPES["tiny"], "vocab_size": SIZE, "num_hidden_layers": layers}
        base = AutoModelForCausalLM.from_config(Qwen2Config(**shape, bos_token_id=None, eos_token_id=None))
        checkpoint_activations(base)
        policy, gpu = Policy(base, compute_dtype="bfloat16"), FakeGPU()
        with gpu:
            stats = gpu.moved(policy).train()(tree)
            forward = gpu.operations
            stats.logprob.sum().backward()
        counts.append(np.array([forward, gpu.operations]))
    del kept
    forward, both = (counts[1] - counts[0]).tolist()
    return {"a layer, forward": forward, "a layer, with backward": both, "the rest": int(counts[0][1]) - 2 * both}


def decoding(accelerator: Accelerator) -> dict[str, int]:
    """Operations on the device, waits and copies of the last decoding step of two groups, in bfloat16."""
    kept, steps = _registered(), []
    for layers in (2, 3):
        shape = {**SHAPES["tiny"], "vocab_size": SIZE, "num_hidden_layers": layers}
        base, gpu = (
            AutoModelForCausalLM.from_config(Qwen2Config(**shape, bos_token_id=None, eos_token_id=None)),
            FakeGPU(),
        )
        with gpu:
            ours = HFEngine(gpu.moved(base), compute_dtype="bfloat16")
            ours.submit([Request(i, (np.arange(1024) * (i % 2 + 1)) % SIZE, Sampling(max_tokens=4)) for i in range(64)])
            for _ in range(3):
                ours.poll(0.0)
            gpu.operations = 0
            gpu.waits.clear(), gpu.copies.clear()
            assert len(ours.poll(0.0)) == 64
        steps.append(gpu.operations)
    del kept
    layer, waits, copies = steps[1] - steps[0], sum(gpu.waits.values()), sum(gpu.copies.values())
    return {"a layer": layer, "the rest": steps[0] - 2 * layer, "waits": waits, "copies": copies}


def mixes(accelerator: Accelerator) -> dict[str, str | None]:
    """What the fake device says to mistakes, and the format of a product under autocast."""
    kept, found = register(), {}
    with processes(2), FakeGPU():
        there, here = torch.zeros(2, 2, device=DEVICE), torch.zeros(2, 2)
        mistakes: dict[str, Callable[[], Any]] = {
            "mixed": lambda: there @ there + here,
            "numpy": lambda: there.numpy(),
            "bfloat16": lambda: there.to(torch.bfloat16).cpu().numpy(),
            "collective": lambda: torch.distributed.all_reduce(here),
        }
        for name, mistake in mistakes.items():
            try:
                mistake()
                found[name] = None
            except (RuntimeError, AssertionError) as error:
                found[name] = str(error)
        with torch.autocast(DEVICE, torch.bfloat16):
            found["autocast"] = str((there @ there).dtype)
    del kept
    return found


def transfers(accelerator: Accelerator) -> int:
    """How often the host waited: for a number, a list and a copy, but not for what is on the host already."""
    kept = register()
    with FakeGPU() as gpu:
        there = torch.zeros(2, device=DEVICE)
        float(there.sum()), there.tolist(), there.cpu(), float(torch.zeros(2).sum()), torch.zeros(2).tolist()
    del kept
    return sum(gpu.waits.values())
