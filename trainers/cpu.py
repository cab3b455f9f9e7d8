"""How a process computes on a CPU: settings that hold for all of it."""

from __future__ import annotations

import contextlib
import ctypes
import platform
from collections.abc import Iterator

import numpy as np
import torch

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of glibc's malloc.h


def keep_freed_memory() -> bool:
    """Lets this process keep the memory that it frees, for the tensors that it makes next.

    glibc gives large blocks back to the system at once, which then clears fresh pages for every large tensor: an eighth
    to a fifth of the time of an update in micro-batches of 16,384 tokens. The peak is the same, and stays with the
    process until it ends.

    Returns:
        Whether it is so; no where the C library is not glibc.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(None)
    return bool(libc.mallopt(_M_MMAP_MAX, 0)) and bool(libc.mallopt(_M_TRIM_THRESHOLD, -1))


@contextlib.contextmanager
def without_subnormals() -> Iterator[None]:
    """Subnormal numbers count as zero in this thread and in those that it starts, so in PyTorch's.

    The gradients of a sharp attention are full of them, and a CPU takes many times longer for each.
    """
    before = bool(torch.tensor(1e-40) * 1 == 0)
    for dtype in (np.float32, np.float64):
        np.finfo(dtype)  # NumPy looks once, and would warn
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
