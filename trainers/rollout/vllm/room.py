"""Room for weights on their way to vLLM, in the folder that both sides see."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import PreTrainedModel

from envsuite.playing.engine import EngineFailed
from trainers.policy.adapter import adapter_tensors, is_adapted
from trainers.settings import ConfigError

_WHERE = "rollout.engine_options.weights_folder"
_MIB = 1 << 20


def whole_bytes(model: PreTrainedModel, dtype: torch.dtype) -> int:
    """Bytes of the files of all weights in ``dtype``, without an adapter's; those in four bits are stored by twos."""
    sizes = ((p.numel() * (2 if p.dtype == torch.uint8 else 1), name) for name, p in model.named_parameters())
    return sum(count for count, name in sizes if ".lora_" not in name) * dtype.itemsize


def adapter_bytes(model: PreTrainedModel) -> int:
    """Bytes of the file of the adapter that is trained; 0 where there is none."""
    tensors = adapter_tensors(model).values() if is_adapted(model) else ()
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def check_room(folder: Path, needed: int) -> None:
    """Checks that ``needed`` bytes can be written to ``folder``.

    Raises:
        ConfigError: They cannot; the message says how much there is, and the remedy.
    """
    if shutil.disk_usage(folder).free < needed:
        raise ConfigError(f"{_WHERE}: {_lack(folder, needed)}")


@contextmanager
def finding_room(folder: Path, needed: int) -> Iterator[None]:
    """Raises :class:`EngineFailed` where the block cannot write its files, of ``needed`` bytes, to ``folder``."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        lack = _lack(folder, needed) if folder.is_dir() else f"name a folder that the servers see, too, not {folder}"
        raise EngineFailed(f"{_WHERE}: the weights cannot be written ({error}): {lack}") from error


def _lack(folder: Path, needed: int) -> str:
    free = shutil.disk_usage(folder).free
    in_shm = folder.resolve().is_relative_to("/dev/shm")
    shm = f"start the container with --shm-size {ceil(1.25 * needed / _MIB) + 64}m, or " if in_shm else ""
    return (
        f"{folder} has {free / _MIB:,.1f} MiB free, and the weights take {needed / _MIB:,.1f} MiB there; {shm}set "
        f"{_WHERE} to a folder with room that the servers see, too"
    )
