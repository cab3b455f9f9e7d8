"""Waiting for what is bound to happen, no longer than it takes."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil


def until(happened: Callable[[], object], seconds: float = 120.0) -> None:
    """Wait until ``happened()`` is true, or fail."""
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def ended(pid: int) -> bool:
    """Whether a process has ended, collected by its parent or not."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
