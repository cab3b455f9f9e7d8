"""Fetches and verifies the official data sets, and reports their state."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from envsuite.core.addresses import address, redact_address
from envsuite.core.errors import DataError, UsageError
from envsuite.data import catalog
from envsuite.data.catalog import DataSet, RemoteFile, Unpack
from envsuite.data.connection import Patience
from envsuite.data.download import download
from envsuite.data.files import file_errors
from envsuite.data.locks import hold_lock, try_locked
from envsuite.data.part import PartFile, sha256_of, shape_trouble
from envsuite.data.places import WRITABLE, data_root
from envsuite.data.progress import ProgressReceiver, SilentProgress
from envsuite.data.record import Damage, Record, SourceRecord, damages, expected_files, read_record, write_record
from envsuite.data.unpack import Entry, unpack


@dataclass(frozen=True)
class DataState:
    """The local state of a data set."""

    folder: Path
    state: Literal["absent", "partial", "complete"]
    size: int
    """Size in bytes of its files on disk, unfinished ones included."""
    version: str
    """Version on disk; without one, the version that would be fetched."""


@dataclass(frozen=True)
class Verification:
    """The result of verifying a data set."""

    folder: Path
    files: int
    """Number of expected files."""
    size: int
    """Their expected size in bytes."""
    damages: tuple[Damage, ...]
    record: Record | None
    """The record compared with; ``None`` for the catalogue's checksums."""


def fetch(
    data: DataSet,
    root: Path | None = None,
    *,
    mirrors: Sequence[str] = (),
    keep_archives: bool = False,
    patience: Patience | None = None,
    progress: ProgressReceiver | None = None,
) -> Path:
    """Fetches ``data``; keeps the files that are correct, and replaces damaged ones.

    One process at a time works on a folder; others wait for it. An interrupted call is resumed.

    Args:
        data: The data set.
        root: The parent folder; by default :func:`envsuite.data.places.data_root`.
        mirrors: Addresses (``http``, ``https`` or ``file``) of folders that hold the files under their names; tried in
            this order *instead of* the public addresses.
        keep_archives: Keep the archives after unpacking.
        patience: Limits of waits and retries.
        progress: Receives the progress.

    Returns:
        The folder of the data set.

    Raises:
        DataError: The data cannot be fetched, are not the right ones, or cannot be written.
        UsageError: A mirror is not a valid address.
    """
    patience, progress = patience or Patience(), progress or SilentProgress()
    for mirror in mirrors:
        if not mirror.startswith(("http://", "https://", "file:///")):
            raise UsageError(f"--mirror {redact_address(mirror)}: not an address (http://, https:// or file:///)")
        if not mirror.startswith("file:"):
            address(mirror, "--mirror", "https://example.org/folder", "name an address without")
    folder = (root if root is not None else data_root()) / data.folder
    with file_errors(folder, "written", WRITABLE):
        folder.mkdir(parents=True, exist_ok=True)
        if (lock := try_locked(folder / ".lock")) is None:
            progress.note(f"{folder}: another process is fetching into it; waiting until it has finished")
        with lock or hold_lock(folder / ".lock"):
            if state(data, root).state == "complete":
                progress.note(f"{data.name}: there already; checking it")
                if not verify(data, root).damages:
                    progress.note(f"{data.name}: all right, in {folder}")
                    return folder
            _fetch(data, folder, mirrors, keep_archives, patience, progress)
    return folder


def _fetch(
    data: DataSet, folder: Path, mirrors: Sequence[str], keep: bool, patience: Patience, progress: ProgressReceiver
) -> None:
    record = read_record(folder, data.name)
    if data.tree is not None and record is None and (folder / data.tree).exists():
        raise DataError(
            f"{folder / data.tree}: exists already, and was not fetched by this command. Move it away, or choose "
            f"another place with --to DIR"
        )
    sources, entries = {}, {}
    for file in data.files:
        sources[file.name] = source = _source(file, folder, mirrors, record, patience, progress)
        if file.unpack is None:
            entries[file.name] = Entry(source.size, source.sha256)
    if data.tree is None:
        write_record(folder, data.name, Record(data.version, sources, entries))
        return
    _unpack(data, data.tree, folder, Record(data.version, sources, entries), progress)
    if not keep:
        for file in data.files:
            if file.unpack is not None:
                (folder / file.name).unlink(missing_ok=True)


