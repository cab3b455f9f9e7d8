"""The record of a fetch, stored beside the data: ``fetched.json``.

For files without a published checksum this is trust on first use: the first content fetched counts as right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from envsuite.core.errors import DataError
from envsuite.data.catalog import DataSet
from envsuite.data.files import write_atomically
from envsuite.data.part import sha256_of
from envsuite.data.unpack import Entry

NAME = "fetched.json"
FORMAT = 1


@dataclass(frozen=True)
class SourceRecord:
    """A fetched file."""

    url: str
    size: int
    sha256: str
    known: bool
    """Whether the checksum was known beforehand; if not, it was computed from the fetched content."""
    date: str
    """Date of the fetch in UTC (ISO 8601)."""


@dataclass(frozen=True)
class Record:
    """The fetched files of one data set."""

    version: str
    """:attr:`DataSet.version` at that time."""
    sources: Mapping[str, SourceRecord]
    """Name -> the file that was fetched."""
    files: Mapping[str, Entry]
    """Path below the folder (with ``/``) -> the file that is used: unpacked, or as it was fetched."""


@dataclass(frozen=True)
class Damage:
    """A file that is missing or has the wrong content."""

    path: Path
    what: str
    """``"missing"``, ``"truncated …"`` …"""


def read_record(folder: Path, name: str) -> Record | None:
    """Returns the record of the data set ``name`` in ``folder``; ``None`` without one.

    Raises:
        DataError: The record cannot be read.
    """
    body = _read(folder)["sets"].get(name)
    if body is None:
        return None
    try:
        return Record(
            version=body["version"],
            sources={name: SourceRecord(**source) for name, source in body["sources"].items()},
            files={path: Entry(**entry) for path, entry in body["files"].items()},
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise _unreadable(folder, error) from error


def write_record(folder: Path, name: str, record: Record) -> None:
    """Writes ``record``; keeps those of other data sets in ``folder``."""
    body = _read(folder)
    body["sets"][name] = asdict(record)
    write_atomically(folder / NAME, orjson.dumps(body, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS))


def _read(folder: Path) -> dict[str, Any]:
    try:
        body = orjson.loads((folder / NAME).read_bytes())
    except FileNotFoundError:
        return {"format": FORMAT, "sets": {}}
    except (OSError, orjson.JSONDecodeError) as error:
        raise _unreadable(folder, error) from error
    if not isinstance(body, dict) or body.get("format") != FORMAT or not isinstance(body.get("sets"), dict):
        raise _unreadable(folder, "another version of envsuite wrote it, or something else")
    return body


def _unreadable(folder: Path, why: object) -> DataError:
    return DataError(f"{folder / NAME}: not a record of what was fetched ({why}). Remove it, and fetch again")


def expected_files(data: DataSet, record: Record | None) -> dict[str, Entry]:
    """Returns the expected files: those recorded, or those whose checksum the catalogue has."""
    entries = {
        file.name: Entry(file.size, file.sha256)
        for file in data.files
        if file.unpack is None and file.size is not None and file.sha256 is not None
    }
    if record is None:
        return entries
    return {**record.files, **entries} if record.version == data.version else dict(record.files)


def damages(folder: Path, entries: Mapping[str, Entry], *, contents: bool) -> Iterator[Damage]:
    """Yields the files that differ from the expected ones.

    Args:
        folder: Folder of the data set.
        entries: The expected files, by their path below ``folder``.
        contents: Whether to compare contents; otherwise only sizes are compared.
    """
    for name, entry in entries.items():
        path = folder / name
        try:
            size = path.stat().st_size
            if size < entry.size:
                yield Damage(path, f"truncated: {size:,} of {entry.size:,} bytes")
            elif size > entry.size or (contents and sha256_of(path) != entry.sha256):
                yield Damage(path, "changed: its content is not what it was")
        except FileNotFoundError:
            yield Damage(path, "missing")
        except OSError as error:
            yield Damage(path, f"not readable ({error.strerror or error})")
