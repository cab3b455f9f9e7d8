"""A policy whose weights, gradients and optimiser state are spread over the processes of a run, by ``fully_shard``.

Each layer is gathered while it computes, in the forward pass and again in the backward pass, and what lies outside of
the layers (embeddings, output layer) while the policy computes. A pass is therefore a matter of all processes: each
makes as many as the others (:func:`rounds`). In bfloat16 what autocast rounds of a layer is gathered in it; gradients
are added up in float32.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from trainers.policy.config import ComputeDtype, ModelConfig
from trainers.policy.model import Policy
from trainers.policy.outline import WeightSource, fill, from_rows, is_outline, own_rows
from trainers.policy.precision import is_rounded
from trainers.policy.tree import one_token
from trainers.processes.cpu import return_freed_memory
from trainers.processes.distributed import sharing_failures
from trainers.settings import ConfigError

_ROOTS: weakref.WeakKeyDictionary[nn.Module, weakref.ref[nn.Module]] = weakref.WeakKeyDictionary()
SYNC = "sync_each_batch"
"""Key of accelerate's ``gradient_state``: whether sharded gradients are added up after each micro-batch (the default),
or once an optimiser step, until which each process holds whole ones."""


def spreads(config: ModelConfig, accelerator: Accelerator) -> bool:
    """Whether the policy of a run is sharded: there are several processes, and ``model.shard`` says so."""
    return config.shard != "none" and accelerator.num_processes > 1


def shard(policy: Policy, config: ModelConfig, accelerator: Accelerator, weights: WeightSource | None = None) -> None:
    """Shards ``policy``, which may lie on the CPU, onto the processes' devices; every process must call this.

    Afterwards its parameters are ``DTensor``; an optimiser has to be made from these. Weights that are trained begin
    as those of the first process.

    Args:
        policy: The same in all processes, as loaded from files, or without its weights.
        config: How it is sharded.
        accelerator: The run's accelerator, with several processes.
        weights: Where the weights are that it does not have yet.

    Raises:
        DataError: The weights cannot be read, or the model is not computed as it computes by itself.
        ConfigError: The model has no layers that transformers could checkpoint one by one, or the processes of a
            machine do not divide those of the run.
    """
    spread(policy, policy.model, config, accelerator)
    unread = is_outline(policy)
    if unread:
        assert weights is not None
        with sharing_failures(accelerator):
            weights.open()
        with sharing_failures(accelerator):
            fill(policy.model, weights, torch.device("cpu") if config.offload else accelerator.device)
    with torch.no_grad():
        policy(one_token())  # the first pass makes the policy the root, whatever is called by itself afterwards
    if unread:
        with gathered_outside_layers(policy.model):
            policy.check()


def spread(root: nn.Module, model: PreTrainedModel, config: ModelConfig, accelerator: Accelerator) -> None:
    """Shards a module that computes with ``model``; it has to make a pass then. Every process must call this.

    Args:
        root: The same in all processes. Weights that are trained begin as those of the first process.
        model: Its language model, which it contains.
        config: How it is sharded.
        accelerator: The run's accelerator, with several processes.

    Raises:
        ConfigError: As :func:`shard`.
    """
    if not _layers(model):
        raise ConfigError(
            f"model.shard is {config.shard}, but {type(model).__name__} is not made of layers that can be "
            "gathered one at a time; set model.shard: none, or take a model such as Llama, Qwen, Mistral or Gemma"
        )
    mesh = _mesh(config, accelerator)
    if accelerator.device.type == "cpu":
        return_freed_memory()
    for parameter in root.parameters():
        if parameter.requires_grad and not parameter.is_meta:
            first = parameter.data.to(accelerator.device)
            dist.broadcast(first, 0)
            parameter.data.copy_(first)
    shard_over(root, model, mesh, config.compute_dtype, config.offload)


def shard_over(
    root: nn.Module, model: PreTrainedModel, mesh: DeviceMesh, compute_dtype: ComputeDtype, offload: bool = False
) -> None:
    """Shards the parameters of ``root``, which contains ``model``, over ``mesh``; it has to make a pass then."""
    policy = CPUOffloadPolicy(pin_memory=mesh.device_type != "cpu") if offload else OffloadPolicy()
    for module in (*reversed(_layers(model)), root):  # inner layers first
        precision = MixedPrecisionPolicy()
        if compute_dtype == "bfloat16" and module is not root and module not in (exact := _exact_parts(module)):
            precision = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
            if exact:
                fully_shard(exact, mesh=mesh, reshard_after_forward=True, offload_policy=policy)
        fully_shard(module, mesh=mesh, reshard_after_forward=True, mp_policy=precision, offload_policy=policy)
    _ROOTS[model] = weakref.ref(root)


def _exact_parts(layer: nn.Module) -> list[nn.Module]:
    """The modules whose own weights autocast does not round, such as norms and a mixture's experts."""
    return [
        module
        for module in layer.modules()
        if any(own.dtype == torch.float32 and not is_rounded(module, own) for own in module.parameters(recurse=False))
    ]


