"""Weights that go from the trainer to the workers of a server through sockets, in parts."""

from __future__ import annotations

import datetime
import json
import socket
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor
from torch.distributed import ProcessGroupGloo, TCPStore, Work  # type: ignore[attr-defined]
from torch.nn.functional import pad

PART_BYTES = 1 << 26
"""Bytes of a part; it holds whole tensors, so that one that is greater has a part of its own."""
_ALIGNED = 8  # bytes; a view of any number format begins at a multiple


def address_towards(host: str, port: int, seconds: float) -> str:
    """The address by which this machine is known to ``host``.

    Raises:
        OSError: Nothing listens there.
    """
    with socket.create_connection((host, port), seconds) as connection:
        address: str = connection.getsockname()[0]
    return address


def join_group(store: TCPStore, rank: int, size: int, address: str, seconds: float) -> ProcessGroupGloo:
    """Joins a group for weights, whose first member sends; waits for the others.

    Args:
        store: Where they meet.
        rank: Of this process; 0 sends.
        size: Number of members.
        address: Own address, at which the others reach this process.
        seconds: How long this and each later operation may take.

    Raises:
        RuntimeError: Not all came.
    """
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [ProcessGroupGloo.create_device(hostname=address)]
    options._timeout = datetime.timedelta(seconds=seconds)
    return ProcessGroupGloo(store, rank, size, options)


def send(weights: Iterable[tuple[str, Tensor]], groups: Sequence[ProcessGroupGloo]) -> Iterator[int]:
    """Sends weights to all members of all groups; yields the bytes of each part before it goes.

    Args:
        weights: Name and tensor of each.
        groups: This process is the first of each.

    Raises:
        RuntimeError: A member is gone, or late.
    """
    for names, part in _parts(weights):
        yield len(part)
        head = torch.tensor(bytearray(json.dumps(names).encode()), dtype=torch.uint8)
        for message in (torch.tensor([len(head), len(part)]), head, part):
            for work in [_broadcast(message, group) for group in groups if len(message)]:
                work.wait()


def receive(group: ProcessGroupGloo) -> Iterator[tuple[str, Tensor]]:
    """Receives what :func:`send` sends.

    Raises:
        RuntimeError: The sender is gone, or late.
    """

    def receive_tensor(size: int, dtype: torch.dtype) -> Tensor:
        buffer = torch.empty(size, dtype=dtype)
        if size:
            _broadcast(buffer, group).wait()
        return buffer

    while True:
        head, size = receive_tensor(2, torch.int64).tolist()
        names = json.loads(bytes(receive_tensor(head, torch.uint8).tolist()))
        # A new tensor each time: vLLM keeps tensors until their layer is complete.
        part = receive_tensor(size, torch.uint8)
        if not names:
            return
        at = 0
        for name, dtype, shape in names:
            form = getattr(torch, dtype)
            count = torch.Size(shape).numel()
            yield name, part[at : at + count * form.itemsize].view(form).view(shape)
            at += count * form.itemsize + -count * form.itemsize % _ALIGNED


def _broadcast(tensor: Tensor, group: ProcessGroupGloo) -> Work:
    return group.broadcast(tensor, 0)  # type: ignore[attr-defined, no-any-return]


def _parts(weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[list[tuple[str, str, list[int]]], Tensor]]:
    """Names, formats and shapes of the tensors of each part, and its bytes; the last one is empty."""
    names: list[tuple[str, str, list[int]]] = []
    parts: list[Tensor] = []
    for name, tensor in weights:
        if sum(map(len, parts)) + tensor.nbytes > PART_BYTES and names:
            yield names, torch.cat(parts)
            names, parts = [], []
        names.append((name, str(tensor.dtype).removeprefix("torch."), [*tensor.shape]))
        parts.append(pad(tensor.cpu().contiguous().view(-1).view(torch.uint8), (0, -tensor.nbytes % _ALIGNED)))
    if names:
        yield names, torch.cat(parts)
    yield [], torch.empty(0, dtype=torch.uint8)
