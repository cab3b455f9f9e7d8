"""Writes files atomically."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from envsuite.core.errors import DataError


@contextmanager
def file_errors(path: Path, fate: str = "read", remedy: str = "") -> Iterator[None]:
    """Makes an error of the system in the block a :class:`DataError` that names ``path``.

    Args:
        path: The file or folder that the block uses.
        fate: What the block does with it: ``"read"`` or ``"written"``.
        remedy: What to do, as the end of the message.
    """
    try:
        yield
    except OSError as error:
        end = f". {remedy}" if remedy else ""
        raise DataError(f"{path}: cannot be {fate} ({error.strerror or error}){end}") from error


def write_file(path: Path, content: bytes) -> None:
    """Writes a file as :func:`write_atomically` does.

    Raises:
        DataError: It cannot be written.
    """
    with file_errors(path, "written"):
        write_atomically(path, content)


def write_atomically(path: Path, content: bytes) -> None:
    """Writes ``content`` to ``path``; an interrupted write leaves the old file.

    Creates the folder if it is missing. Several processes may write the same file: the last one to finish wins.
    """
    with atomic_file(path) as file:
        file.write(content)


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Opens a new file that replaces ``path`` when the block ends; an error in the block leaves the old file.

    An error of the system names ``path``, where it names no file, as on a full disk.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with partial.open("xb") as file:  # who may read it is what the umask says
            yield file
        partial.replace(path)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)
        raise


def flush_to_disk(path: Path) -> None:
    """Returns when the content of a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
