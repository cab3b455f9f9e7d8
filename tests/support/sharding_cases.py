"""Cases of the sharded policy that several processes compute together, for ``ranks.on_ranks``."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from accelerate import Accelerator
from safetensors.torch import load_file
from tiny_runs import in_float64, model, tokenizer
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from update_cases import SIZE, share, table

from trainers.credit.config import CriticConfig
from trainers.credit.critic import Critic
from trainers.credit.estimators.base import CriticValue
from trainers.policy import sharding
from trainers.policy.accumulation import log_probabilities
from trainers.policy.adapter import adapter_tensors, add_adapter, as_reference, merged_weights
from trainers.policy.attention import checkpoint_activations
from trainers.policy.config import AdapterConfig, ComputeDtype, ModelConfig, OptimConfig, Sharding
from trainers.policy.hidden import Fingerprint, at_prompt_ends
from trainers.policy.loss import Objective
from trainers.policy.model import Policy
from trainers.policy.packing import micro_batches
from trainers.policy.sharding import each_whole, is_sharded, local, shard, spreads, whole
from trainers.policy.update import Updater
from trainers.processes.distributed import PeerFailed, all_gather_object
from trainers.rollout.engine import EngineSetup
from trainers.rollout.vllm.files import FileUpdate
from trainers.rollout.vllm.proof import probe_gap
from trainers.run.folder import RunFolder
from trainers.settings import ConfigError
from trainers.steps.columns import TARGET, VALUE


@dataclass(frozen=True)
class Case:
    """A policy, and how it is sharded."""

    shard: str = "full"
    arch: str = "qwen2"
    double: bool = True
    compute_dtype: ComputeDtype = "float32"
    recomputed: bool = False
    adapted: bool = False
    frozen: torch.dtype = torch.float32
    """Format of the weights under an adapter."""
    loss: str = "ppo"
    offload: bool = False
    sync: Literal["step", "microbatch"] = "microbatch"


CASES = {
    "float64": Case(),
    "float64, a copy in each process": Case("none"),
    "float64, hybrid": Case("hybrid"),
    "float64, untied": Case(arch="llama", loss="clip_cov"),
    "float64, whole logits": Case(arch="gpt2"),
    "float64, recomputed": Case(recomputed=True),
    "float64, offloaded": Case(offload=True),
    "float64, offloaded, hybrid": Case("hybrid", offload=True),
    "float64, adapter": Case(adapted=True, recomputed=True),
    "float64, once a step": Case(sync="step"),
    "float64, once a step, offloaded, hybrid": Case("hybrid", offload=True, sync="step"),
    "float64, once a step, adapter": Case(adapted=True, recomputed=True, sync="step"),
    "float32": Case(double=False),
    "float32, once a step": Case(double=False, sync="step"),
    "bfloat16": Case(double=False, compute_dtype="bfloat16"),
    "bfloat16, once a step": Case(double=False, compute_dtype="bfloat16", sync="step"),
    "bfloat16, recomputed": Case(double=False, compute_dtype="bfloat16", recomputed=True),
    "bfloat16, adapter": Case(double=False, compute_dtype="bfloat16", adapted=True),
    "bfloat16, adapter on bfloat16": Case(
        double=False, compute_dtype="bfloat16", adapted=True, frozen=torch.bfloat16, recomputed=True
    ),
}


@dataclass(frozen=True)
class Result:
    """What one process computed; tensors are whole."""

    gradient: torch.Tensor
    weights: torch.Tensor
    """After an update of several optimiser steps."""
    train: dict[str, float]
    logprobs: torch.Tensor
    """Of this process's rows, after the update."""
    reference: torch.Tensor | None
    """Alike, of an adapter's base."""
    states: list[torch.Tensor]
    """Hidden states of this process's rows, after the update."""
    merged: torch.Tensor | None
    """The weights with the adapter merged, as engines are given them."""
    probe: float
    """Mean log-probability of a few tokens, by calling the model itself."""
    held: int
    """Numbers that this process keeps of weights, gradients and optimiser."""


def made(case: Case) -> Policy:
    """The policy of a case, not yet sharded."""
    base = model(case.arch, SIZE).to(case.frozen)
    for module in base.modules():
        if isinstance(module, nn.Dropout):  # GPT-2's; load_model leaves it out
            module.p = 0.0
    if case.adapted:
        add_adapter(base, AdapterConfig(rank=4), "owner/base")
    if case.recomputed:
        checkpoint_activations(base)
    policy = Policy(base, compute_dtype=case.compute_dtype)
    return in_float64(policy) if case.double else policy


