"""The database of a pool: an SQLite file that one process writes and any number read."""

from __future__ import annotations

import os
import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from envsuite.core.errors import DataError, UsageError
from envsuite.data.files import flush_to_disk
from envsuite.data.locks import try_locked
from envsuite.exits import is_full
from trainers.pool.deltas import COLUMNS

FILE, LOCK = "pool.sqlite", "pool.lock"
_APPLICATION, _VERSION = 0x656E7670, 2
_TABLES = f"""
BEGIN;
CREATE TABLE pool (id TEXT NOT NULL, endings INTEGER NOT NULL DEFAULT 0, dirty INTEGER NOT NULL DEFAULT 0);
CREATE TABLE sessions (number INTEGER PRIMARY KEY AUTOINCREMENT, session TEXT NOT NULL UNIQUE, about TEXT NOT NULL,
    source TEXT NOT NULL, env_id TEXT NOT NULL, task_id TEXT NOT NULL, group_name TEXT, group_id INTEGER,
    steps INTEGER NOT NULL DEFAULT 0, bare INTEGER NOT NULL DEFAULT 0,
    altered INTEGER NOT NULL, oldest INTEGER, newest INTEGER, earned REAL NOT NULL DEFAULT 0,
    ended INTEGER UNIQUE, ending TEXT, failed INTEGER, greedy INTEGER, success INTEGER, score REAL,
    reward REAL NOT NULL DEFAULT 0);
CREATE INDEX by_group ON sessions (source, group_name);
CREATE INDEX by_version ON sessions (newest, ended);
CREATE TABLE tags (number INTEGER NOT NULL, tag TEXT NOT NULL, PRIMARY KEY (number, tag)) WITHOUT ROWID;
CREATE TABLE steps (place INTEGER PRIMARY KEY, {", ".join(COLUMNS)}, UNIQUE (session, request));
INSERT INTO pool (id) VALUES ('{{}}');
PRAGMA application_id = {_APPLICATION};
PRAGMA user_version = {_VERSION};
COMMIT;
"""


@contextmanager
def naming_errors(folder: Path) -> Iterator[None]:
    """Turns errors of SQLite and of the system into one line that names the file.

    Raises:
        DataError: In their place.
        UsageError: A name is not Unicode text.
    """
    try:
        yield
    except UnicodeEncodeError as error:
        raise UsageError(f"{error.object!r} has half of a surrogate pair; names have to be Unicode text") from error
    except sqlite3.Error as error:
        raise DataError(f"{folder / FILE}: {error}; it is not a pool's, damaged, or cannot be written") from error
    except OSError as error:
        raise DataError(f"{folder}: cannot be read or written ({error})") from error


def no_room(error: BaseException | None) -> bool:
    """Whether a full disk may be behind an error."""
    if isinstance(error, sqlite3.OperationalError):
        return error.sqlite_errorcode & 255 in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
    return isinstance(error, OSError) and is_full(error)


def connect(folder: Path, writes: bool, tight: bool = False) -> sqlite3.Connection:
    """Opens the database of a pool, ``tight`` if it cannot be opened otherwise.

    With ``writes`` it is made if need be, and a transaction is on the disk when it has ended.

    Args:
        folder: Folder of the pool.
        writes: Whether this process is the one that writes.
        tight: Write no file beside the database, for a disk without room. A machine that fails meanwhile may damage it.

    Raises:
        DataError: There is none, it is damaged, of another version, or another file.
    """
    file = folder / FILE
    if not writes and not file.exists():
        raise DataError(f"{folder}: not a pool (it has no {FILE})")
    wal = file.with_name(f"{FILE}-wal")
    alone = tight and not (wal.exists() and wal.stat().st_size)  # nobody writes, nothing is to be read beside it
    uri = f"{file.resolve().as_uri()}?mode={'rwc' if writes else 'ro&immutable=1' if alone else 'ro'}"
    with naming_errors(folder):
        base = sqlite3.connect(uri, uri=True, timeout=60, isolation_level=None, check_same_thread=False)
        base.row_factory = sqlite3.Row
        try:
            if writes and tight:
                base.execute("PRAGMA locking_mode = EXCLUSIVE")
            if writes and not base.execute("SELECT 1 FROM sqlite_master").fetchone():
                base.executescript(_TABLES.format(uuid.uuid4().hex))
                flush_to_disk(folder.resolve().parent)
            header = [base.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")]
            if header != [_APPLICATION, _VERSION]:
                raise DataError(f"{file}: not a pool, or one of another version (application, version: {header})")
            base.execute("PRAGMA synchronous = FULL")
            if writes:
                base.execute(f"PRAGMA journal_mode = {'MEMORY' if tight else 'WAL'}")
                base.execute(f"PRAGMA secure_delete = {tight}")
                base.execute("SELECT id FROM pool").fetchone()  # which needs room for the files beside it
        except BaseException as error:
            base.close()
            if not tight and no_room(error):
                return connect(folder, writes, True)
            raise
    return base


@contextmanager
def write_lock(folder: Path, program: str) -> Iterator[None]:
    """Makes this process the one that writes; it ceases to be when the block or the process ends, in whatever way.

    Raises:
        UsageError: Another one writes; the message says which.
        DataError: The folder cannot be written.
    """
    with naming_errors(folder):
        file = try_locked(folder / LOCK)
        if file is None:
            who = (folder / LOCK).read_text(encoding="utf-8") or "another process"
            raise UsageError(f"{folder} is in use by {who}; one process writes a pool: wait until that has ended")
        os.ftruncate(file.fileno(), 0)
        os.write(file.fileno(), f"{program} (pid {os.getpid()})".encode())
    with file:
        yield
