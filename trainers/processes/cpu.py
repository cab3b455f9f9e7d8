"""How a process computes on a CPU: settings that hold for all of it, and how fast it is."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import platform
import time
from collections.abc import Iterator

import numpy as np
import torch

SLOW = 2.0
"""Times that products in bfloat16 take as long as in float32 from which on they count as slow."""
_SIZE = 256
_LOG = logging.getLogger(__name__)
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -3, -4  # of glibc's malloc.h


def keep_freed_memory() -> bool:
    """Lets this process keep the memory that it frees, for the tensors that it makes next.

    glibc gives large blocks back to the system at once, which then clears fresh pages for every large tensor: an eighth
    to a fifth of the time of an update in micro-batches of 16,384 tokens. The peak is the same, and stays with the
    process until it ends. Not for a sharded model: :func:`return_freed_memory`.

    Returns:
        Whether it is so; no where the C library is not glibc.
    """
    return _mallopt((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, -1))


def return_freed_memory() -> bool:
    """Gives the large blocks that this process frees back to the system at once.

    A sharded model gathers its layers and lets them go one by one. glibc keeps blocks of up to 32 MB once some were
    freed, in pieces that the next layer does not fit in: with two processes and a model of 438 MB, the peak of each is
    2.4 GB instead of 0.6 GB.

    Returns:
        As :func:`keep_freed_memory`.
    """
    return _mallopt((_M_MMAP_MAX, 2**16), (_M_MMAP_THRESHOLD, 2**17), (_M_TRIM_THRESHOLD, 2**17))


def _mallopt(*settings: tuple[int, int]) -> bool:
    if platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(None)
    return all([bool(libc.mallopt(*setting)) for setting in settings])


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


def product_speed(dtype: str) -> float:
    """Floating-point operations a second of one core in products of small matrices, measured by its own time.

    Other programs on the machine change little of it.

    Args:
        dtype: Number format, as torch names it.
    """
    a, b = (torch.ones(_SIZE, _SIZE, dtype=getattr(torch, dtype)) for _ in range(2))
    threads, times = torch.get_num_threads(), list[float]()
    torch.set_num_threads(1)
    try:
        for _ in range(4):  # the first one prepares the others
            began = time.thread_time()
            torch.mm(a, b)
            times.append(time.thread_time() - began)
    finally:
        torch.set_num_threads(threads)
    return 2.0 * _SIZE**3 / min(times)


@functools.cache
def bfloat16_is_slow() -> bool:
    """Whether a model computes on this CPU, which multiplies bfloat16 more slowly than float32; a tenth of a second."""
    return not torch.cuda.is_available() and product_speed("float32") > SLOW * product_speed("bfloat16")


@functools.cache
def warn_of_slow_bfloat16() -> None:
    """Says in one line, and once, that bfloat16 was asked for where it is slow, and what to set instead."""
    if bfloat16_is_slow():
        _LOG.warning(
            "model.compute_dtype is bfloat16, which a core of this CPU multiplies at %.3g GFLOP/s, float32 at "
            "%.3g: it has no instructions for it; set --model.compute_dtype float32 (and --model.adapter.base float32)",
            product_speed("bfloat16") / 1e9, product_speed("float32") / 1e9,
        )  # fmt: skip
