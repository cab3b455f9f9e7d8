"""Limited processes that read models' text with code of other packages, such as scorers and games.

A :class:`CodeOrigin` is a process that has loaded such code and reads no text. Each :class:`ConfinedProcess` is a fork
of it, without network, new processes and files to write, and with the environment variables of :data:`KEPT` alone.
Nothing that it says is trusted: its answers are JSON.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import resource
import signal
import socket
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from envsuite.core import errors
from envsuite.core.boundary import reason
from envsuite.core.errors import EnvsuiteError, UsageError, WorkerLost
from envsuite.core.processes import Child
from envsuite.interpreter.inside.confine import confine
from envsuite.interpreter.inside.root import LOADER_CACHE, SYSTEM_LIBRARIES
from envsuite.interpreter.inside.settings import SandboxSetting, SessionBounds, address_space
from envsuite.interpreter.inside.wire import GarbledMessage, receive, send

KEPT = (
    *("HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "TMPDIR", "TZ", "XDG_CACHE_HOME"),
    *("ENVSUITE_DATA", "HF_DATASETS_CACHE", "HF_HOME", "HF_HUB_OFFLINE", "NLTK_DATA"),
)
"""Environment variables that these processes have of the program."""
PATIENCE = 60.0
"""Wall-clock seconds after which a request counts as lost, however busy the machine is."""
MEMORY = 2**30
"""Bytes of addresses that a process may have beyond those of the code that was loaded."""
_MESSAGE = 64 * 2**20
Handler = Callable[[Any], object]
"""Answers a request; both are plain JSON."""


@dataclass(frozen=True)
class LoadedCode:
    """Code that an origin has loaded."""

    about: object
    """Description for the program, as plain JSON."""
    handle: Handler
    """Answers the requests of a process."""
    readable: tuple[str, ...] = ()
    """Folders that it reads, besides Python's and those of installed packages."""


class CodeFailed(Exception):
    """Raised where the code has raised an error over a request; the message is the error's."""


class ProcessLost(Exception):
    """Raised where a process has ended over a request, or took too long; the message says how.

    Args:
        how: What has happened to the process.
        code: Its exit code, negative for a signal; ``None`` where that is not known.
        late: Whether it took too long by the clock.
    """

    def __init__(self, how: str, code: int | None = None, late: bool = False) -> None:
        super().__init__(how)
        self.late = late
        self.by_others = code in (None, -signal.SIGKILL)
        """Whether somebody else may have ended it, so that the request is worth another try."""