def _source(
    file: RemoteFile,
    folder: Path,
    mirrors: Sequence[str],
    record: Record | None,
    patience: Patience,
    progress: ProgressReceiver,
) -> SourceRecord:
    """Returns the file; fetches it unless it exists, from an earlier call or put there by hand."""
    path, now = folder / file.name, datetime.now(UTC).isoformat(timespec="seconds")
    before = record.sources.get(file.name) if record is not None else None
    has_checksum = file.sha256 is not None
    right = file.sha256 or (before.sha256 if before is not None else None)
    if path.is_file():
        sha256 = sha256_of(path)
        if sha256 == right or (right is None and shape_trouble(path, file.name) is None):
            PartFile(folder / f".{file.name}.part").drop()  # what an interruption left between the two steps of its end
            return before or SourceRecord(path.resolve().as_uri(), path.stat().st_size, sha256, has_checksum, now)
    urls = [f"{mirror.rstrip('/')}/{quote(file.name)}" for mirror in mirrors] or file.urls
    outcome = download(file, urls, folder, patience, progress)
    if not has_checksum:
        progress.note(f"{file.name}: no checksum is known for it; that of what came is recorded ({outcome.sha256})")
    if right not in (None, outcome.sha256):
        progress.note(
            f"{file.name}: not the same as when it was fetched first (SHA-256 {outcome.sha256}, then {right}); its "
            f"content counts as right from now on"
        )
    return SourceRecord(outcome.url, outcome.size, outcome.sha256, has_checksum, now)


def _unpack(data: DataSet, tree: str, folder: Path, record: Record, progress: ProgressReceiver) -> None:
    """Unpacks the archives beside ``tree``, then moves the result into its place."""
    staging, old = folder / f".{tree}.unpacking", folder / f".{tree}.old"
    entries = dict(record.files)
    try:
        for leftover in (staging, old):
            shutil.rmtree(leftover, ignore_errors=True)
        for file in data.files:
            if file.unpack is not None:
                members = _unpack_archive(file, file.unpack, folder, staging, progress)
                entries |= {f"{tree}/{path}": entry for path, entry in members.items()}
        # The record comes first: after a kill, the next call finds missing files rather than files of unknown origin.
        write_record(folder, data.name, Record(record.version, record.sources, entries))
        if (folder / tree).exists():
            os.replace(folder / tree, old)
        os.replace(staging, folder / tree)
    finally:
        for leftover in (staging, old):
            shutil.rmtree(leftover, ignore_errors=True)


def _unpack_archive(
    file: RemoteFile, spec: Unpack, folder: Path, staging: Path, progress: ProgressReceiver
) -> dict[str, Entry]:
    archive = folder / file.name
    try:
        return unpack(archive, spec, staging, progress)
    except DataError as error:
        if file.sha256 is not None:  # its checksum was right, so the archive is not at fault
            raise
        aside = archive.with_name(f"{archive.name}.bad")
        os.replace(archive, aside)
        raise DataError(f"{error}. It is {aside} now, and will be fetched again") from error


def verify(data: DataSet, root: Path | None = None) -> Verification:
    """Reads every file of ``data`` and compares it with the catalogue, or with the record of its fetch.

    Raises:
        DataError: The record beside the data cannot be read.
    """
    folder = (root if root is not None else data_root()) / data.folder
    record = read_record(folder, data.name)
    entries = expected_files(data, record)
    flaws = tuple(damages(folder, entries, contents=True))
    if not _lists_all_files(data, record, entries):
        flaws += (Damage(folder / (data.tree or ""), "not fetched"),)
    return Verification(folder, len(entries), sum(entry.size for entry in entries.values()), flaws, record)


def state(data: DataSet, root: Path | None = None) -> DataState:
    """Returns the local state of ``data``, judged by the sizes of its files.

    Raises:
        DataError: The record beside the data cannot be read.
    """
    folder = (root if root is not None else data_root()) / data.folder
    record = read_record(folder, data.name)
    entries = expected_files(data, record)
    wrong = list(damages(folder, entries, contents=False))
    names = {*entries, *(name for file in data.files for name in (file.name, f".{file.name}.part"))}
    sizes = {name: path.stat().st_size for name in names if (path := folder / name).is_file()}
    version = record.version if record is not None else data.version
    if not wrong and version == data.version and _lists_all_files(data, record, entries):
        return DataState(folder, "complete", sum(sizes.values()), version)
    sibling_files = {
        file.name
        for sibling in catalog.data_sets()
        if sibling.folder == data.folder and sibling.name != data.name
        for file in sibling.files
    }
    has_begun = record is not None or sizes.keys() - sibling_files
    return DataState(folder, "partial" if has_begun else "absent", sum(sizes.values()) if has_begun else 0, version)


def _lists_all_files(data: DataSet, record: Record | None, entries: Mapping[str, Entry]) -> bool:
    """Whether ``entries`` lists all files: the contents of archives are known from a record only."""
    return record is not None or len(entries) == len(data.files)
