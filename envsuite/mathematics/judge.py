"""Compares mathematical expressions with math-verify, in a process of its own.

math-verify limits its time by a signal, which only a program's main thread can get, and environments run in threads.
And what it reads was written by models. So one process per program, started when the first expression is compared, does
it with little memory and little processor time; when either is used up it ends, and the next comparison starts another.
The limit is one of processor time, since verdicts must not depend on how busy the machine is.
"""

from __future__ import annotations

import atexit
import logging
import os
import pickle
import resource
import signal
import socket
import threading
from importlib import metadata

from envsuite.core.errors import MissingExtra, WorkerLost
from envsuite.core.processes import START_SECONDS, Child, frame, receive

SECONDS = 2.0
"""Processor time of a comparison."""
PATIENCE = 60.0
"""Wall-clock seconds after which the process counts as lost, however busy the machine is."""
MEMORY = 2**30
"""Bytes of address space of the process that compares."""
_READY, _SAME, _DIFFERENT = b"r", b"s", b"d"
"""Answers of the process."""


def version() -> str:
    """Returns the version of math-verify.

    Raises:
        MissingExtra: It is not installed.
    """
    try:
        return metadata.version("math-verify")
    except metadata.PackageNotFoundError:
        raise MissingExtra(
            "PythonMath-v0 checks answers with math-verify, which is not installed; type: "
            "pip install 'envsuite[mathematics]'"
        ) from None


def same_expression(right: str, answer: str, prose: bool = False) -> bool:
    """Returns whether two expressions in LaTeX have the same value; False if finding out takes too much time or memory.

    Args:
        right: One expression.
        answer: The other; with ``prose``, a sentence whose last number or formula it is.
        prose: Whether ``answer`` is a sentence.

    Raises:
        WorkerLost: The process that compares was lost twice, for reasons that are not the answer's.
    """
    return _JUDGE.same(right, answer, prose)


_ITS_OWN_FAULT = {-number for number in (signal.SIGPROF, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS)}
"""Exit codes of a process whose answer took too long, or nested too deeply for the libraries' stack."""


class Judge:
    """The process that compares, and the right to ask it. Any thread may ask; one is answered at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: Child | None = None

    def same(self, right: str, answer: str, prose: bool) -> bool:
        """Asks the process; see :func:`same_expression`."""
        with self._lock:
            for _ in range(2):
                try:
                    channel = self._started().socket
                    channel.sendall(frame([pickle.dumps((right, answer, prose))]))
                    return _byte(channel, PATIENCE) == _SAME
                except (OSError, EOFError):  # TimeoutError is an OSError
                    if self.close() in _ITS_OWN_FAULT:
                        return False
            raise WorkerLost("the process that compares answers was lost twice; is the machine out of memory?")

    def close(self) -> int | None:
        """Ends the process, if there is one; returns its exit code, which is negative for a signal."""
        if self._child is None:
            return None
        child, self._child = self._child, None
        child.stop()
        return child.process.returncode

    def _started(self) -> Child:
        if self._child is None:
            self._child = Child("envsuite.mathematics.judge:serve")
            _byte(self._child.socket, START_SECONDS)  # it has imported its libraries
        return self._child


def _byte(channel: socket.socket, seconds: float) -> bytes:
    """Waits for the answer: one byte, so that nothing from a process that reads models' text is unpickled."""
    channel.settimeout(seconds)
    answer = channel.recv(1)
    if not answer:
        raise EOFError
    return answer


_JUDGE = Judge()


def _forget() -> None:
    """Forgets the process in a fork of the program: it belongs to the parent."""
    global _JUDGE
    _JUDGE = Judge()


os.register_at_fork(after_in_child=_forget)
atexit.register(lambda: _JUDGE.close())


def serve(channel: socket.socket) -> None:
    """The main function of the process: compares until the socket is closed."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    logging.disable(logging.CRITICAL)
    from math_verify import parse, verify

    channel.sendall(_READY)
    while True:
        right, answer, prose = receive(channel)[0]
        signal.setitimer(signal.ITIMER_PROF, SECONDS)  # the process ends when it has had so much processor time
        try:
            wanted = parse(f"${right}$", parsing_timeout=None)
            given = parse(answer if prose else f"${answer}$", parsing_timeout=None)
            # an inequality may be answered where an interval is asked for, as the other way round
            same = bool(wanted and given and verify(wanted, given, allow_set_relation_comp=True, timeout_seconds=None))
        except Exception:  # whatever sympy raises over a model's text, MemoryError too: it is not the right answer
            same = False
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        channel.sendall(_SAME if same else _DIFFERENT)