class CodeOrigin:
    """A process that loads code, and forks a confined process whenever one is opened. Any thread may ask it.

    Args:
        entry: ``"module:function"``; the function is called in the process with the settings of :meth:`open`, once for
            equal ones, and returns its :class:`LoadedCode`.
    """

    def __init__(self, entry: str) -> None:
        self._entry, self._lock = entry, threading.Lock()
        self._child: Child | None = None

    def open(self, settings: Mapping[str, Any], confined: bool | None = True) -> ConfinedProcess:
        """Returns a new process.

        Args:
            settings: Arguments of the code, as plain JSON.
            confined: False limits time and memory only; ``None`` confines where the machine can.

        Raises:
            EnvsuiteError: The code cannot be loaded, or not be confined.
        """
        ours, theirs = socket.socketpair()
        order = {"settings": settings, "confined": confined, "folder": os.getcwd()}
        try:
            with theirs, self._lock:
                try:
                    self._order(order, theirs)
                except OSError:  # somebody has ended it
                    self._stop()
                    self._order(order, theirs)
            return ConfinedProcess(self, ours)
        except BaseException as error:
            ours.close()
            if isinstance(error, CodeFailed | ProcessLost):
                raise WorkerLost(f"{settings.get('name', self._entry)} cannot be loaded: {error}") from error
            raise

    def _order(self, order: Mapping[str, Any], theirs: socket.socket) -> None:
        if self._child is None:
            self._child = Child("envsuite.interpreter.confined:serve", {"PYTHONHASHSEED": "0"}, KEPT)
            send(self._child.socket, {"entry": self._entry})
        socket.send_fds(self._child.socket, [b"o"], [theirs.fileno()])
        send(self._child.socket, {**order})

    def end(self, process: int) -> int | None:
        """Ends a process that was opened; returns its exit code, ``None`` where that is not known."""
        with self._lock, contextlib.suppress(OSError, EOFError, GarbledMessage):
            if self._child is not None:
                self._child.socket.sendall(b"e")
                send(self._child.socket, {"process": process})
                code: int | None = receive(self._child.socket, _MESSAGE)["code"]
                return code
        return None

    def close(self) -> None:
        """Ends the process and all that were opened; the next :meth:`open` starts another."""
        with self._lock:
            self._stop()

    def _stop(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.stop()


class ConfinedProcess:
    """A process that reads models' text. One thread at a time may ask it.

    Args:
        origin: Where it comes from.
        channel: The socket of the process.

    Raises:
        EnvsuiteError, CodeFailed, ProcessLost: The code cannot be loaded.
    """

    def __init__(self, origin: CodeOrigin, channel: socket.socket) -> None:
        self._origin, self._channel, self._owner = origin, channel, os.getpid()
        self._process: int | None = None
        ready = self._hear(None)
        self._process, self.about = int(ready["process"]), ready["about"]

    def ask(self, request: object, seconds: float, patience: float = PATIENCE) -> Any:
        """Returns the answer to a request, which nothing but its form as JSON vouches for.

        Args:
            request: Plain JSON.
            seconds: Processor time that it may take.
            patience: Wall-clock seconds that it may take.

        Raises:
            EnvsuiteError: The code has raised it.
            CodeFailed: The code has raised another error.
            ProcessLost: The process has ended, and is closed.
        """
        if self._owner != os.getpid():
            self.close()
            raise ProcessLost("belongs to another process")
        with contextlib.suppress(OSError):  # it has ended meanwhile, which is found when its answer is read
            send(self._channel, {"seconds": seconds, "request": request})
        return self._hear(time.monotonic() + patience)["answer"]

    def _hear(self, until: float | None) -> dict[str, Any]:
        try:
            message = receive(self._channel, _MESSAGE, until)
        except TimeoutError:
            raise ProcessLost("took too much time", self.close(), late=True) from None
        except (EOFError, OSError, GarbledMessage):
            code = self.close()
            how = f"was killed by {signal.Signals(-code).name}" if code is not None and code < 0 else "ended"
            raise ProcessLost("took too much time" if code == -signal.SIGPROF else how, code) from None
        if (name := message.get("refused")) is not None:
            kind = vars(errors).get(str(name))
            is_ours = isinstance(kind, type) and issubclass(kind, EnvsuiteError)
            raise kind(str(message.get("why"))) if is_ours else CodeFailed(str(message.get("why")))  # type: ignore[misc]
        if not message.keys() & {"answer", "process"}:
            raise ProcessLost("gave no answer", self.close())
        return message

    def close(self) -> int | None:
        """Ends the process; returns its exit code, which is negative for a signal."""
        self._channel.close()
        process, self._process = self._process, None
        return None if process is None or self._owner != os.getpid() else self._origin.end(process)


@cache
def origin(entry: str) -> CodeOrigin:
    """Returns the origin of this program for an ``entry``; see :class:`CodeOrigin`."""
    new = CodeOrigin(entry)
    atexit.register(new.close)
    return new


os.register_at_fork(after_in_child=origin.cache_clear)  # those there are belong to the parent


def serve(control: socket.socket) -> None:
    """The main function of an origin: loads code and forks processes until the socket is closed."""
    module, _, function = str(receive(control, _MESSAGE)["entry"]).partition(":")
    load: Callable[[Any], LoadedCode] = vars(importlib.import_module(module))[function]
    cache, codes, running = dict[str, LoadedCode](), dict[int, int](), set[int]()
    while True:
        kind, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not kind:
            return
        order = receive(control, _MESSAGE)
        for process in [*running]:
            _reap(process, running, codes, os.WNOHANG)
        if kind == b"e":
            if (process := order["process"]) in running:
                os.kill(process, signal.SIGKILL)
                _reap(process, running, codes)
            send(control, {"code": codes.pop(process, None)})
            continue
        with socket.socket(fileno=descriptors[0]) as channel:
            key = json.dumps([order["settings"], order["folder"]])
            try:
                os.chdir(order["folder"])
                if key not in cache:
                    cache[key] = load(order["settings"])
                process = os.fork()
            except Exception as error:  # whatever the code of a package raises is told to the program
                with contextlib.suppress(OSError):
                    send(channel, _refusal(error))
                continue
            if process == 0:
                control.close()
                _become_confined(channel, cache[key], order["confined"])
            codes.pop(process, None)
            running.add(process)


def _reap(process: int, running: set[int], codes: dict[int, int], flags: int = 0) -> None:
    """Notes the exit code of a process that has ended."""
    if (status := os.waitpid(process, flags))[0]:
        running.discard(process)
        codes[process] = os.waitstatus_to_exitcode(status[1])


def _become_confined(channel: socket.socket, loaded: LoadedCode, confined: bool | None) -> None:
    """Confines this process, and answers requests until the program leaves. Does not return."""
    try:
        if (problem := _limit(loaded.readable, confined)) is not None:
            send(channel, _refusal(UsageError(problem)))
        else:
            send(channel, {"process": os.getpid(), "about": loaded.about})
            while True:
                _answer(channel, loaded.handle)
    finally:
        os._exit(1)  # nothing of the origin may run in this process


def _limit(readable: tuple[str, ...], confined: bool | None) -> str | None:
    """Limits this process, and confines it; returns why that is not possible, if it has to be."""
    setting, space = SandboxSetting("landlock", tuple(_folders(readable)), address_space()), resource.RLIM_INFINITY
    try:
        if confined is not False:
            if sys.platform != "linux":
                raise OSError("it is not Linux")
            confine(setting, SessionBounds(PATIENCE, MEMORY, 1, 0, 0), "/", guarded=False)
            return None
    except OSError as error:
        if confined:
            return (
                f"the code that reads models' text cannot be confined on this machine ({error.strerror or error}): it "
                "needs Linux 5.13 or newer with Landlock (landlock among the kernel's lsm=). Who accepts that it may "
                "do whatever this user may, gives confined=False"
            )
    confine(SandboxSetting("unisolated", (), setting.address_space), SessionBounds(PATIENCE, MEMORY, 1, space, 0), "/")
    return None


def _folders(readable: tuple[str, ...]) -> list[str]:
    """Returns what a process may read: Python, packages as they are installed, and what it is allowed besides."""
    library = sysconfig.get_path("stdlib")
    packages = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages", "lib-dynload")]
    own, base = str(Path(__file__).parents[1]), os.path.join(sys.base_prefix, "lib")
    files = (LOADER_CACHE, "/dev/urandom", "/dev/random", "/usr/share/zoneinfo")
    paths = (*SYSTEM_LIBRARIES, base, library, *packages, own, *files, *readable)
    return sorted({os.path.realpath(path) for path in paths if os.path.exists(path)})


def _answer(channel: socket.socket, handle: Handler) -> None:
    """Answers one request; the process ends when its processor time is used up."""
    message = receive(channel, _MESSAGE)
    signal.setitimer(signal.ITIMER_PROF, message["seconds"])
    try:
        reply = {"answer": handle(message["request"])}
        json.dumps(reply)
    except BaseException as error:  # whatever the code raises over a model's text, SystemExit too, is its answer
        reply = _refusal(error)
    signal.setitimer(signal.ITIMER_PROF, 0.0)
    send(channel, reply)


def _refusal(error: BaseException) -> dict[str, object]:
    is_ours = isinstance(error, EnvsuiteError)
    return {"refused": type(error).__name__ if is_ours else "", "why": str(error) if is_ours else reason(error)}
