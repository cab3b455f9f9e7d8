"""The folder of a run belongs to one process at a time, which its lock names."""

from __future__ import annotations

import contextlib
import datetime
import errno
import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson
from accelerate import Accelerator

from envsuite.data.files import file_errors
from envsuite.data.locks import try_locked
from trainers.processes.distributed import on_main
from trainers.processes.peers import alive
from trainers.settings import ConfigError

NAME = "run.lock"
CLAIM = "run.claim"
"""Stands in for the lock where the file system has none; its age is the sign of life of its holder."""
BEAT_SECONDS = 5.0
"""Seconds between two signs of life."""
SILENT_SECONDS = 30.0
"""Seconds without one after which a claim counts as left behind."""
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


@dataclass(frozen=True)
class Holder:
    """The process that has a folder."""

    program: str
    pid: int
    host: str
    since: str

    def __str__(self) -> str:
        """Worded to follow "in use by"."""
        return f"{self.program} (pid {self.pid} on {self.host}, since {self.since})"


@contextlib.contextmanager
def hold_folder(folder: Path, program: str, setting: str, patience: float = 0.0) -> Iterator[None]:
    """Holds the folder of a run, which is made if need be; a process that ends, in whatever way, gives it back.

    Args:
        folder: The folder.
        program: Name of the program, for the message of another one.
        setting: The setting that names another folder, for that of this one, e.g. ``--name``.
        patience: Seconds that it waits for a process that has it: one that was killed on another machine holds a lock
            until the file server notices.

    Raises:
        ConfigError: Another process has it; the message says which.
        DataError: It cannot be written.
    """
    own = Holder(program, os.getpid(), socket.gethostname(), f"{datetime.datetime.now():%Y-%m-%d %H:%M:%S}")
    with contextlib.ExitStack() as stack:
        until = time.monotonic() + patience
        with file_errors(folder, "written"):
            while not (mine := _take_lock(folder / NAME, own, stack)) and time.monotonic() < until:
                time.sleep(1.0)
            if not mine:
                holder = _holder(folder / NAME) or _holder(folder / CLAIM) or "another process"
                remedy = f"wait until that has ended, or choose another {setting}"
                raise ConfigError(f"{folder} is in use by {holder}; {remedy}")
        yield


@contextlib.contextmanager
def hold_folder_by_main(
    accelerator: Accelerator, folder: Path, program: str, setting: str, patience: float = 0.0
) -> Iterator[None]:
    """Lets the first process hold the folder (:func:`hold_folder`) for all of them; each process must call this."""
    with contextlib.ExitStack() as stack:
        on_main(accelerator, lambda: stack.enter_context(hold_folder(folder, program, setting, patience)))
        yield


def _take_lock(path: Path, own: Holder, stack: contextlib.ExitStack) -> bool:
    """Takes the lock, or the claim where there are no locks; returns whether this process has it now."""
    try:
        file = try_locked(path)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        path.unlink(missing_ok=True)
        return _make_claim(path.with_name(CLAIM), own, stack)
    if file is None:
        return False
    stack.enter_context(file)
    stack.callback(path.unlink, missing_ok=True)  # before it is closed: only who holds a lock may remove its file
    os.ftruncate(file.fileno(), 0)
    os.write(file.fileno(), orjson.dumps(asdict(own)))
    return True


def _make_claim(path: Path, own: Holder, stack: contextlib.ExitStack) -> bool:
    """Makes the claim, unless its holder lives; returns whether this process has it now."""
    if path.exists() and _lives(path):
        return False
    path.unlink(missing_ok=True)
    try:
        file = stack.enter_context(path.open("xb", buffering=0))
    except FileExistsError:  # another process was quicker
        return False
    stack.callback(path.unlink, missing_ok=True)
    file.write(orjson.dumps(asdict(own)))
    stop = threading.Event()
    thread = threading.Thread(target=_beat, args=(path, stop), name="run-claim", daemon=True)
    stack.callback(thread.join)
    stack.callback(stop.set)
    thread.start()
    return True


def _beat(path: Path, ended: threading.Event) -> None:
    while not ended.wait(BEAT_SECONDS):
        with contextlib.suppress(OSError):  # the next sign of life may arrive
            os.utime(path)


def _lives(path: Path) -> bool:
    """Whether the holder of a claim gives signs of life; a process that is gone from this machine gives none."""
    holder = _holder(path)
    if holder is not None and holder.host == socket.gethostname() and not alive(holder.pid):
        return False
    with tempfile.TemporaryFile(dir=path.parent) as now:  # by the clock that dates the claim, the file server's
        return os.fstat(now.fileno()).st_mtime - path.stat().st_mtime < SILENT_SECONDS


def _holder(path: Path) -> Holder | None:
    """The process that a lock or a claim names; ``None`` before it has written its name."""
    try:
        return Holder(**orjson.loads(path.read_bytes()))
    except (OSError, orjson.JSONDecodeError, TypeError):
        return None
