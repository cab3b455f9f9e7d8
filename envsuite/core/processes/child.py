"""A child process that serves this one over a socket."""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Mapping
from contextlib import suppress

START_SECONDS = 120.0
"""Seconds that a new process has to import its modules before the deadline of its first call begins."""
_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from envsuite.core.processes.child import run; run(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))"
)


class Child:
    """A process that runs one function of this package with a socket to its parent. POSIX only.

    It does not import the program's main module or its imports (torch), and inherits no thread or lock. It has a
    process group of its own, so that it gets no Ctrl-C and its children are killed with it. It ends with the program,
    in whatever way that ends.

    Args:
        entry: ``"module:function"``; the function is called with the socket. The process ends when it returns, or when
            the socket is closed.
        env: Environment variables besides the program's own.
        kept: Names of those of the program's own that it gets, and nothing that it prints is shown; ``None`` for all.
    """

    def __init__(self, entry: str, env: Mapping[str, str] | None = None, kept: Collection[str] | None = None) -> None:
        self.socket, theirs = socket.socketpair()
        own = {name: value for name, value in os.environ.items() if kept is None or name in kept}
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, json.dumps(sys.path), entry, str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                process_group=0,
                # Many processes on few cores; the user's own settings take precedence.
                env={"OMP_NUM_THREADS": "1", **own, **(env or {})},
                stderr=None if kept is None else subprocess.DEVNULL,
            )

    def stop(self, grace: float = 0.0) -> str:
        """Ends the process and its children; kills it after ``grace`` seconds. Returns how it ended."""
        self.socket.close()
        exit_code: int | None = None
        with suppress(subprocess.TimeoutExpired):
            exit_code = self.process.wait(grace)
        with suppress(ProcessLookupError, PermissionError):  # it and its children are gone
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if exit_code is None:
            return "was killed"
        return f"was killed by {signal.Signals(-exit_code).name}" if exit_code < 0 else f"exited with code {exit_code}"


def run(entry: str, fd: int, parent: int) -> None:
    """The main function of a :class:`Child`: serves the socket ``fd`` until it or process ``parent`` is gone."""
    os.dup2(2, 1)  # output of a world must not get into the program's output
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    with socket.socket(fileno=fd) as channel:
        module, _, function = entry.partition(":")
        try:
            vars(importlib.import_module(module))[function](channel)
        except (EOFError, OSError):  # the program closed the socket, or ended
            return


def _watch(parent: int) -> None:
    """Ends this process and its children when the program is gone, even during a call."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os.killpg(0, signal.SIGKILL)
