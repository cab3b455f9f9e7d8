"""A process started to serve this one, and the socket to it."""

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
from collections.abc import Mapping

START_SECONDS = 120.0
"""How long a new process may take to import its modules, before the deadline of its first call begins."""
_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from envsuite.processes.child import run; run(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))"
)


class Child:
    """A process that runs one function of this package with a socket to its maker. POSIX only.

    It imports neither the program's main module nor what that imports (torch), inherits no thread or lock, and, in a
    process group of its own, gets no Ctrl-C and takes its children along when it is killed. It ends when the program
    does, however that ends.

    Args:
        entry: ``"module:function"``; the function is called with the socket. When it returns, or the socket is closed,
            the process ends.
        environment: Variables that it gets besides the program's own.
    """

    def __init__(self, entry: str, environment: Mapping[str, str] | None = None) -> None:
        self.socket, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, json.dumps(sys.path), entry, str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                process_group=0,
                # Many processes on few cores; what the user set counts.
                env={"OMP_NUM_THREADS": "1", **os.environ, **(environment or {})},
            )

    def stop(self, grace: float = 0.0) -> str:
        """End the process and all that it started, and say how it ended; after ``grace`` seconds it is killed."""
        self.socket.close()
        ended: int | None = None
        try:
            ended = self.process.wait(grace)
        except subprocess.TimeoutExpired:
            pass
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):  # it is gone, with all it had started
            pass
        self.process.wait()
        if ended is None:
            return "was killed"
        return f"was killed by {signal.Signals(-ended).name}" if ended < 0 else f"exited with code {ended}"


def run(entry: str, fd: int, parent: int) -> None:
    """What a :class:`Child` does: serve the socket ``fd`` until it is closed or process ``parent`` is gone."""
    os.dup2(2, 1)  # what a world prints must not land in the program's output
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    with socket.socket(fileno=fd) as channel:
        module, _, function = entry.partition(":")
        try:
            vars(importlib.import_module(module))[function](channel)
        except (EOFError, OSError):  # the program has closed the socket, or has ended
            return


def _watch(parent: int) -> None:
    """End this process, and whatever a world has started, when the program is gone, even during a call."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os.killpg(0, signal.SIGKILL)
