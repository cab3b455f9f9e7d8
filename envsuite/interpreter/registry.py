"""Interpreters by name."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading

from envsuite.core.errors import UsageError, WorkerLost, unknown
from envsuite.interpreter.base import Interpreter, Limits
from envsuite.interpreter.local import LocalInterpreter, StartFailed, Zygote
from envsuite.interpreter.remote import ServerInterpreter

ISOLATED = ("namespaces", "landlock")
"""Names of the sandboxes of this machine, the strongest first."""
NAMES = ("auto", *ISOLATED, "unisolated")
"""Names of the interpreters of this machine; the address of a server, ``http://…``, is a name too."""

_TRIALS = """
import ctypes, os, socket
def fork():
    if os.fork() == 0:
        os._exit(0)
def unshare():
    if ctypes.CDLL(None, use_errno=True).unshare(0x10000000):
        raise OSError
trials = {
    "start processes without end": fork,
    "make namespaces": unshare,
    "open sockets": socket.socket,
    "read /etc/passwd": lambda: open("/etc/passwd"),
    "read its own environment": lambda: open("/proc/self/environ"),
    "write to its root": lambda: open("/x", "w"),
    "change modes": lambda: os.chmod("/dev/null", 0o666),
}
done = []
for what, trial in trials.items():
    try:
        trial()
        done.append(what)
    except OSError:
        pass
done
"""
"""Lists what of this a session can do; the fork is its second process where one is allowed."""
_LOCK = threading.RLock()
_ZYGOTES: dict[str, Zygote] = {}
_OPEN: dict[tuple[str, Limits], Interpreter] = {}
_FAILED: dict[str, str] = {}
"""Why sandboxes do not work on this machine."""


def open_interpreter(name: str = "auto", limits: Limits | None = None) -> Interpreter:
    """Returns the interpreter of that name and these limits: one per process, closed when the process ends.

    Args:
        name: ``"namespaces"`` or ``"landlock"``, a sandbox on this machine; ``"auto"`` for the first of these that
            works; ``"unisolated"`` to run code with the rights of this user; or the address of a server.
        limits: What a session may use; by default :class:`Limits`.

    Raises:
        UnknownName: There is no interpreter of that name.
        UsageError: The sandbox does not work on this machine, or the address is none of an interpreter.
        WorkerLost: The server does not answer.
    """
    limits = limits or Limits()
    with _LOCK:
        if (interpreter := _OPEN.get((name, limits))) is not None:
            return interpreter
        if name.startswith(("http://", "https://")):
            interpreter = ServerInterpreter(name, limits)
        elif name in NAMES:
            interpreter = _first(limits) if name == "auto" else _local(name, limits)
        else:
            raise unknown("interpreter", name, [*NAMES, "http://…"])
        _OPEN[name, limits] = interpreter
        return interpreter


def close_interpreters() -> None:
    """Closes all interpreters of this process; the next :func:`open_interpreter` starts anew."""
    with _LOCK:
        for interpreter in _OPEN.values():
            interpreter.close()
        for zygote in _ZYGOTES.values():
            zygote.close()
        _OPEN.clear()
        _ZYGOTES.clear()
        _FAILED.clear()


def _first(limits: Limits) -> Interpreter:
    for name in ISOLATED:
        try:
            return open_interpreter(name, limits)
        except UsageError:
            continue
    raise UsageError(
        f"code of a model cannot be isolated on this machine ({'; '.join(f'{n}: {w}' for n, w in _FAILED.items())}). "
        f"{_remedy()} Who accepts that the code may do whatever this user may, names the interpreter 'unisolated'."
    )


def _local(name: str, limits: Limits) -> Interpreter:
    if name in _FAILED:
        raise UsageError(f"the interpreter {name!r} does not work on this machine: {_FAILED[name]}. {_remedy()}")
    if name not in _ZYGOTES:
        zygote = Zygote(name)
        try:
            if name in ISOLATED:
                _try(zygote)
        except (StartFailed, WorkerLost) as error:
            zygote.close()
            _FAILED[name] = str(error)
            return _local(name, limits)
        _ZYGOTES[name] = zygote
    return LocalInterpreter(_ZYGOTES[name], limits)


def _try(zygote: Zygote) -> None:
    """Tries what a session must not do, once, before any code of a model runs.

    Raises:
        StartFailed: The sandbox does not hold here, or cannot be made.
    """
    if sys.platform != "linux":
        raise StartFailed("it needs Linux")
    interpreter = LocalInterpreter(zygote, Limits(seconds=60.0, processes=1))
    with contextlib.closing(interpreter), interpreter.open() as session:
        result = session.run(_TRIALS)
    if (result.stdout, result.status) != ("[]\n", "ok"):
        raise StartFailed(f"its sessions can do what they must not: {(result.stdout or result.stderr).strip()}")


def _remedy() -> str:
    if sys.platform != "linux":
        return "Run the interpreter's container (docker/compose.yaml) and name its address: http://127.0.0.1:8090."
    return (
        "Linux 5.14 or newer isolates it where users may make namespaces (sysctl user.max_user_namespaces above 0, "
        "kernel.apparmor_restrict_unprivileged_userns=0), Linux 5.13 or newer with Landlock (landlock among the "
        "kernel's lsm=) elsewhere; or run the interpreter's container (docker/compose.yaml) and name its address."
    )


def _forget() -> None:
    """Forgets everything in a forked process: it belongs to the parent."""
    global _LOCK
    _LOCK = threading.RLock()
    _OPEN.clear()
    _ZYGOTES.clear()


os.register_at_fork(after_in_child=_forget)
atexit.register(close_interpreters)
