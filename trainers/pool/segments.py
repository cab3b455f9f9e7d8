"""Segments: Parquet files with the rows of sessions that have ended."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from envsuite.core.errors import DataError
from envsuite.data.files import atomic_file
from trainers.pool.deltas import COLUMNS, Row

FORMAT, VERSION = b"envsuite.pool", b"1"
_KINDS = {int: pa.int64(), bytes: pa.binary(), str: pa.string()}
SCHEMA = pa.schema([(name, _KINDS[kind]) for name, kind in COLUMNS.items()], metadata={FORMAT: VERSION})


class SegmentGone(DataError):
    """A segment that is not there: the writer has replaced it, or somebody removed it."""


def write_segment(path: Path, groups: Iterable[list[Row]]) -> None:
    """Writes a file with a row group for each of ``groups``; it is whole and on the disk, or not there.

    Raises:
        OSError: It cannot be written.
    """
    options = {"compression": "zstd", "use_dictionary": ["session"], "write_page_checksum": True}
    with atomic_file(path) as file:
        with pq.ParquetWriter(file, SCHEMA, **options) as writer:
            for rows in groups:
                writer.write_table(pa.Table.from_pylist(rows, SCHEMA), row_group_size=max(1, len(rows)))
        file.flush()
        os.fsync(file.fileno())
    flush(path.parent)


def flush(folder: Path) -> None:
    """Returns when the names in a folder are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_group(path: Path, place: int) -> list[Row]:
    """Returns the rows of one row group, in the order in which they were written.

    Raises:
        SegmentGone: There is no such file.
        DataError: It is damaged, or another file.
    """
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            if (file.schema_arrow.metadata or {}).get(FORMAT) != VERSION:
                raise ValueError("its metadata are not those of a segment that this version reads")
            rows: list[Row] = file.read_row_group(place).to_pylist()
            return rows
    except FileNotFoundError as error:
        raise SegmentGone(f"{path}: no such file; what was in it is lost, unless a backup has it") from error
    except (OSError, ValueError, pa.ArrowException) as error:
        raise DataError(f"{path}: truncated, damaged or not a segment ({error})") from error
