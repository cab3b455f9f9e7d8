"""Keeps a folder of files that can be made again within a limit."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from envsuite.data.locks import try_locked

LOG = logging.getLogger(__name__)


def make_room(folder: Path, limit: int, kept: Path) -> None:
    """Removes files of ``folder`` until those that stay have ``limit`` bytes or fewer, the longest unused first.

    A file ``NAME`` was used when it was last modified. What a build left in the folder ``.NAME.building`` is part of
    it, and is removed with it; so is a lock without a file. A file stays if its lock, ``.NAME.lock``, is held by
    another process, which builds it, or if it cannot be removed, e.g. because it is another user's. A process that has
    opened a file goes on reading it after it was removed.

    Args:
        folder: The folder; nothing is done where it is missing or cannot be read.
        limit: Bytes.
        kept: A file that stays, whatever its size.
    """
    try:
        paths = [*folder.iterdir()]
    except OSError:
        return
    names = {path.name.removeprefix(".").removesuffix(".building").removesuffix(".lock") for path in paths}
    found = sorted((*_use(folder, name), name) for name in names)
    total = sum(size for _, size, _ in found)
    for used, size, name in found:
        if total <= limit and used:
            return
        if name != kept.name and _removed(folder, name):
            LOG.info("removed %s, to keep %s within %d bytes", folder / name, folder, limit)
            total -= size


def _removed(folder: Path, name: str) -> bool:
    """Removes a file, what a build of it left, and its lock; returns whether that was possible."""
    lock = folder / f".{name}.lock"
    try:
        held = try_locked(lock)
        if held is None:
            return False
        with held:
            (folder / name).unlink(missing_ok=True)
            shutil.rmtree(folder / f".{name}.building", ignore_errors=True)
            lock.unlink()
    except OSError as error:
        LOG.info("%s stays: %s", folder / name, error)
        return False
    return True


def _use(folder: Path, name: str) -> tuple[int, int]:
    """Returns when a file was last used, in nanoseconds, and the bytes that it takes; 0 and 0 if there is none."""
    used = size = 0
    for path in (folder / name, *(folder / f".{name}.building").glob("*")):
        try:
            found = path.stat()
        except FileNotFoundError:  # another process has removed it, or never completed it
            continue
        used, size = max(used, found.st_mtime_ns), size + found.st_size
    return used, size