def without_sync(accelerator: Accelerator, module: nn.Module) -> AbstractContextManager[None]:
    """A pass that another one follows before the optimiser's step: where it may be, gradients are added up then."""
    if not is_sharded(module):
        context: AbstractContextManager[None] = accelerator.no_sync(module)
        return context
    return nullcontext() if accelerator.gradient_state.plugin_kwargs.get(SYNC, True) else _keeping_gradients(module)


@contextmanager
def _keeping_gradients(module: nn.Module) -> Iterator[None]:
    assert isinstance(module, FSDPModule)
    module.set_requires_gradient_sync(False)
    module.set_is_last_backward(False)
    yield
    module.set_requires_gradient_sync(True)
    module.set_is_last_backward(True)


def _layers(model: PreTrainedModel) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def _mesh(config: ModelConfig, accelerator: Accelerator) -> DeviceMesh:
    ranks, kind = accelerator.num_processes, accelerator.device.type
    if config.shard == "full":
        return init_device_mesh(kind, (ranks,))
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "0"))
    if not here or ranks % here:
        raise ConfigError(
            f"model.shard is hybrid, but the {ranks} processes are not a multiple of those of this machine "
            f"({here or 'unknown'}: LOCAL_WORLD_SIZE, set by torchrun and accelerate launch); launch as many on each "
            "machine, or set model.shard: full"
        )
    return init_device_mesh(kind, (ranks // here, here), mesh_dim_names=("replicate", "shard"))


def is_sharded(model: nn.Module) -> bool:
    """Whether the model of a policy, or the policy, was sharded."""
    return isinstance(model, FSDPModule) or model in _ROOTS


def rounds(model: nn.Module, own: int) -> int:
    """Number of passes that this process makes where it needs ``own``: of a sharded model, as many as any process.

    Every process must call this before its passes.
    """
    if not is_sharded(model):
        return own
    parameter = next(model.parameters())
    assert isinstance(parameter, DTensor)
    most = torch.tensor(own, device=parameter.device_mesh.device_type)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return int(most)


@contextmanager
def gathered_outside_layers(model: PreTrainedModel) -> Iterator[None]:
    """Gathers embeddings and output layer, so that a sharded model, or its base model, can be called by itself.

    Without gradients; every process must enter it and call the model as often as the others. Nothing is done to a model
    that is not sharded.
    """
    root = _ROOTS[model]() if model in _ROOTS else None
    if root is None:
        yield
        return
    assert isinstance(root, FSDPModule)
    root.unshard()
    try:
        yield
    finally:
        root.reshard()


def whole(tensor: Tensor) -> Tensor:
    """The tensor without its sharding, detached; of a sharded one every process must call this."""
    tensor = tensor.detach()
    if not isinstance(tensor, DTensor):
        return tensor
    if is_offloaded(tensor):
        tensor = from_rows(tensor.to_local().to(tensor.device_mesh.device_type), tensor, tensor)
    return tensor.full_tensor()


def is_offloaded(tensor: DTensor) -> bool:
    """Whether this process's part lies elsewhere than where processes exchange: on their devices."""
    return tensor.to_local().device.type != tensor.device_mesh.device_type


def each_whole(weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Names and whole tensors, gathered one at a time; every process must read all of them."""
    for name, tensor in weights:
        yield name, whole(tensor)


def kept_whole(weights: Iterable[tuple[str, Tensor]], keeps: bool) -> dict[str, Tensor]:
    """Names and whole tensors on the CPU, where this process ``keeps`` them; every process must call this."""
    tensors = {}
    for name, tensor in each_whole(weights):
        if keeps:
            tensors[name] = tensor.cpu()
    return tensors


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this process holds."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def assign(own: Tensor, value: Tensor) -> None:
    """Copies a whole ``value``, the same in every process, into a tensor that may be sharded."""
    with torch.no_grad():
        if isinstance(own, DTensor):
            own.to_local().copy_(value[own_rows(own)])
        else:
            own.copy_(value)


def spread_as(value: Tensor, like: Tensor) -> Tensor:
    """A whole ``value``, the same in every process, on the device of ``like`` and sharded as ``like`` is.

    Of ``value`` no more is read than this process's part. A number (of no dimension) stays where it is.
    """
    if not value.ndim:
        return value.clone()
    if not isinstance(like, DTensor):
        return value.to(like.device, copy=True)
    return from_rows(value[own_rows(like)].to(like.to_local().device, copy=True), like, value)


def total_norm(tensors: Iterable[Tensor]) -> Tensor:
    """Euclidean norm of all tensors together, whole; of sharded ones every process must call this."""
    parts = list(tensors)
    if not parts or not isinstance(parts[0], DTensor) or not is_offloaded(parts[0]):
        return whole(nn.utils.get_total_norm(parts))
    mesh = parts[0].device_mesh
    square = nn.utils.get_total_norm([local(tensor) for tensor in parts]).square().to(mesh.device_type)
    dist.all_reduce(square, group=mesh.get_group(mesh.ndim - 1))  # the dimension over which rows are spread
    return square.sqrt()
