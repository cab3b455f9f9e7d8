"""The folder of a run belongs to one process at a time, which its lock names."""

from __future__ import annotations

import contextlib
import datetime
import errno
import logging
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from accelerate import Accelerator

from envsuite.data.files import file_errors
from envsuite.data.locks import try_locked
from trainers.processes.distributed import on_main
from trainers.settings import ConfigError

NAME = "run.lock"
_LOG = logging.getLogger(__name__)
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


@contextlib.contextmanager
def hold_folder(folder: Path, program: str, setting: str, patience: float = 0.0) -> Iterator[None]:
    """Holds the folder of a run, which is made if need be; a process that ends, in whatever way, gives it back.

    Where the file system has no locks, a warning says that nothing keeps others out.

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
    path, until = folder / NAME, time.monotonic() + patience
    with contextlib.ExitStack() as stack:
        with file_errors(folder, "written"):
            try:
                while (file := try_locked(path)) is None:
                    if time.monotonic() >= until:
                        remedy = f"wait until that has ended, or choose another {setting}"
                        raise ConfigError(f"{folder} is in use by {_holder(path)}; {remedy}")
                    time.sleep(1.0)
                stack.enter_context(file)
                os.ftruncate(file.fileno(), 0)
                since = f"{datetime.datetime.now():%Y-%m-%d %H:%M:%S}"
                os.write(
                    file.fileno(), f"{program} (pid {os.getpid()} on {socket.gethostname()}, since {since})".encode()
                )
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                _LOG.warning("%s: its file system has no locks (%s); start no other run there", folder, error.strerror)
            stack.callback(path.unlink, missing_ok=True)  # before it is closed: only its holder may remove it
        yield


@contextlib.contextmanager
def hold_folder_by_main(
    accelerator: Accelerator, folder: Path, program: str, setting: str, patience: float = 0.0
) -> Iterator[None]:
    """Lets the first process hold the folder (:func:`hold_folder`) for all of them; each process must call this."""
    with contextlib.ExitStack() as stack:
        on_main(accelerator, lambda: stack.enter_context(hold_folder(folder, program, setting, patience)))
        yield


def _holder(path: Path) -> str:
    """The process that a lock names; it may not have written its name yet, or be gone."""
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8") or "another process"
    return "another process"
