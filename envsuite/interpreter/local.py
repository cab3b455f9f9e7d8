"""Interpreters on this machine: the program's side of the sandbox in ``inside``."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from pathlib import Path
from typing import Any

from envsuite.core.errors import UsageError, WorkerLost
from envsuite.interpreter.base import STATUSES, CodeResult, Interpreter, InterpreterSession, Limits
from envsuite.interpreter.inside.launch import LAUNCH
from envsuite.interpreter.inside.root import SandboxFiles
from envsuite.interpreter.inside.wire import GarbledMessage, receive, send

PACKAGES = {
    "numpy": ("numpy", "numpy.linalg", "numpy.random"),
    "sympy": ("sympy", "sympy.core.random"),
    "mpmath": ("mpmath",),
    "gmpy2": (),
}
"""Packages that sessions may import besides the standard library, where they are installed, and their modules that are
imported before the first session."""
WARM = ("cmath", "collections", "decimal", "fractions", "functools", "hashlib", "itertools", "math", "random", "re")
"""Modules of the standard library that are imported before the first session."""
START_SECONDS = 120.0
"""Seconds that a zygote has to import its packages, and a session to begin."""
RETRY_SECONDS = 0.1
"""Seconds after which a session that ended before it began is tried again."""
SLACK_SECONDS = 60.0
"""Seconds beyond those of a call after which a guard that does not answer is given up: a machine may be busy."""
ISOLATION = {
    "namespaces": (
        "own user, mount, process, IPC and host name namespaces per session",
        "no network",
        "read-only root with Python, numpy and sympy, and nothing else of the machine",
        "files in memory, up to a limit",
        "a list of allowed system calls",
        "limits of time, memory, processes and output",
    ),
    "landlock": (
        "no files but Python's, read-only (Landlock)",
        "no network, no other processes, no new ones (a list of allowed system calls)",
        "limits of time, memory and output",
    ),
    "unisolated": ("limits of time and output only: the code may do whatever this user may",),
}
"""Separation of sessions, in words, by mode."""


class StartFailed(Exception):
    """Raised where a mode does not work on this machine."""


class Zygote:
    """The process from which sessions of one mode are forked; it is started anew when it is lost.

    Args:
        mode: A key of :data:`ISOLATION`.
    """

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._closed = False

    def open(self, limits: Limits) -> socket.socket:
        """Starts a session; returns the socket of its guard.

        Raises:
            UsageError: The interpreter is closed.
            StartFailed: The sandbox cannot be made.
        """
        try:
            return self._open(limits)
        except EOFError:  # the process was ended, perhaps
            time.sleep(RETRY_SECONDS)
        try:
            return self._open(limits)
        except EOFError as error:
            raise StartFailed("a session ended before it began: too many processes, or no memory") from error

    def _open(self, limits: Limits) -> socket.socket:
        ours, theirs = socket.socketpair()
        try:
            with theirs, self._lock:
                if self._closed:
                    raise UsageError("the interpreter is closed")
                try:
                    socket.send_fds(self._control or self._start(), [b"o"], [theirs.fileno()])
                except OSError:
                    self._stop()
                    socket.send_fds(self._start(), [b"o"], [theirs.fileno()])
            try:
                send(ours, dataclasses.asdict(limits))
            except OSError as error:
                raise EOFError from error
            answer = receive(ours, 2**20, time.monotonic() + START_SECONDS)
            if "ready" not in answer:
                raise StartFailed(str(answer.get("failed")))
        except (TimeoutError, GarbledMessage) as error:
            ours.close()
            raise StartFailed(f"a session did not start: {error}") from error
        except BaseException:
            ours.close()
            raise
        return ours

    def close(self) -> None:
        """Ends the process, and all its sessions."""
        with self._lock:
            self._closed = True
            self._stop()

    def _start(self) -> socket.socket:
        control, theirs = socket.socketpair()
        files, folders, package_names = _files()
        with theirs:
            settings = {
                "mode": self.mode,
                "fd": theirs.fileno(),
                "parent": os.getpid(),
                "files": dataclasses.asdict(files),
                "folders": folders,
                "warm": [*WARM, *(module for name in package_names for module in PACKAGES[name])],
                "environment": ENVIRONMENT,
            }
            package = str(Path(__file__).parents[1])
            self._process = subprocess.Popen(
                [files.python, "-s", "-S", "-P", "-c", LAUNCH, package, json.dumps(settings)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                process_group=0,
                cwd="/",
                env=ENVIRONMENT,
            )
        try:
            answer = receive(control, 2**20, time.monotonic() + START_SECONDS)
        except (EOFError, OSError, GarbledMessage) as error:
            answer = {"failed": f"its process ended ({type(error).__name__})"}
        if "ready" not in answer:
            control.close()
            self._stop()
            raise StartFailed(str(answer.get("failed")))
        control.settimeout(None)
        self._control = control
        return control

    def _stop(self) -> None:
        control, process, self._control, self._process = self._control, self._process, None, None
        if control is not None:
            with contextlib.suppress(OSError):
                if os.getpid() == self._owner:
                    control.shutdown(socket.SHUT_RDWR)
            control.close()
        if process is not None and os.getpid() == self._owner:
            try:
                process.wait(5.0)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


class LocalInterpreter(Interpreter):
    """Sessions on this machine.

    Args:
        zygote: Where they come from.
        limits: What each may use.
    """

    def __init__(self, zygote: Zygote, limits: Limits) -> None:
        super().__init__()
        self.name, self.isolation = zygote.mode, ISOLATION[zygote.mode]
        self.limits, self._zygote = limits, zygote

    def _open_session(self) -> InterpreterSession:
        return LocalSession(self)

    def connect(self) -> socket.socket:
        """Starts the processes of a session; returns the socket of its guard."""
        if self._closed:
            raise UsageError("the interpreter is closed")
        try:
            return self._zygote.open(self.limits)
        except StartFailed as error:
            raise WorkerLost(f"interpreter {self.name!r}: {error}") from error


class LocalSession(InterpreterSession):
    """A session on this machine.

    Args:
        interpreter: Where it was opened.
    """

    def __init__(self, interpreter: LocalInterpreter) -> None:
        super().__init__()
        self._interpreter = interpreter
        self._owner = os.getpid()
        self._socket: socket.socket | None = interpreter.connect()

    def _run(self, code: str) -> CodeResult:
        if self._socket is None:
            self._socket = self._interpreter.connect()
        self._number += 1
        try:
            return self._call(self._socket, code)
        except (EOFError, OSError, GarbledMessage) as error:
            self._drop()
            if self._closed:
                raise UsageError("the session was closed during the call") from error
            raise WorkerLost(f"interpreter {self._interpreter.name!r}: a session was lost ({error!r})") from error

    def _call(self, channel: socket.socket, code: str) -> CodeResult:
        limits = self._interpreter.limits
        channel.settimeout(SLACK_SECONDS)
        send(channel, {"number": self._number, "code": code})
        until = time.monotonic() + limits.seconds + SLACK_SECONDS
        answer = receive(channel, 32 * limits.output + 2**16, until)
        if answer.get("number") != self._number or answer.get("status") not in STATUSES:
            raise GarbledMessage("an answer to another call")
        if answer.get("lost"):
            self._drop()
        return CodeResult(_cut(answer, "stdout", limits), _cut(answer, "stderr", limits), answer["status"])

    def _drop(self) -> None:
        """Ends the session's processes, and waits until they are gone."""
        channel, self._socket = self._socket, None
        if channel is not None:
            if os.getpid() == self._owner:  # in a fork, the session belongs to the parent
                with contextlib.suppress(OSError):
                    channel.shutdown(socket.SHUT_WR)
                    channel.settimeout(5.0)
                    while channel.recv(2**16):
                        pass
            channel.close()

    def close(self) -> None:
        """Ends the session's processes and removes its files."""
        self._closed = True
        running = self._socket
        if running is not None and os.getpid() == self._owner:
            with contextlib.suppress(OSError):
                running.shutdown(socket.SHUT_WR)  # ends a call under way
        with self._lock:
            self._drop()
        self._interpreter.forget(self)


