"""Locks between processes."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path


@contextmanager
def hold_lock(path: Path) -> Iterator[int]:
    """Holds a lock on the file ``path``; waits until no other process holds it. POSIX only.

    The file is created if it is missing, and stays; only who holds its lock may remove it. A process that ends, in
    whatever way, releases its locks.

    Yields:
        The descriptor of the file. A child process that inherits it (``pass_fds``) holds the lock too: it is released
        when the last of them has ended.
    """
    with _open_locked(path, fcntl.LOCK_EX) as file:
        yield file.fileno()


def open_shared(path: Path) -> TextIOWrapper:
    """Returns a file that holds the lock on ``path``, as others may hold it too, until it is closed."""
    return _open_locked(path, fcntl.LOCK_SH)


def try_locked(path: Path) -> TextIOWrapper | None:
    """Returns a file that holds the lock on ``path`` until it is closed; ``None`` where another process holds it."""
    try:
        return _open_locked(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None


def _open_locked(path: Path, operation: int) -> TextIOWrapper:
    """Returns a file that holds the lock; of one that its last holder removed, the lock would exclude nobody."""
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        file = path.open("a")
        try:
            fcntl.flock(file, operation)
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        except FileNotFoundError:
            pass
        except BaseException:
            file.close()
            raise
        file.close()
