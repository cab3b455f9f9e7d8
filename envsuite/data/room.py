"""Keeps files and folders that can be made again within a limit."""

from __future__ import annotations

import logging
import os
import re
import shutil
import weakref
from pathlib import Path

from envsuite.data.locks import open_shared, try_locked
from envsuite.data.places import cache_root

LOG = logging.getLogger(__name__)
GENERATED = 1 << 30
"""Bytes that all generated data may take in the cache."""
FOLDERS = ("corpora/generated", "webshop/generated", "alfworld/builtin", "alfworld/index")
"""Folders of the cache that have generated data alone."""
_OWN = re.compile(r"\.(.+)\.(building|partial|lock|use)")
"""Files beside an entry NAME: remains of its build, the lock of who builds it, and that of those who use it."""


def hold(path: Path, user: object) -> None:
    """Marks generated data as used now, and keeps them from being removed as long as ``user`` exists."""
    try:
        os.utime(path)
        weakref.finalize(user, open_shared(path.parent / f".{path.name}.use").close)
    except OSError as error:  # from a cache that cannot be written, nothing is removed
        LOG.info("%s is not marked as used: %s", path, error)


def bound_generated(resident: Path, limit: int = GENERATED) -> None:
    """As :func:`make_room`, over all generated data of the cache together."""
    make_room([cache_root() / folder for folder in FOLDERS], limit, resident)


def make_room(folders: Path | list[Path], limit: int, resident: Path) -> None:
    """Removes files and folders until those that stay have ``limit`` bytes or fewer, the longest unused first.

    An entry ``NAME`` was used when it was last modified. What a build left in the folder ``.NAME.building`` or
    ``.NAME.partial`` is part of it, and is removed with it; so is a lock without an entry. An entry stays while it is
    built (:func:`~envsuite.data.locks.hold_lock`) or used (:func:`hold`), if it is a folder that was never held, or if
    it cannot be removed, e.g. because it is another user's. A process that has opened a file goes on reading it after
    it was removed.

    Args:
        folders: The folder, or several that share the limit; those that are missing or cannot be read are left out.
        limit: Bytes.
        resident: An entry that stays, whatever its size.
    """
    entries = []
    for folder in [folders] if isinstance(folders, Path) else folders:
        try:
            names = {_OWN.sub(r"\1", path.name) for path in folder.iterdir()}
        except OSError:
            continue
        entries += [(*_use(folder, name), folder / name) for name in names]
    total = sum(size for _, size, _ in entries)
    for used, size, path in sorted(entries):
        if total <= limit and used:
            return
        if path.name != resident.name and _remove_entry(path.parent, path.name):
            LOG.info("removed %s, to keep generated data within %d bytes", path, limit)
            total -= size


def _remove_entry(folder: Path, name: str) -> bool:
    """Removes an entry, what a build of it left, and its locks; returns whether that was possible."""
    lock, use = folder / f".{name}.lock", folder / f".{name}.use"
    try:
        if (building := try_locked(lock)) is None:
            return False
        with building:
            if use.exists():
                if (using := try_locked(use)) is None:
                    return False
                with using:
                    shutil.rmtree(folder / name, ignore_errors=True)
                    use.unlink()
            (folder / name).unlink(missing_ok=True)
            for remains in (folder / f".{name}.building", folder / f".{name}.partial"):
                shutil.rmtree(remains, ignore_errors=True)
            lock.unlink()
    except OSError as error:
        LOG.info("%s stays: %s", folder / name, error)
        return False
    return True


def _use(folder: Path, name: str) -> tuple[int, int]:
    """Returns when an entry was last used, in nanoseconds, and the bytes that it takes; 0 and 0 if there is none."""
    used = size = 0
    for root in (folder / name, folder / f".{name}.building", folder / f".{name}.partial"):
        for path in (root, *root.rglob("*")):
            try:
                status = path.stat()
            except OSError:  # another process has removed it, or never completed it
                continue
            used = max(used, status.st_mtime_ns) if path is root or root.name != name else used
            size += 0 if path.is_dir() else status.st_size
    return used, size
