"""The number format of forward passes: trained weights are float32, products run in the compute format."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from trainers.policy.config import ComputeDtype


def computing(compute_dtype: ComputeDtype, device: torch.device) -> torch.autocast:
    """Context of every forward pass of policy, reference, critic and engine.

    With ``bfloat16`` it is PyTorch's autocast; weights that are trained stay float32, and so do gradients and optimiser
    state. With ``float32`` it switches off any autocast that is active. A pass uses each weight once, so that rounded
    ones are not kept: of a sharded policy, they would be all there is.
    """
    return torch.autocast(device.type, torch.bfloat16, enabled=compute_dtype == "bfloat16", cache_enabled=False)


def as_computed(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors in the format of the surrounding :func:`computing`, for kernels that autocast does not know."""
    kind = tensors[0].device.type
    if not torch.is_autocast_enabled(kind):
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    return tuple(tensor.to(dtype) for tensor in tensors)


Weights = dict[tuple[nn.Module, str], Tensor]
"""By module and name there."""


def rounded_weights(model: nn.Module, compute_dtype: ComputeDtype, trained: bool) -> Weights:
    """Copies of the weights of linear layers as autocast makes them in each pass, for many passes between two updates.

    By :func:`weights_replaced` the model then computes, bit for bit, what it would without them. Empty where nothing
    is rounded.

    Args:
        model: The model.
        compute_dtype: Number format of forward passes.
        trained: Whether of the weights that are trained, or of those that are frozen.
    """
    if compute_dtype == "float32":
        return {}
    return {
        (module, part): parameter.detach().to(torch.bfloat16)
        for module in model.modules()
        for part, parameter in module.named_parameters(recurse=False)
        if parameter.requires_grad == trained and is_rounded(module, parameter)
    }


@contextmanager
def weights_replaced(weights: Weights) -> Iterator[None]:
    """These weights in the place of the modules' own."""
    places = [(vars(module)["_parameters"], name, tensor) for (module, name), tensor in weights.items()]
    before = [parameters[name] for parameters, name, _ in places]
    try:
        for parameters, name, tensor in places:
            parameters[name] = tensor
        yield
    finally:
        for (parameters, name, _), own in zip(places, before, strict=True):
            parameters[name] = own


def is_rounded(module: nn.Module, parameter: nn.Parameter) -> bool:
    """Whether autocast rounds this parameter of ``module`` in each forward pass."""
    return isinstance(module, nn.Linear | Conv1D) and parameter.dtype == torch.float32


@contextmanager
def float32_weights(model: nn.Module) -> Iterator[None]:
    """The weights that are held in bfloat16 as float32, each while its module computes, so that one copy is there."""

    def own(module: nn.Module) -> Iterator[nn.Parameter]:
        yield from module.parameters(recurse=False)
        for child in module.children():
            if isinstance(child, nn.Conv1d):  # recurrent layers read its weights without calling it
                yield from child.parameters()

    def widen(module: nn.Module, _: object) -> None:
        for parameter in own(module):
            if parameter.dtype == torch.bfloat16:
                originals[parameter] = parameter.data
                parameter.data = parameter.data.float()

    def restore(module: nn.Module, *_: object) -> None:
        for parameter in own(module):
            if parameter in originals:
                parameter.data = originals.pop(parameter)

    originals: dict[nn.Parameter, Tensor] = {}
    hooks = [module.register_forward_pre_hook(widen) for module in model.modules()]
    hooks += [module.register_forward_hook(restore, always_call=True) for module in model.modules()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
