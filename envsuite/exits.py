"""How a command ends: its exit status, one line for an error that a user can mend, and the answer to Ctrl-C.

It imports the standard library alone, so that ``envsuite`` imports it before anything that takes time: in a command's
first seconds, while it imports, Ctrl-C has the same answer.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 128 + signal.SIGINT
"""Exit status after Ctrl-C."""
PACKAGES = ("envsuite", "trainers")
"""Packages whose modules are commands."""
MENDABLE = 2
"""Exit status after an error that a user can mend."""
PAUSED = 3
"""Exit status of a run that an alarm paused: somebody has to look at it before it goes on."""
_FULL = (errno.ENOSPC, errno.EDQUOT)


def status_of(command: Callable[[], int | None], prefix: str = "error") -> int:
    """Runs a command, whose output is escaped, and returns its exit status.

    Args:
        command: Returns its status; ``None`` is 0.
        prefix: Stands before the line of an error.

    Returns:
        The command's own; 2 after an error that a user can mend, a full disk among them; 130 after Ctrl-C; 0 where the
        reader of its output is gone.
    """
    from envsuite.core.escaping import streams

    with streams():
        return _status_of(command, prefix)


def _status_of(command: Callable[[], int | None], prefix: str) -> int:
    from envsuite.core.errors import EnvsuiteError

    status = 0
    try:
        with raised():
            status = command() or 0
            sys.stdout.flush()
    except KeyboardInterrupt as error:
        say(str(error))
        return INTERRUPTED
    except (BrokenPipeError, SystemExit) as error:  # rich ends a command whose reader is gone
        if not isinstance(error, BrokenPipeError) and not isinstance(error.__context__, BrokenPipeError):
            raise
        leave_stdout()
    except EnvsuiteError as error:
        sys.stderr.write(f"{prefix}: {error}\n")
        return MENDABLE
    except Exception as error:
        if not is_full(error):
            raise
        sys.stderr.write(f"{prefix}: {full(error)}\n")
        return MENDABLE
    return status


def leave_stdout() -> None:
    """Keeps the interpreter from flushing into a pipe whose reader (``head``) is gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def is_full(error: Exception) -> bool:
    """Whether a full disk, or a used up quota, is behind an error; libraries pass on the words of the system."""
    known = isinstance(error, OSError) and error.errno in _FULL
    return known or any(os.strerror(number) in str(error) for number in _FULL)


def full(error: Exception) -> str:
    """Returns the line on a full disk."""
    return f"a file could not be written ({error}); make room and run it again"


def open_streams() -> None:
    """Opens what a command was started without (``>&-``), as the null device: there, no file of its own may stand."""
    if _is_command():
        for name in ("stdin", "stdout", "stderr"):
            if vars(sys)[name] is None:
                setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))


def end_at_once() -> None:
    """Lets Ctrl-C end this process at once, if it was started as a command of these packages.

    ``KeyboardInterrupt`` would not do: raised while an extension module is loaded, it becomes an ``ImportError``.
    """
    if _is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


@contextmanager
def raised() -> Iterator[None]:
    """Lets Ctrl-C raise ``KeyboardInterrupt`` within the block: there is something to close from here on."""
    if signal.getsignal(signal.SIGINT) is not _end:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, _end)


def say(remedy: str = "") -> None:
    """Writes the line of an interrupted command; of the processes of a run, the first one does."""
    if os.environ.get("RANK", "0") == "0":
        sys.stderr.write(f"interrupted; {remedy}\n" if remedy else "interrupted\n")


def _is_command() -> bool:
    """Whether ``python -m`` runs a module of these packages, or the script ``envsuite`` runs."""
    if sys.argv[:1] == ["-m"]:  # until the module is found, whose package is imported before
        words = iter(sys.orig_argv[1:])
        module = next((word[2:] or next(words) for word in words if word.startswith("-m")), "")
        return module.partition(".")[0] in PACKAGES
    return sys.argv[:1] == sys.orig_argv[1:2] and os.path.basename(sys.argv[0]) == "envsuite"


def _end(number: int, frame: FrameType | None) -> None:
    say()
    sys.stderr.flush()
    os._exit(INTERRUPTED)
