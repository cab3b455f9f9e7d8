"""Weights on their way from one process to another, in a file in memory that has no name on any disk."""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import safetensors
from safetensors.torch import save
from torch import Tensor

from envsuite.core.errors import DataError

_VERSION = "version"


class StaleWeights(DataError):
    """Weights that are not those that were sent; the message says in what they differ."""


@dataclass(frozen=True)
class WeightsNote:
    """Says where weights are, and what identifies them."""

    path: str
    version: int
    size: int
    """Bytes of the file."""
    checksum: int
    """CRC-32 of the file."""


class SharedWeights:
    """A safetensors file with weights, which other processes of this user read until it is closed.

    On Linux it lies in memory alone (``memfd_create``), and is gone with the processes that have it open, however they
    end; elsewhere it is a temporary file.

    Args:
        weights: Name and tensor of each parameter.
        version: Their version.

    Raises:
        OSError: There is no room for it.
    """

    def __init__(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        self._temporary: str | None = None
        if sys.platform == "linux":
            self._file = os.memfd_create(f"weights-{version}")
            path = f"/proc/{os.getpid()}/fd/{self._file}"
        else:
            self._file, path = tempfile.mkstemp(prefix="weights-", suffix=".safetensors")
            self._temporary = path
        try:
            tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights}
            with open(self._file, "wb", closefd=False) as file:
                file.write(save(tensors, {_VERSION: str(version)}))
            self.note = WeightsNote(path, version, *_fingerprint(path))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Gives back the memory."""
        os.close(self._file)
        if self._temporary is not None:
            Path(self._temporary).unlink(missing_ok=True)


def read_weights(note: WeightsNote) -> dict[str, Tensor]:
    """The weights that ``note`` is about.

    Raises:
        StaleWeights: The file is gone, has another content, or other weights than were announced.
    """
    what = f"the weights of version {note.version}"
    try:
        size, checksum = _fingerprint(note.path)
        if (size, checksum) != (note.size, note.checksum):
            raise StaleWeights(f"{what} are torn: {size} bytes with checksum {checksum:08x}, not as they were written")
        with safetensors.safe_open(note.path, "pt") as file:
            found = (file.metadata() or {}).get(_VERSION)
            if found != str(note.version):
                raise StaleWeights(f"{what} are stale: the file has those of version {found}")
            return {name: file.get_tensor(name) for name in file.keys()}
    except (OSError, safetensors.SafetensorError) as error:
        raise StaleWeights(f"{what} cannot be read ({error})") from error


def _fingerprint(path: str) -> tuple[int, int]:
    """Size and CRC-32 of a file."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if not size:
            return 0, 0
        with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as content:
            return size, zlib.crc32(content)
