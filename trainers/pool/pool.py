"""Reads a pool."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any, Self

from envsuite.core.errors import UsageError
from envsuite.playing.step import Episode, Step
from trainers.pool.database import connect, naming_errors
from trainers.pool.deltas import StepPrefix, decode
from trainers.pool.query import TRAINABLE, Query, candidates, choose_sessions
from trainers.pool.records import PooledSession

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
        with self._transaction():
            return int(self._rows("SELECT endings FROM pool")[0]["endings"])

    def sessions(self, query: Query = _ALL, seed: int = 0, ended: bool = False) -> list[PooledSession]:
        """Returns the sessions that a query finds, in its order; without one, all of them as they began.

        Args:
            query: The query.
            seed: Seed of the order.
            ended: Leaves out those that have not ended.
        """
        with self._transaction():
            sql, values = candidates(query, self.mark, "ended IS NOT NULL" if ended else "1")
            return self._of([*choose_sessions(map(tuple, self._rows(sql, *values)), query, seed)])

    def session(self, session: str) -> PooledSession:
        """Returns the session of a name.

        Raises:
            UsageError: There is none.
        """
        with self._transaction():
            rows = self._rows(f"{_SESSION} session = ?", session)
        if not rows:
            raise UsageError(f"{self.folder} has no session {session!r}; envsuite pool list {self.folder} lists them")
        return PooledSession.of(rows[0])

    def episode(self, session: str) -> Episode:
        """Returns the episode of a session, which need not have ended; its id is the session's number.

        Raises:
            UsageError: There is no such session.
            DataError: It is damaged.
        """
        with self._transaction():
            return self._episodes([self.session(session)])[0]

    def episodes(self, query: Query = _ALL, seed: int = 0) -> list[Episode]:
        """Returns the episodes of the sessions that a query finds, in its order; without one, of all that have ended.

        Raises:
            DataError: One is damaged.
        """
        with self._transaction():
            return self._episodes(self.sessions(query, seed, ended=True))

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
        with self._transaction():
            own, mark = self._rows("SELECT id, endings FROM pool")[0]
            if state is not None and state["pool"] != own:
                raise UsageError(f"the state is that of another pool than {self.folder}; begin without one")
            ranges = [] if state is None else state["taken"]
            taken_numbers = {number for first, last in ranges for number in range(first, last + 1)}
            sql, values = candidates(query, mark if until is None else until, TRAINABLE)
            rows = [tuple(row) for row in self._rows(sql, *values) if row["number"] not in taken_numbers]
            numbers = [*choose_sessions(rows, query, seed, count)]
            return self._episodes(self._of(numbers)), {"pool": own, "taken": _ranges(taken_numbers | set(numbers))}

    def _of(self, numbers: Sequence[int]) -> list[PooledSession]:
        """The sessions of these numbers, in their order."""
        return [PooledSession.of(self._rows(f"{_SESSION} number = ?", number)[0]) for number in numbers]

    def _episodes(self, sessions: Sequence[PooledSession]) -> list[Episode]:
        steps = [self._decode(session.number) for session in sessions]
        return [s.episode([own[request][0] for request in sorted(own)]) for s, own in zip(sessions, steps, strict=True)]

    def _decode(self, number: int) -> dict[int, tuple[Step, StepPrefix]]:
        """The steps of a session by request, in the order in which they were stored."""
        rows = self._rows("SELECT * FROM steps WHERE session = ? ORDER BY place", number)
        return decode(rows, f"{self.folder}, session {number}")

    def _rows(self, query: str, *values: Any) -> list[Any]:
        return self._base.execute(query, values).fetchall()

    @contextmanager
    def _transaction(self, kind: str = "DEFERRED") -> Iterator[None]:
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
