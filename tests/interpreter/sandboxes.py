"""Interpreters of this machine for the tests, and the processes that belong to them."""

from __future__ import annotations

import os

import psutil
import pytest

from envsuite.core.errors import UsageError
from envsuite.interpreter import Interpreter, Limits, open_interpreter

LIMITS = Limits(seconds=5.0, memory=128 * 2**20, processes=8, disk=2**20, output=2000)
QUICK = Limits(seconds=0.5, memory=128 * 2**20, processes=8, disk=2**20, output=2000)
"""For code that never ends by itself."""


def opened(name: str, limits: Limits = LIMITS) -> Interpreter:
    """The interpreter of that name, or a skipped test where this machine cannot have it."""
    try:
        return open_interpreter(name, limits)
    except UsageError as error:
        pytest.skip(str(error))


def processes(parent: int | None = None) -> set[int]:
    """All processes of interpreters of a process: a fork has the command line of what it was forked from."""
    mark = f'"parent": {parent or os.getpid()},'  # with the comma: 123 is not 1234
    found = set()
    for process in psutil.process_iter(["cmdline", "status"]):
        if process.info["status"] != psutil.STATUS_ZOMBIE and any(
            mark in word for word in process.info["cmdline"] or []
        ):
            found.add(process.pid)
    return found
