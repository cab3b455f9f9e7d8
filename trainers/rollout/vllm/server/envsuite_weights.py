"""Fingerprints of weights, computed alike by the trainer and by a server."""

from __future__ import annotations

import re
from collections.abc import Iterable

import torch
from torch import Tensor

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_CHUNK = 1 << 22  # elements hashed at a time; bounds the memory of their 64-bit copies
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
_MASK = (1 << 64) - 1


def layer_group(name: str) -> str:
    """The layer that a parameter belongs to, e.g. ``"layers.3"``; outside the layers its module, e.g. ``"lm_head"``.

    It is the same for parameters that a server has joined (``q_proj``, ``k_proj`` and ``v_proj`` in ``qkv_proj``), and
    for those of a layer that has an adapter (``base_layer``).
    """
    name = name.replace(".base_layer.", ".")
    if match := _LAYER.search(name):
        return f"layers.{match[1]}"
    return name.rpartition(".")[0].rpartition(".")[2] or name


def fingerprint(tensor: Tensor) -> int:
    """Sum, modulo 2**64, of a hash of each element's bits.

    It does not depend on the order or shape of the elements, a zero adds nothing, and the fingerprint of joined tensors
    is the sum of theirs. So it holds for weights that are joined, transposed or padded with zeros; every bit counts.
    """
    flat = tensor.detach().contiguous().view(-1)
    bits = flat.view(_INTEGERS[flat.element_size()])
    total = 0
    for start in range(0, len(bits), _CHUNK):
        total += int(_mix_bits(bits[start : start + _CHUNK].to(torch.int64)).sum())
    return total & _MASK


def _mix_bits(value: Tensor) -> Tensor:
    """A hash of 64-bit integers, 0 for 0: multiplications by odd numbers, which wrap, between shifts."""
    value = value * -0x61C8864680B583EB
    value = value ^ (value >> 29)
    value = value * -0x40A7B892E31B1A47
    value = value ^ (value >> 32)
    return value * 0x2545F4914F6CDD1D


def fingerprints(weights: Iterable[tuple[str, Tensor]]) -> dict[str, int]:
    """The fingerprint of each layer group."""
    totals: dict[str, int] = {}
    for name, tensor in weights:
        group = layer_group(name)
        totals[group] = (totals.get(group, 0) + fingerprint(tensor)) & _MASK
    return totals
