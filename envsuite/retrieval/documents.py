"""Documents of a corpus, where they come from, and what was wrong with them."""

from __future__ import annotations

import calendar
import dataclasses
import datetime
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from envsuite.core.errors import DataError

LONGEST_KEY = 200
"""Characters of the longest key."""
UNDATED = 0
"""Date of a document of which none is known; it counts as older than all others."""
_SHOWN = 5
_DATE = re.compile(r"(\d{4})(?:[-/.](\d{1,2})(?:[-/.](\d{1,2}))?|(\d\d)(\d\d)?)?(?:[T ].*)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Document:
    """A paper, a page or a passage."""

    key: str
    """Its name in the corpus, by which agents refer to it: one line of 1 to 200 characters."""
    title: str
    text: str
    """Abstract or passage; may be empty."""
    date: int = UNDATED
    """Day of publication as the number YYYYMMDD (:func:`day`)."""
    links: tuple[str, ...] = ()
    """Keys of the documents that it cites, or that its page links to."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Further fields as plain JSON, e.g. ``authors`` and ``venue``."""


class DocumentProblems:
    """Counts what is wrong with the data of a source, and keeps the first places of each kind.

    Args:
        strict: Whether the first problem is an error.
    """

    def __init__(self, strict: bool = False) -> None:
        self.strict = strict
        self.counts: Counter[str] = Counter()
        """Kind of problem -> number of times."""
        self.places: dict[str, list[str]] = {}
        """Kind of problem -> the first places, e.g. ``papers.jsonl:17``."""

    def add(self, kind: str, place: str) -> None:
        """Counts a problem.

        Args:
            kind: A few words that are the same for all problems of the kind, e.g. ``"no abstract"``.
            place: File and line, or key.

        Raises:
            DataError: The data must have no problem.
        """
        if self.strict:
            raise DataError(f"{place}: {kind} (without --strict it would be counted, and the build would go on)")
        self.counts[kind] += 1
        places = self.places.setdefault(kind, [])
        if len(places) < _SHOWN:
            places.append(place)

    def lines(self) -> list[str]:
        """Returns a line for each kind of problem, the most frequent first."""
        return [
            f"{number:,} × {kind}: {', '.join(self.places[kind])}{', …' if number > _SHOWN else ''}"  # noqa: RUF001
            for kind, number in self.counts.most_common()
        ]


class Source(Protocol):
    """Documents, and the tasks that come with them."""

    problems: DocumentProblems
    """Receives what is wrong with the data while documents and tasks are read."""

    @property
    def name(self) -> str:
        """Name for people, e.g. the file's."""

    @property
    def size(self) -> int | None:
        """Number of documents, for the progress display; ``None`` if it is not known before they are read."""

    def digest(self) -> str:
        """Returns an identity of the data: the same digest, the same documents and tasks in the same order.

        Raises:
            DataError: The data cannot be read.
        """

    def documents(self) -> Iterator[Document]:
        """Yields the documents in a fixed order.

        Raises:
            DataError: The data cannot be read.
        """

    def tasks(self) -> Iterator[Mapping[str, Any]]:
        """Yields the tasks on these documents as plain JSON; the environment that plays them defines their fields.

        Raises:
            DataError: The data cannot be read.
        """


class InMemory:
    """Documents and tasks that are in memory; a :class:`Source`.

    Args:
        name: Name for people.
        documents: The documents.
        tasks: Tasks on them, as plain JSON.
    """

    def __init__(self, name: str, documents: Sequence[Document], tasks: Sequence[Mapping[str, Any]] = ()) -> None:
        self.problems = DocumentProblems()
        self._name, self._documents, self._tasks = name, documents, tasks

    @property
    def name(self) -> str:
        """The name for people."""
        return self._name

    @property
    def size(self) -> int:
        """Number of documents."""
        return len(self._documents)

    def digest(self) -> str:
        """Returns the SHA-256 (hex) of documents and tasks."""
        hasher = hashlib.sha256()
        for part in (*map(dataclasses.astuple, self._documents), *self._tasks):
            hasher.update(json.dumps(part, sort_keys=True).encode("ascii") + b"\n")  # a text may hold half a pair
        return hasher.hexdigest()

    def documents(self) -> Iterator[Document]:
        """Yields the documents."""
        return iter(self._documents)

    def tasks(self) -> Iterator[Mapping[str, Any]]:
        """Yields the tasks."""
        return iter(self._tasks)


Found = tuple[NDArray[np.int64], NDArray[np.float32]]
"""Numbers of the documents found, shape [m], best first, and their scores, shape [m]."""


@runtime_checkable
class Retriever(Protocol):
    """A way to search a corpus."""

    @property
    def name(self) -> str:
        """Name in tables and infos, e.g. ``"bm25"``."""

    def search(self, query: str, k: int, stop: int | None = None) -> Found:
        """Returns the best ``k`` documents, best first, or fewer where fewer match.

        Args:
            query: Words in any script and of any length; there are no operators.
            k: Maximum number of documents.
            stop: Returns documents with smaller numbers only; numbers follow dates, so this is a cut-off date.
        """


def day(text: str | float | None) -> int | None:
    """Returns a date as the number YYYYMMDD.

    A year or a month stands for its last day, so that a cut-off date hides every document that may be newer.

    Args:
        text: ``"2023-03-25"``, ``"20230325"``, ``"2023/3"``, ``2023`` and the like; a time of day is ignored.

    Returns:
        ``None`` for what is no date of the years 1 to 9999.
    """
    if isinstance(text, float):
        text = int(text) if text.is_integer() else None
    match = _DATE.fullmatch(str(text).strip()) if text is not None and not isinstance(text, bool) else None
    if match is None:
        return None
    year, month, last = (int(a or b or 0) for a, b in zip(match.group(1, 2, 3), match.group(1, 4, 5), strict=True))
    try:
        if not month:
            month = 12
        if not last:
            last = calendar.monthrange(year, month)[1]
        datetime.date(year, month, last)
    except ValueError:
        return None
    return year * 10000 + month * 100 + last
