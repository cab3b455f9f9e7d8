"""The papers of IEEE VIS 1990 to 2015, with the citations among them, from the table of vispubdata.org."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from envsuite.core.errors import DataError
from envsuite.papersearch.lines import PaperReader, Tell, clean, text_lines
from envsuite.papersearch.paper_files import number_of, title_of
from envsuite.retrieval.documents import UNDATED, Document, day

READER = "ieee vis 1"
"""Name and version of what reads the file; part of the digest."""
COLUMNS = {
    "venue": "Conference",
    "year": "Year",
    "title": "Paper Title",
    "doi": "Paper DOI",
    "key": "IEEE XPLORE Article Number",
    "abstract": "Abstract",
    "authors": "Deduped author names",
    "references": "References",
}
"""Columns that are read."""
LEAST_GOLD = 5
"""Fewest gold papers of a task."""


class IeeeVis(PaperReader):
    """The papers of IEEE VIS; a :class:`~envsuite.retrieval.documents.Source`.

    Keys are IEEE Xplore's article numbers, by which the file cites. A task is the title of a paper; its gold papers are
    those that the paper cites, of earlier years; its date is the last day of the year before. So the paper itself is
    not to be found. One in ten tasks is of the split validation, two of test.

    Args:
        path: The table, tab-separated, or the folder that has it.
        strict: Whether the first problem is an error.

    Raises:
        DataError: There is no such file.
    """

    name = "IEEE VIS"
    reader = READER

    def __init__(self, path: Path, strict: bool = False) -> None:
        tables = sorted(path.glob("*.tsv")) if path.is_dir() else [path]
        if not tables or not tables[0].is_file():
            raise DataError(f"{path}: there is no table (*.tsv) of IEEE VIS papers")
        super().__init__(tables[:1], strict)

    def tasks(self) -> Iterator[Mapping[str, Any]]:
        """Yields a task for each paper that cites at least :data:`LEAST_GOLD` papers of earlier years."""
        papers = {paper.key: paper for paper in self._read(lambda kind, place: None)}
        for paper in papers.values():
            date = (paper.date // 10000 - 1) * 10000 + 1231
            gold = [key for key in paper.links if key in papers and papers[key].date <= date]
            if len(gold) >= LEAST_GOLD:
                yield {
                    "id": f"vis-{paper.key}",
                    "text": f"Related work for a paper with the title: {paper.title}",
                    "gold": gold,
                    "date": date,
                    "kind": str(paper.facts["venue"]).lower(),
                    "split": split_of(f"{READER} {paper.key}"),
                }

    def _read(self, tell: Tell) -> Iterator[Document]:
        today = number_of(datetime.date.today())
        places: dict[str, int] = {}
        (path,) = self._paths
        for place, line in text_lines(path, tell):
            cells = line.split("\t")
            if not places:
                places = {name: cells.index(column) for name, column in COLUMNS.items() if column in cells}
                if missing := [column for name, column in COLUMNS.items() if name not in places]:
                    raise DataError(f"{path}: not the table of IEEE VIS papers (no column {', '.join(missing)})")
                continue
            if len(cells) <= max(places.values()):
                tell("a line with too few columns (left out)", place)
                continue
            row = {name: clean(cells[at]) for name, at in places.items()}
            if (paper := _paper(row, place, tell, today)) is not None:
                yield paper


def _paper(row: Mapping[str, str], place: str, tell: Tell, today: int) -> Document | None:
    if not row["key"] or not (row["title"] or row["abstract"]):
        tell("no title and no abstract (left out)" if row["key"] else "no article number (left out)", place)
        return None
    title = title_of(row["title"], row["abstract"], place, tell)
    date = day(row["year"])
    if date is None:
        tell("a date that cannot be read (counts as older than all others)", place)
    elif date > today:
        tell("a date in the future (kept)", place)
    facts: dict[str, Any] = {"authors": _parts(row["authors"]), "venue": row["venue"]}
    if row["doi"]:
        facts["doi"] = row["doi"]
    links = tuple(dict.fromkeys(_parts(row["references"])))
    return Document(row["key"], title, row["abstract"], UNDATED if date is None else date, links, facts)


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(";") if part.strip()]


def split_of(name: str) -> str:
    """Returns the split of a task by the SHA-256 of its name: of ten, one is of validation, two are of test."""
    tenth = hashlib.sha256(name.encode()).digest()[0] * 10 // 256
    return {0: "validation", 1: "test", 2: "test"}.get(tenth, "train")
