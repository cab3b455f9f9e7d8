"""The official data sets: where they are published, and their checksums.

Each environment names its own (``downloads`` of its :class:`~envsuite.core.registration.EnvSpec`). The authors of these
benchmarks publish no checksums. Sizes and SHA-256 are those that several independent projects report for the files they
downloaded; ``docs/data.md`` names them. For a file without such a report, :attr:`RemoteFile.sha256` is ``None``: the
first fetch records its checksum, and every later check compares with that.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

from envsuite.core.errors import unknown
from envsuite.core.registration import ENVIRONMENTS

MIB = 1 << 20
GIB = 1 << 30


@dataclass(frozen=True)
class Unpack:
    """The members that are extracted from an archive."""

    wanted: tuple[str, ...]
    """Patterns of member names; ``*`` matches within one component of a path. Other members are skipped."""
    strip: int
    """Number of leading components dropped from a member's path."""
    at_most: int
    """Size limit in bytes; an archive whose wanted members are larger in total is refused."""


@dataclass(frozen=True)
class RemoteFile:
    """A file that a benchmark's authors publish."""

    name: str
    """File name, in the data folder and on mirrors."""
    urls: tuple[str, ...]
    """Addresses of the same content, best first."""
    size: int | None
    """Size in bytes; ``None`` where unknown."""
    sha256: str | None
    """Checksum in hexadecimal; ``None`` where nobody has reported it."""
    at_most: int
    """Size limit in bytes; a longer answer is refused."""
    unpack: Unpack | None = None
    """How it is unpacked; ``None`` for a file that is used as it is."""


@dataclass(frozen=True)
class DataSet:
    """The official data of an environment."""

    name: str
    """Name in ``envsuite data fetch NAME``."""
    folder: str
    """Folder below :func:`envsuite.data.places.data_root`; data sets may share one."""
    version: str
    """Version of the content, as its authors call it."""
    purpose: str
    """Purpose, in one line."""
    license: str
    """The authors' licence terms."""
    files: tuple[RemoteFile, ...]
    tree: str | None = None
    """The folder that the archives are unpacked into, below :attr:`folder`; ``None`` where there is no archive."""


def data_sets() -> tuple[DataSet, ...]:
    """Returns every data set that ``envsuite data`` knows: those of the registered environments."""
    places = (spec.downloads.partition(":") for spec in ENVIRONMENTS.values() if spec.downloads)
    return tuple(entry for module, _, name in places for entry in getattr(import_module(module), name))


def data_set(name: str) -> DataSet:
    """Returns the data set called ``name``.

    Raises:
        UnknownName: There is no such data set; the message lists those that exist.
    """
    entries = {entry.name: entry for entry in data_sets()}
    if name not in entries:
        raise unknown("data set", name, entries)
    return entries[name]
