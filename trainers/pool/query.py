"""Queries: which sessions of a pool are wanted, and in which order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal

from trainers.settings import AtLeastOne, Fraction, Text


@dataclass(frozen=True)
class SessionConditions:
    """Conditions that a session must meet, all of them, and the order in which sessions are taken."""

    source: Text | None = None
    """Who played."""
    tags: list[Text] = field(default_factory=list)
    """It has all of these."""
    newest_versions: AtLeastOne | None = None
    """All of its tokens were sampled by one of so many newest versions of the weights, among those that sampled the
    newest token of a session that has ended."""
    min_score: Fraction | None = None
    """Least score."""
    success: bool | None = None
    """Whether it solved its task."""
    order: Literal["random", "oldest", "newest"] = "random"
    """Order of sessions, or of groups: by the seed, by their beginning, or the last one first."""


@dataclass(frozen=True)
class Query(SessionConditions):
    """What is wanted, and how many."""

    group_size: AtLeastOne | None = None
    """Whole groups alone: of each group with at least so many sessions that are wanted, the first ones."""
    limit: AtLeastOne | None = None
    """Most sessions."""
    per_task: AtLeastOne | None = None
    """Most sessions of one task; a group that goes beyond is left out."""


_CONDITIONS = {
    "source": "source = ?",
    "newest_versions": "oldest >= (SELECT MIN(version) FROM (SELECT DISTINCT newest AS version FROM sessions WHERE "
    "ended <= :until AND newest IS NOT NULL ORDER BY version DESC LIMIT ?))",
    "min_score": "COALESCE(score, 0) >= ?",
    "success": "COALESCE(success, 0) = ?",
}
_TAGGED = "EXISTS (SELECT 1 FROM tags WHERE tags.number = sessions.number AND tag = ?)"
TRAINABLE = "ended <= :until AND NOT failed AND NOT greedy AND steps > 0 AND bare = 0 AND oldest >= 0"
"""The condition of sessions that can be trained on: weights of the run have sampled every token, no teacher."""


def candidates(query: Query, until: int, also: str) -> tuple[str, list[Any]]:
    """Returns SQL that selects a :data:`Candidate` for each session that meets the conditions, and its values.

    Args:
        query: The query.
        until: Mark of the pool: sessions that ended later have no newest version.
        also: A further condition.
    """
    conditions = [(text, vars(query)[name]) for name, text in _CONDITIONS.items() if vars(query)[name] is not None]
    conditions += [(_TAGGED, tag) for tag in query.tags]
    text = " AND ".join([also, *(text for text, _ in conditions)]).replace(":until", str(until))
    return f"SELECT number, group_id, env_id, task_id FROM sessions WHERE {text}", [value for _, value in conditions]


Candidate = tuple[int, int, str, str]
"""Number, group, environment and task of a session."""


def choose_sessions(rows: Iterable[Candidate], query: Query, seed: int, count: int | None = None) -> Iterator[int]:
    """Yields the numbers of the sessions that a query takes, in its order.

    Two takes of one seed, the second without what the first took, are one take of both, but for ``per_task``.

    Args:
        rows: Sessions that meet its conditions.
        query: The query.
        seed: Seed of the order ``random``.
        count: Most sessions, besides the query's own limit.
    """
    room = min(most for most in (count, query.limit, 2**63) if most is not None)
    tasks: Counter[tuple[str, str]] = Counter()
    for unit in sorted(_units(rows, query.group_size), key=lambda unit: _rank(unit[0][0], query, seed)):
        if len(unit) > room:
            return
        task = unit[0][2:]
        if query.per_task is None or tasks[task] + len(unit) <= query.per_task:
            tasks[task] += len(unit)
            room -= len(unit)
            yield from (candidate[0] for candidate in unit)


def _units(rows: Iterable[Candidate], size: int | None) -> Iterable[Sequence[Candidate]]:
    """Returns the parts that are taken as wholes: sessions, or the first ``size`` ones of each group."""
    if size is None:
        return [(candidate,) for candidate in rows]
    groups: dict[int, list[Candidate]] = {}
    for candidate in sorted(rows):
        groups.setdefault(candidate[1], []).append(candidate)
    return [group[:size] for group in groups.values() if len(group) >= size]


def _rank(number: int, query: Query, seed: int) -> int | bytes:
    if query.order == "random":
        return blake2b(b"%d %d" % (seed, number), digest_size=8).digest()
    return number if query.order == "oldest" else -number
