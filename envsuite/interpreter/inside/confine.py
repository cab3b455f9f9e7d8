"""Takes from a process what a session must not have. What is taken cannot be had again."""

from __future__ import annotations

import os
import random
import resource
import signal
import sys
from typing import TYPE_CHECKING

from envsuite.interpreter.inside import cell, kernel, seccomp

if TYPE_CHECKING:
    from envsuite.interpreter.inside.settings import SandboxSetting, SessionBounds

DIGITS = 1_000_000
"""Digits of the longest integer that is converted to text and back; Python's default is 4300."""


def confine(setting: SandboxSetting, bounds: SessionBounds, folder: str, guarded: bool = True) -> int | None:
    """Confines this process.

    Returns the descriptor with which its guard answers calls that wait; ``None`` where none does.

    Args:
        setting: How sessions are isolated.
        bounds: Limits of the session.
        folder: Where it starts.
        guarded: Whether another process answers its calls for shared memory and threads.

    Raises:
        OSError: The kernel refuses a step.
    """
    os.chdir(folder)
    os.environ["HOME"] = os.environ["TMPDIR"] = folder
    os.umask(0o077)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if setting.mode != "unisolated":
        kernel.no_new_rights()
        if setting.mode == "landlock":
            kernel.die_with_parent(signal.SIGKILL)
            kernel.landlock(setting.readable, ["/dev/null"])
        kernel.drop_capabilities()
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_NOFILE, cell.FILES)
    _limit(resource.RLIMIT_FSIZE, bounds.disk)
    if sys.platform == "linux":
        _limit(resource.RLIMIT_MSGQUEUE, 0)
        _limit(resource.RLIMIT_MEMLOCK, 0)
        if setting.address_space:
            space = setting.address_space + bounds.memory
            resource.setrlimit(resource.RLIMIT_AS, (space, space + cell.RESERVE))
    if setting.mode == "namespaces":
        _limit(resource.RLIMIT_NPROC, bounds.processes + 1)  # the guard is one of them
    if setting.mode == "unisolated":
        return None
    listener = kernel.filter_calls(seccomp.program(os.getpid() if setting.mode == "landlock" else None, guarded))
    if guarded:
        return listener
    os.close(listener)
    return None


def _limit(kind: int, value: int) -> None:
    resource.setrlimit(kind, (value, value))


def seed() -> None:
    """Seeds what is random in this process."""
    sys.set_int_max_str_digits(DIGITS)
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    if "sympy" in sys.modules:
        sys.modules["sympy.core.random"].seed(0)
