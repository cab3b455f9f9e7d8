"""The CACM collection in SMART's format: articles of the Communications of the ACM 1958 to 1979, and judged queries."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from envsuite.core.errors import DataError
from envsuite.papersearch.lines import PaperReader, Tell, clean, lines, text_lines
from envsuite.papersearch.paper_files import title_of
from envsuite.retrieval.documents import UNDATED, Document, day

READER = "cacm 1"
"""Name and version of what reads the files; part of the digest."""
FILES = ("cacm.all", "query.text", "qrels.text")
"""Articles, queries, and which articles are relevant to which query."""
LINK = 5
"""Kind of a row of ``.X`` that says that one of two articles cites the other."""
_START = re.compile(r"\.I\s+(\d+)\s*")
_FIELD = re.compile(r"\.([TWBANXKC])\s*")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_ISSUE = re.compile(r"([A-Za-z]{3,9})[\s,]+(\d{4})")
Entry = tuple[str, str, dict[str, list[str]]]
"""Place, number and the lines of each field."""


class Cacm(PaperReader):
    """The CACM collection; a :class:`~envsuite.retrieval.documents.Source`.

    Keys are the numbers of the articles. The collection does not say which of two linked articles cites the other: here
    the newer one does, and of one month the one with the larger number. The judged queries are tasks of the split test
    without a date.

    Args:
        folder: The folder with :data:`FILES`.
        strict: Whether the first problem is an error.

    Raises:
        DataError: A file is missing.
    """

    name = "CACM"
    reader = READER

    def __init__(self, folder: Path, strict: bool = False) -> None:
        super().__init__([folder / name for name in FILES], strict)
        self._articles, self._queries, self._judgements = self._paths
        if missing := [path.name for path in self._paths if not path.is_file()]:
            raise DataError(f"{folder}: not the CACM collection (without {', '.join(missing)})")

    def tasks(self) -> Iterator[Mapping[str, Any]]:
        """Yields the queries that have judgements, with the relevant articles as gold."""
        relevant: dict[int, dict[str, None]] = {}
        for place, line in lines(self._judgements, self.problems.add):
            parts = line.split()
            if len(parts) < 2 or not (parts[0].isdigit() and parts[1].isdigit()):
                self.problems.add("a line that is no judgement (left out)", place)
            else:
                relevant.setdefault(int(parts[0]), {})[str(int(parts[1]))] = None
        for place, number, fields in _entries(self._queries, self.problems.add):
            text = clean(" ".join(fields.get("W", [])))
            if int(number) not in relevant:
                continue
            if not text:
                self.problems.add("a query without text (left out)", place)
                continue
            gold = [*relevant[int(number)]]
            yield {"id": f"cacm-{number}", "text": text, "gold": gold, "date": 0, "kind": "cacm", "split": "test"}

    def _read(self, tell: Tell) -> Iterator[Document]:
        entries = list(_entries(self._articles, tell))
        dates = {number: _date(fields) for _, number, fields in entries}
        links: dict[str, dict[str, None]] = {}
        for place, _, fields in entries:
            for row in fields.get("X", []):
                parts = row.split()
                if len(parts) != 3 or not all(part.isdigit() for part in parts):
                    tell("a row of links that is none (left out)", place)
                elif int(parts[1]) == LINK and parts[0] != parts[2]:
                    ends = sorted({parts[0], parts[2]}, key=lambda key: (dates.get(key, UNDATED), int(key)))
                    links.setdefault(ends[1], {})[ends[0]] = None
        for place, number, fields in entries:
            title, text = clean(" ".join(fields.get("T", []))), clean(" ".join(fields.get("W", [])))
            if not (title or text):
                tell("no title and no abstract (left out)", place)
                continue
            title = title_of(title, text, place, tell)
            if dates[number] == UNDATED:
                tell("a date that cannot be read (counts as older than all others)", place)
            facts = {"authors": [clean(name) for name in fields.get("A", []) if clean(name)], "venue": "CACM"}
            yield Document(number, title, text, dates[number], tuple(links.get(number, ())), facts)


def _entries(path: Path, tell: Tell) -> Iterator[Entry]:
    """Yields the entries of a file in SMART's format: ``.I`` with a number, then fields, each begun by its letter."""
    entry: Entry | None = None
    field: list[str] = []
    for place, line in text_lines(path, tell):
        if start := _START.fullmatch(line):
            if entry is not None:
                yield entry
            entry, field = (place, str(int(start[1])), {}), []
        elif entry is None:
            tell("a line before the first entry (left out)", place)
        elif letter := _FIELD.fullmatch(line):
            field = entry[2].setdefault(letter[1], [])
        else:
            field.append(line)
    if entry is not None:
        yield entry


def _date(fields: Mapping[str, list[str]]) -> int:
    """Returns the last day of the month of the issue."""
    for month, year in _ISSUE.findall(" ".join(fields.get("B", []))):
        if month[:3].lower() in _MONTHS:
            return day(f"{year}-{_MONTHS.index(month[:3].lower()) + 1}") or UNDATED
    return UNDATED