def computed(accelerator: Accelerator, case: Case) -> Result:
    """Gradient, update, log-probabilities and hidden states of a case."""
    os.environ["LOCAL_WORLD_SIZE"] = str(max(accelerator.num_processes // 2, 1))  # so hybrid has two copies
    config = ModelConfig(
        compute_dtype=case.compute_dtype, shard=case.shard, offload=case.offload,  # type: ignore[arg-type]
    )  # fmt: skip
    accelerator.gradient_state.plugin_kwargs[sharding.SYNC] = case.sync != "step"
    if case.offload:  # as on a GPU, where the parts lie elsewhere
        sharding.is_offloaded = lambda tensor: True
    policy: nn.Module = made(case)
    inner = policy
    if spreads(config, accelerator):
        shard(inner, config, accelerator)
    trained = [p for p in policy.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.01)
    if is_sharded(policy):
        optimizer = accelerator.prepare(optimizer)
    else:
        policy, optimizer = accelerator.prepare(policy, optimizer)
    budget = FEW if case.sync == "step" else 60
    optim = OptimConfig(lr=0.01, tokens_per_microbatch=budget, minibatches=3, max_grad_norm=0.5, old_logprobs="trainer")
    objective = Objective(loss=case.loss, cov_fraction=0.1, cov_low=0.0)  # type: ignore[arg-type]
    updater = Updater(accelerator, policy, optimizer, optim, objective, recompute=True)
    own = share(accelerator, table())
    found = updater.gradient(own.table, own.advantage)
    train = updater.update(own, np.random.default_rng([3, 1])).train
    weights = [tensor.clone() for _, tensor in each_whole(inner.named_parameters())]
    reference = None
    if case.adapted:
        with as_reference(inner.model):
            reference = torch.from_numpy(log_probabilities(inner, own.table, optim))
    states = at_prompt_ends(
        inner.model, own.table, [Fingerprint(), Fingerprint(-2, "mean")], budget=60,
        compute_dtype=case.compute_dtype,
    )  # fmt: skip
    merged = None
    if case.adapted:
        merged = torch.cat([tensor.flatten() for _, tensor in each_whole(merged_weights(inner.model))])
    probe, _ = probe_gap(inner.model, case.compute_dtype, [[0, 1, 2, 3, 4]], [([1, 2, 3], [0.0, 0.0, 0.0])])
    some = own.table if accelerator.is_main_process else own.table.take(np.zeros(0, np.int64))
    log_probabilities(inner, some, optim)  # processes without rows take part
    at_prompt_ends(
        inner.model, some, [Fingerprint()], budget=60, compute_dtype=case.compute_dtype
    )  # fmt: skip
    state = [value for values in optimizer.state.values() for value in values.values() if value.ndim]
    return Result(
        torch.cat([g.flatten() for g in found.values()]), torch.cat([w.flatten() for w in weights]), train,
        torch.from_numpy(updater.logprobs(own.table)), reference, [torch.from_numpy(s) for s in states],
        merged, probe.mean, sum(local(tensor).numel() for tensor in [*trained, *state]),
    )  # fmt: skip


@dataclass(frozen=True)
class Critics:
    """What a critic of kind model computed in one process; tensors are whole."""

    values: np.ndarray
    """Of the tokens of this process's rows, after it has learnt."""
    restored: np.ndarray
    """Alike, by another critic that was given the state of the first."""
    weights: torch.Tensor
    learnt: dict[str, float]
    held: int
    """Numbers that this process keeps of weights and optimiser."""


def critics(accelerator: Accelerator, folder: str, sharding: Sharding) -> Critics:
    """A critic that learns for two epochs, and another one that goes on from its state."""
    first, second = (
        Critic(
            CriticConfig(kind="model", lr=0.01, epochs=2, minibatches=2), accelerator,
            model("qwen2", SIZE), ModelConfig(path=folder, shard=sharding), OptimConfig(tokens_per_microbatch=60),
            [CriticValue(per="token")], seed=1,
        )
        for _ in range(2)
    )  # fmt: skip
    own = share(accelerator, table()).table
    taught = first.columns(own).with_token_columns(**{TARGET: np.sin(own.response.values)})
    learnt = first.learn(taught, np.random.default_rng(3))
    second.parts[0].load(_whole(first.parts[0].state()))
    found, restored = (each.columns(own).token_extra[VALUE].values for each in (first, second))
    state = [value for values in first.optimizer.state.values() for value in values.values() if value.ndim]
    held = sum(local(tensor).numel() for tensor in [*first.module.parameters(), *state])
    weights = torch.cat([tensor.flatten() for _, tensor in each_whole(first.module.named_parameters())])
    return Critics(found, restored, weights, learnt, held)


def _whole(state: Any) -> Any:
    """A state as a checkpoint gives it back."""
    if isinstance(state, dict):
        return {key: _whole(value) for key, value in state.items()}
    return whole(state) if isinstance(state, torch.Tensor) else state


FEW = 20
"""Tokens of a micro-batch, of which an optimiser step then has several."""


class Collectives(TorchDispatchMode):
    """Counts the collectives of FSDP2 and the bytes that a process gives to them, by kind and format."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[tuple[str, str]] = Counter()
        self.bytes: Counter[tuple[str, str]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kind = {"_allgather_base_": "gather", "_reduce_scatter_base_": "reduce"}.get(func._opname)
        if func.namespace == "c10d" and kind is not None:
            self.counts[kind, str(args[1].dtype)] += 1
            self.bytes[kind, str(args[1].dtype)] += args[1].nbytes
        return func(*args, **(kwargs or {}))


def exchanged(accelerator: Accelerator, names: list[str]) -> dict[str, tuple[int, Counter[Any], Counter[Any]]]:
    """Passes of an optimiser step of each case, and the collectives that they take."""
    found = {}
    for name in names:
        case, own = CASES[name], share(accelerator, table())
        config = ModelConfig(compute_dtype=case.compute_dtype, shard=case.shard)  # type: ignore[arg-type]
        accelerator.gradient_state.plugin_kwargs[sharding.SYNC] = case.sync != "step"
        shard(policy := made(case), config, accelerator)
        optim = OptimConfig(tokens_per_microbatch=FEW)
        updater = Updater(accelerator, policy, torch.optim.AdamW(policy.parameters()), optim, Objective())
        updater.gradient(own.table, own.advantage)  # after which the layers' order is known
        passes = len([*micro_batches(own.table, FEW)])
        with Collectives() as seen:
            updater.gradient(own.table, own.advantage)
        found[name] = max(all_gather_object(accelerator, passes)), seen.counts, seen.bytes
    return found


def all_computed(accelerator: Accelerator, names: list[str]) -> dict[str, Result]:
    """Every case that is named."""
    return {name: computed(accelerator, CASES[name]) for name in names}


def run(accelerator: Accelerator, config: str, resume: str | None = None) -> None:
    """A whole run, as ``trainers.train`` does it."""
    from rich.console import Console

    from trainers.run.assembly import Run
    from trainers.run.cli import parse
    from trainers.run.loop import train
    from trainers.run.progress import RunProgress

    os.environ["LOCAL_WORLD_SIZE"] = "1"
    settings = parse(["--config", config]).config
    with RunProgress(settings.iterations, console=Console(quiet=True)) as progress:
        train(Run(settings, accelerator, progress), resume)


def refused(accelerator: Accelerator) -> str:
    """Why a policy cannot be sharded where a machine has three of two processes."""
    os.environ["LOCAL_WORLD_SIZE"] = "3"
    try:
        shard(made(CASES["float64"]), ModelConfig(shard="hybrid"), accelerator)
    except ConfigError as error:
        return str(error)
    raise AssertionError("it was not refused")


def sent_to_servers(accelerator: Accelerator, spread: str, folder: str) -> list[dict[str, torch.Tensor]]:
    """What vLLM servers are sent of an adapter on a policy in bfloat16: all tensors of two updates, by their names."""
    policy = made(Case(double=False, compute_dtype="bfloat16", adapted=True, frozen=torch.bfloat16))
    with torch.no_grad():
        for name, tensor in adapter_tensors(policy.model).items():
            tensor.copy_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(len(name))) * 1e-4)
    config = ModelConfig(shard=spread, compute_dtype="bfloat16")  # type: ignore[arg-type]
    if spreads(config, accelerator):
        shard(policy, config, accelerator)
    setup = EngineSetup(policy.model, tokenizer(), config, 4, accelerator)
    update = FileUpdate([], setup, own=False, folder=Path(folder))
    found = []
    for number in range(2):
        here = Path(folder) / f"{spread}-{number}"
        update._prepare(each_whole(merged_weights(policy.model)), here)
        update.has_base = True
        accelerator.wait_for_everyone()
        found.append({name: tensor for file in here.rglob("*.safetensors") for name, tensor in load_file(file).items()})
    return found


def seen(accelerator: Accelerator, shared: str, other: str) -> tuple[str, str]:
    """What is said of a folder that all processes see, and of one that the second has another of."""
    said = []
    for folder in (shared, other if accelerator.process_index else shared):
        try:
            RunFolder(Path(folder), accelerator, tokenizer()).check_shared()
            said.append("")
        except (ConfigError, PeerFailed) as error:
            said.append(str(error))
    return said[0], said[1]
