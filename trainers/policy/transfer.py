"""Copies of arrays from main memory to the device that computes."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

PINNED = {"cuda"}
"""Kinds of devices that copy from pinned memory while the host goes on; any other copy waits for all work before it."""


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """Returns the array as a tensor on ``device``; nothing is waited for."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type in PINNED else tensor.to(device)