ENVIRONMENT = {
    **{"PYTHONHASHSEED": "0", "PYTHONUTF8": "1", "TZ": "UTC", "LANG": "C.UTF-8", "MALLOC_ARENA_MAX": "2"},
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
}
"""All environment variables of the sandbox; nothing of the program's own gets in."""


def _cut(answer: dict[str, Any], name: str, limits: Limits) -> str:
    text = answer.get(name)
    if not isinstance(text, str):
        raise GarbledMessage(f"an answer without {name}")
    return text[: limits.output]


def _files() -> tuple[SandboxFiles, list[str], list[str]]:
    """Returns the files of a sandbox, the folders that have its packages, and the packages' names."""
    packages, folders, package_names = {}, [], []
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            continue
        package_names.append(name)
        place = Path(spec.submodule_search_locations[0] if spec.submodule_search_locations else spec.origin)
        for path in (place, place.with_name(f"{name}.libs")):
            if path.exists():
                packages[path.name] = str(path.resolve())
        if str(place.parent) not in folders:
            folders.append(str(place.parent))
    files = SandboxFiles(
        python=os.path.realpath(vars(sys)["_base_executable"]),
        prefix=os.path.realpath(sys.base_prefix),
        library=os.path.realpath(sysconfig.get_path("stdlib")),
        packages=packages,
        code=str(Path(__file__).resolve().with_name("inside")),
    )
    return files, folders, package_names
