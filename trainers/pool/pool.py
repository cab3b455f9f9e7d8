"""Reads a pool."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any, Self, TypeVar

from envsuite.core.errors import UsageError
from envsuite.playing.step import Episode
from trainers.pool.database import SEGMENTS, connect, naming_errors
from trainers.pool.deltas import Row, decode
from trainers.pool.query import TRAINABLE, Query, candidates, choose_sessions
from trainers.pool.records import PooledSession
from trainers.pool.segments import SegmentGone, read_group

T = TypeVar("T")
_ATTEMPTS = 5
"""Times that a read begins anew because the writer has replaced a segment meanwhile."""
_SESSION = """SELECT *, (SELECT json_group_array(tag) FROM tags WHERE tags.number = s.number) AS tags
FROM sessions s WHERE"""
_ALL = Query(order="oldest")


class Pool:
    """A pool, as any number of processes read it, also while one writes it.

    Args:
        folder: Its folder, on a disk of this machine.

    Raises:
        DataError: It has no pool, or a damaged one.
    """

    _writes = False

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self._lock = threading.RLock()
        self._base = connect(self.folder, self._writes)

    def close(self) -> None:
        """Closes the database."""
        self._base.close()

    def __enter__(self) -> Self:
        """Returns the pool, which is closed when the block ends."""
        return self

    def __exit__(self, *error: object) -> None:
        """Closes it."""
        self.close()

    @property
    def mark(self) -> int:
        """Number of sessions that have ended so far, those that were deleted since included."""
        return self._read(lambda: int(self._rows("SELECT endings FROM pool")[0]["endings"]))

    def sessions(self, query: Query = _ALL, seed: int = 0, ended: bool = False) -> list[PooledSession]:
        """Returns the sessions that a query finds, in its order; without one, all of them as they began.

        Args:
            query: The query.
            seed: Seed of the order.
            ended: Leaves out those that have not ended.
        """

        def read() -> list[PooledSession]:
            sql, values = candidates(query, self.mark, "ended IS NOT NULL" if ended else "1")
            return self._of([*choose_sessions(map(tuple, self._rows(sql, *values)), query, seed)])

        return self._read(read)

    def session(self, session: str) -> PooledSession:
        """Returns the session of a name.

        Raises:
            UsageError: There is none.
        """
        if not (rows := self._read(lambda: self._rows(f"{_SESSION} session = ?", session))):
            raise UsageError(f"{self.folder} has no session {session!r}; envsuite pool list {self.folder} lists them")
        return PooledSession.of(rows[0])

    def episode(self, session: str) -> Episode:
        """Returns the episode of a session, which need not have ended; its id is the session's number.

        Raises:
            UsageError: There is no such session.
            DataError: It is damaged.
        """
        return self._read(lambda: self._episodes([self.session(session)])[0])

    def episodes(self, query: Query = _ALL, seed: int = 0) -> list[Episode]:
        """Returns the episodes of the sessions that a query finds, in its order; without one, of all that have ended.

        Raises:
            DataError: One is damaged.
        """
        return self._read(lambda: self._episodes(self.sessions(query, seed, ended=True)))

    def take(
        self, query: Query, count: int, seed: int, state: Mapping[str, Any] | None = None, until: int | None = None
    ) -> tuple[list[Episode], dict[str, Any]]:
        """Takes episodes to train on: sessions that have ended without error, whose every step has tokens.

        Equal arguments take equal episodes, as long as nobody tags, rewards or deletes; with ``until`` also after the
        pool has grown.

        Args:
            query: The sessions that are wanted.
            count: Most episodes; fewer are taken where there are fewer.
            seed: Seed of the order.
            state: What was taken before, as this method returned it: JSON values, which belong into the checkpoint of
                the run. No session of it is taken again.
            until: Sessions that ended after this :attr:`mark` are left out; by default none are.

        Returns:
            The episodes, and the state from which to take the next ones.

        Raises:
            UsageError: The state is that of another pool.
            DataError: An episode is damaged.
        """

        def read() -> tuple[list[Episode], dict[str, Any]]:
            own, mark = self._rows("SELECT id, endings FROM pool")[0]
            if state is not None and state["pool"] != own:
                raise UsageError(f"the state is that of another pool than {self.folder}; begin without one")
            ranges = [] if state is None else state["taken"]
            taken_numbers = {number for first, last in ranges for number in range(first, last + 1)}
            sql, values = candidates(query, mark if until is None else until, TRAINABLE)
            rows = [tuple(row) for row in self._rows(sql, *values) if row["number"] not in taken_numbers]
            numbers = [*choose_sessions(rows, query, seed, count)]
            return self._episodes(self._of(numbers)), {"pool": own, "taken": _ranges(taken_numbers | set(numbers))}

        return self._read(read)

    def _of(self, numbers: Sequence[int]) -> list[PooledSession]:
        """The sessions of these numbers, in their order."""
        return [PooledSession.of(self._rows(f"{_SESSION} number = ?", number)[0]) for number in numbers]

    def _episodes(self, sessions: Sequence[PooledSession]) -> list[Episode]:
        steps = {number: decode(rows, f"{self.folder}, session {number}") for number, rows in self._read_rows(sessions)}
        return [s.episode([steps[s.number][request][0] for request in sorted(steps[s.number])]) for s in sessions]

    def _read_rows(self, sessions: Sequence[PooledSession]) -> Iterator[tuple[int, list[Row]]]:
        """Yields number and rows of each session, in the order in which they lie on the disk."""
        at, there = ("", 0), list[Row]()
        for session in sorted(sessions, key=lambda session: (session.file or "", session.place or 0)):
            if session.file and at != (session.file, session.place):
                at = (session.file, session.place or 0)
                there = read_group(self.folder / SEGMENTS / session.file, session.place or 0)
            own = self._rows("SELECT * FROM steps WHERE session = ? ORDER BY place", session.number)
            yield session.number, [row for row in there if row["session"] == session.number] or [*map(dict, own)]

    def _rows(self, query: str, *values: Any) -> list[Any]:
        return self._base.execute(query, values).fetchall()

    def _read(self, read: Callable[[], T]) -> T:
        """Returns what ``read`` reads, all of it from one state of the pool."""
        for _ in range(_ATTEMPTS):
            try:
                with self._transaction("DEFERRED"):
                    return read()
            except SegmentGone as error:
                last_error = error
        raise last_error

    @contextmanager
    def _transaction(self, kind: str) -> Iterator[None]:
        """Does what is within the block as a whole or not at all; a block within a block is part of it."""
        with self._lock, naming_errors(self.folder):
            if self._base.in_transaction:
                yield
                return
            self._base.execute(f"BEGIN {kind}")
            with self._base:
                yield


def _ranges(numbers: Iterable[int]) -> list[list[int]]:
    """Returns the first and the last of each run of successive numbers."""
    runs = groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0])
    ends = [[number for _, number in run] for _, run in runs]
    return [[run[0], run[-1]] for run in ends]
