"""The tensors of a checkpoint: taken out of the state of a part, and written by one process or by all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor
from torch.distributed.tensor import DTensor

from trainers.policy.sharding import whole
from trainers.policy.weight_files import write_index, write_part
from trainers.processes.distributed import sharing_failures

_TENSOR, _ARRAY = "<tensor>", "<array>"


def without_tensors(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """``value`` with names in place of its tensors and arrays, which are entered into ``tensors``.

    Args:
        value: Nested mappings and lists.
        path: Beginning of the names; empty, or ends with a slash.
        tensors: Receives copies on the CPU; sharded tensors as they are.
    """
    if isinstance(value, Mapping):
        return {str(key): without_tensors(item, f"{path}{key}/", tensors) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_tensors(item, f"{path}{index}/", tensors) for index, item in enumerate(value)]
    if isinstance(value, Tensor):
        own = value.detach()
        tensors[path[:-1]] = own if isinstance(own, DTensor) else own.cpu().contiguous().clone()
        return {_TENSOR: path[:-1]}
    if isinstance(value, np.ndarray):
        tensors[path[:-1]] = torch.from_numpy(np.ascontiguousarray(value))
        return {_ARRAY: path[:-1]}
    return value


def with_tensors(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Reverses :func:`without_tensors`."""
    if isinstance(value, list):
        return [with_tensors(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {_TENSOR}:
        return tensors[value[_TENSOR]]
    if value.keys() == {_ARRAY}:
        return tensors[value[_ARRAY]].numpy()
    return {key: with_tensors(item, tensors) for key, item in value.items()}


def write_tensors(folder: Path, stem: str, tensors: Mapping[str, Tensor], accelerator: Accelerator) -> None:
    """Writes tensors to safetensors files; every process must call this, with tensors of the same names and shapes.

    Where some are sharded, each process writes a file of its own, with about equally many bytes: sharded tensors are
    gathered one at a time, and each is kept, whole, by the process that writes it. Else the first process writes one
    file, and no process writes any where there are no tensors.

    Args:
        folder: Exists, and is the same in all processes.
        stem: Beginning of the files' names (:class:`~trainers.policy.weight_files.WeightFiles`).
        tensors: Of those that are not sharded the first process's are written.
        accelerator: The run's accelerator.

    Raises:
        OSError: A file cannot be written.
        SafetensorError: Alike.
        PeerFailed: Another process cannot write its file.
    """
    rank, ranks = accelerator.process_index, accelerator.num_processes
    spread = {name: tensor for name, tensor in tensors.items() if isinstance(tensor, DTensor)}
    count = ranks if spread else 1
    sizes = [tensor.numel() * tensor.element_size() for tensor in spread.values()]
    file_of = dict.fromkeys(tensors, 0) | dict(zip(spread, deal_parts(sizes, count), strict=True))
    own = {name: tensor for name, tensor in tensors.items() if name not in spread} if rank == 0 else {}
    for name, tensor in spread.items():
        full_tensor = whole(tensor)
        if file_of[name] == rank:
            own[name] = full_tensor.cpu().contiguous()
    with sharing_failures(accelerator):
        if tensors and rank < count:
            write_part(folder, stem, rank, count, own)
        if tensors and rank == 0:
            write_index(folder, stem, file_of, count, sum(t.numel() * t.element_size() for t in tensors.values()))


def deal_parts(sizes: Sequence[int], parts: int) -> list[int]:
    """The part of each of a row of things: neighbours stay together, and parts are about equally large.

    Args:
        sizes: How large each is.
        parts: Number of parts, some of which may stay empty.
    """
    ends = np.cumsum(np.array(sizes, np.int64))
    total = int(ends[-1]) if len(ends) else 0
    return [(2 * int(end) - size) * parts // max(2 * total, 1) for end, size in zip(ends, sizes, strict=True)]
