"""Weights on their way to vLLM, and their fingerprints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from trainers.policy.adapter import adapter_config, save_adapter
from trainers.rollout.vllm.server.envsuite_weights import fingerprints, layer_group

_FILE_BYTES = 1 << 30  # a file holds at most so many bytes, or one tensor


def round_weights(
    weights: Iterable[tuple[str, Tensor]], dtype: torch.dtype, group_prints: dict[str, int]
) -> Iterator[tuple[str, Tensor]]:
    """Passes weights on in the format that vLLM computes in.

    Args:
        weights: Name and tensor of each parameter.
        dtype: That format.
        group_prints: The fingerprint of each layer group of what has been passed on; added to.
    """
    for name, tensor in weights:
        cast = tensor.detach().to(dtype).contiguous()
        for group, value in fingerprints([(name, cast)]).items():
            group_prints[group] = (group_prints.get(group, 0) + value) % (1 << 64)
        yield name, cast


def write_weights(weights: Iterable[tuple[str, Tensor]], folder: Path, dtype: torch.dtype) -> dict[str, int]:
    """Writes weights as safetensors files of at most a GiB; returns the fingerprint of each layer group.

    Args:
        weights: Name and tensor of each parameter.
        folder: Where to.
        dtype: Format that the servers compute in; what is written and fingerprinted is rounded to it.
    """
    group_prints: dict[str, int] = {}
    batch: dict[str, Tensor] = {}
    number = size = 0
    for name, tensor in round_weights(weights, dtype, group_prints):
        if batch and size + tensor.nbytes > _FILE_BYTES:
            save_file(batch, folder / f"weights-{number:05d}.safetensors")
            batch, number, size = {}, number + 1, 0
        batch[name] = tensor.cpu()
        size += tensor.nbytes
    save_file(batch, folder / f"weights-{number:05d}.safetensors")
    return group_prints


def write_adapter(
    model: PreTrainedModel, tensors: Mapping[str, Tensor], folder: Path, dtype: torch.dtype
) -> dict[str, int]:
    """Writes the adapter that is trained; returns the fingerprint of each layer group of what vLLM computes with.

    That is A, and B scaled by alpha / rank, rounded to ``dtype`` before and after.

    Args:
        model: Has the adapter.
        tensors: Its whole weights, as :func:`~trainers.policy.adapter.adapter_tensors` names them.
        folder: Where to.
        dtype: Format that the servers compute in.
    """
    save_adapter(model, folder, tensors)
    config = adapter_config(model)
    cast = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    scaling = config.lora_alpha / config.r
    return fingerprints((name, tensor * scaling if ".lora_B." in name else tensor) for name, tensor in cast.items())


def tied_groups(model: nn.Module) -> dict[str, str]:
    """Layer group of each tied parameter that ``named_parameters`` leaves out, and the group of its twin.

    With tied embeddings ``{"lm_head": "embed_tokens"}``.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    pairs = [(name, names[id(parameter)]) for name, parameter in model.named_parameters(remove_duplicate=False)]
    return {layer_group(name): layer_group(twin) for name, twin in pairs if name != twin}
