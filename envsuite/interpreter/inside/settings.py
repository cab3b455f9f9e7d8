"""Settings of sessions, and the memory that their processes use."""

from __future__ import annotations

import contextlib
import os
import resource
from dataclasses import dataclass

_PAGE = resource.getpagesize()
_COUNTED = ("RssAnon", "RssFile", "VmSwap", "Pss_Anon", "Pss_File", "SwapPss")
"""Fields of ``status``, and of ``smaps_rollup``, where what processes share counts once."""


@dataclass(frozen=True)
class SandboxSetting:
    """Settings that all sessions of a zygote share."""

    mode: str
    """``"namespaces"``, ``"landlock"`` or ``"unisolated"``."""
    readable: tuple[str, ...]
    """Paths that sessions may read, for ``"landlock"``."""
    address_space: int
    """Bytes of addresses that a process has before a session begins; 0 where that is not known."""


@dataclass(frozen=True)
class SessionBounds:
    """Limits of a session; the fields of ``envsuite.interpreter.Limits``."""

    seconds: float
    memory: int
    processes: int
    disk: int
    output: int


def address_space() -> int:
    """Returns the bytes of addresses that this process uses; 0 where that is not known."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[0]) * _PAGE
    except OSError:
        return 0


class MemoryMeter:
    """The processes of a session, seen from the first in their namespace, which is not counted.

    Shared memory and files in memory are not counted either: other limits bound them, mapped or not.

    Args:
        processes: Descriptor of the folder of processes, as in ``/proc``.
        process: The only one that is counted; ``None`` for all.
    """

    def __init__(self, processes: int, process: int | None = None) -> None:
        self._processes, self._process = processes, process
        self._base = 0

    def begin(self) -> None:
        """Takes the memory that is used now as none."""
        self._base = self._sum("status")

    def exceeds(self, memory: int) -> bool:
        """Returns whether all processes use more bytes than ``memory``; what they share counts once."""
        if self._sum("status") - self._base <= memory:
            return False
        return self._process is not None or self._sum("smaps_rollup") - self._base > memory

    def is_still(self) -> bool:
        """Returns whether every thread was stopped, or had ended, when it was looked at."""
        for name in self._names():
            with contextlib.suppress(OSError):
                tasks = self._open(f"{name}/task")
                try:
                    for task in os.listdir(tasks):
                        with open(self._open(f"{name}/task/{task}/stat"), encoding="utf-8", errors="replace") as file:
                            if file.read().rpartition(") ")[2][:1] not in ("T", "Z", "X"):
                                return False
                finally:
                    os.close(tasks)
        return True

    def _names(self) -> list[str]:
        if self._process is not None:
            return [str(self._process)]
        return [name for name in os.listdir(self._processes) if name.isdecimal() and name != "1"]

    def _open(self, path: str) -> int:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._processes)

    def _sum(self, file: str) -> int:
        total = 0
        for name in self._names():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                with open(self._open(f"{name}/{file}"), encoding="utf-8", errors="replace") as stream:
                    for line in stream:
                        field, _, value = line.partition(":")
                        if field in _COUNTED:
                            total += int(value.split()[0]) * 1024
        return total
