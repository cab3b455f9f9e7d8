"""Memory of the devices: how much of it is free, and which errors say that there was none."""

from __future__ import annotations

import os

import psutil
import torch

from envsuite.core.errors import EnvsuiteError

_TEXTS = ("DefaultCPUAllocator: can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDA error: out of memory")
"""Texts of errors that PyTorch gives no class of their own."""


def available() -> float:
    """Bytes of main memory that a program could take now."""
    return float(psutil.virtual_memory().available)


def free(device: torch.device) -> float:
    """Bytes that this process could take on a device now; what PyTorch's allocator keeps for later counts as free.

    Main memory is shared evenly by the processes of this machine. Of devices other than CPU and CUDA nothing is known:
    infinity.
    """
    if device.type == "cuda":
        cache = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return float(torch.cuda.mem_get_info(device)[0] + cache)
    if device.type == "cpu":
        return available() / int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return float("inf")


def ran_out(error: BaseException) -> bool:
    """Whether an error says that memory ran out, of a GPU or of the machine."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    is_own = isinstance(error, EnvsuiteError)  # of another process, say, and in words of ours
    return isinstance(error, RuntimeError) and not is_own and any(text in str(error) for text in _TEXTS)
