"""Papers in files of JSON lines: Semantic Scholar's, arXiv's, and others with their fields."""

from __future__ import annotations

import datetime
import email.utils
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from envsuite.core.errors import DataError
from envsuite.papersearch.lines import PaperReader, Tell, clean, records
from envsuite.retrieval.documents import UNDATED, Document, day

READER = "papers 1"
"""Name and version of what reads these files; part of the digest."""
SUFFIXES = (".jsonl", ".json", ".jsonl.gz", ".json.gz", ".ndjson", ".ndjson.gz")
"""Names of the files in a folder that are read."""
LONGEST_TITLE = 1_000
"""Characters of the longest title; longer ones are cut."""
LONGEST_BEGINNING = 80
"""Characters of the beginning of an abstract that stands for a title."""
MOST_AUTHORS = 100
"""Authors of a paper that are kept."""
IDS = ("paper_id", "paperId", "corpusid", "corpusId", "id", "arxiv_id")
"""Fields that may have the id of a paper; the first one that is there counts."""
ABSTRACTS = ("abstract", "paperAbstract")
DATES = ("publicationDate", "publicationdate", "published", "published_time", "date")
"""Fields that may have the day of publication, before arXiv's ``versions``, ``update_date``, and ``year``."""
REFERENCES = ("references", "outCitations")
_ARXIV = re.compile(r"(?:arxiv:)?((\d\d)(\d\d)\.\d{4,5}|[a-z-]+(?:\.[A-Za-z-]+)?/(\d\d)(\d\d)\d{3})(?:v\d+)?", re.I)


class PaperFiles(PaperReader):
    """Papers in files of JSON lines, gzipped or not; a :class:`~envsuite.retrieval.documents.Source`.

    A line has an id (:data:`IDS`), ``title`` and ``abstract``, and may have a date (:data:`DATES`, ``versions``,
    ``update_date`` or ``year``), ``references`` (ids, or objects that have them), ``authors`` and ``venue``: the fields
    of Semantic Scholar's papers and of arXiv's snapshot, among others. Papers without id, or with neither title nor
    abstract, are left out.

    Args:
        path: A file, or a folder, of which the files with :data:`SUFFIXES` are read in the order of their names.
        strict: Whether the first problem is an error.

    Raises:
        DataError: There is no such file, or none in the folder.
    """

    reader = READER

    def __init__(self, path: Path, strict: bool = False) -> None:
        super().__init__(files_of(path), strict)
        self.name = path.name
        """Name of the file or folder."""

    def tasks(self) -> Iterator[Mapping[str, Any]]:
        """Yields none: these files have no queries."""
        return iter(())

    def _read(self, tell: Tell) -> Iterator[Document]:
        today = number_of(datetime.date.today())
        for path in self._paths:
            for place, record in records(path, tell):
                if (paper := paper_of(record, place, tell, today)) is not None:
                    yield paper


def files_of(path: Path) -> Sequence[Path]:
    """Returns the files of JSON lines that ``path`` names: itself, or those of a folder by their names.

    Raises:
        DataError: There are none.
    """
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.is_file() and file.name.endswith(SUFFIXES))
        if not files:
            raise DataError(f"{path}: there is no file of JSON lines in it ({', '.join(SUFFIXES)})")
        return files
    if not path.is_file():
        raise DataError(f"{path}: there is no such file")
    return [path]


def number_of(date: datetime.date) -> int:
    """Returns a date as the number YYYYMMDD."""
    return date.year * 10000 + date.month * 100 + date.day


def paper_of(record: Mapping[str, Any], place: str, tell: Tell, today: int) -> Document | None:
    """Returns the paper of a JSON object; ``None`` if it has no id, or neither title nor abstract.

    Args:
        record: The object.
        place: Its file and line.
        tell: Receives its problems.
        today: A later date is a problem; the paper is kept.
    """
    key = next((_id(record[name]) for name in IDS if record.get(name) is not None), "")
    title = clean(record.get("title"))
    text = next((clean(record[name]) for name in ABSTRACTS if record.get(name) is not None), "")
    if not key or not (title or text):
        tell("no title and no abstract (left out)" if key else "no id (left out)", place)
        return None
    if len(title) > LONGEST_TITLE:
        tell(f"a title of more than {LONGEST_TITLE:,} characters (cut)", place)
        title = title[:LONGEST_TITLE].rstrip()
    title = title_of(title, text, place, tell)
    arxiv = _arxiv_id(record)
    date = _date(record, arxiv, place, tell)
    if date > today:
        tell("a date in the future (kept)", place)
    return Document(key, title, text, date, _references(record, place, tell), _facts(record, arxiv))


def title_of(title: str, text: str, place: str, tell: Tell) -> str:
    """Returns the title of a paper, or where it has none the first words of its abstract; tells what is missing."""
    if not text:
        tell("no abstract (kept)", place)
    if title:
        return title
    tell("no title (the abstract's first words stand for it)", place)
    return " ".join(text[:LONGEST_BEGINNING].split(" ")[:-1]) + " …" if len(text) > LONGEST_BEGINNING else text


def plain_arxiv_id(text: str) -> str:
    """Returns an arXiv id without ``arXiv:`` and the number of its version; ``text`` itself where it is none."""
    match = _ARXIV.fullmatch(text.strip())
    return match[1] if match else text.strip()


def arxiv_month(text: str) -> int | None:
    """Returns the last day of the month in which the id was given, as YYYYMMDD; ``None`` for what is no arXiv id."""
    match = _ARXIV.fullmatch(text)
    if match is None:
        return None
    year, month = (match[2], match[3]) if match[2] else (match[4], match[5])
    return day(f"{'19' if year >= '91' else '20'}{year}-{month}")


def _id(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        return ""
    return clean(str(value))


def _arxiv_id(record: Mapping[str, Any]) -> str:
    ids = record.get("externalIds", record.get("externalids"))
    arxiv_id = record.get("arxiv_id") or (ids.get("ArXiv") if isinstance(ids, Mapping) else None)
    if not arxiv_id and ("versions" in record or "categories" in record):
        arxiv_id = record.get("id")
    return plain_arxiv_id(arxiv_id) if isinstance(arxiv_id, str) else ""


def _date(record: Mapping[str, Any], arxiv: str, place: str, tell: Tell) -> int:
    """Returns the day on which a paper was there for the first time; of a year alone, the month of its arXiv id."""
    dates: list[Any] = [record[name] for name in DATES if record.get(name)]
    versions = record.get("versions")
    if isinstance(versions, list) and versions and isinstance(versions[0], Mapping):
        text = versions[0].get("created")
        parts = email.utils.parsedate(text) if isinstance(text, str) else None
        dates.append(f"{parts[0]}-{parts[1]}-{parts[2]}" if parts else text)
    dates += [record[name] for name in ("update_date", "year") if record.get(name)]
    month = arxiv_month(arxiv)
    date = next((number for value in dates if (number := day(value)) is not None), None)
    if date is None:
        if dates:
            tell("a date that cannot be read (counts as older than all others)", place)
        elif month is None:
            tell("no date (counts as older than all others)", place)
        return month or UNDATED
    return min(date, month) if month is not None and date % 10000 == 1231 else date


def _references(record: Mapping[str, Any], place: str, tell: Tell) -> tuple[str, ...]:
    references: Any = next((record[name] for name in REFERENCES if record.get(name) is not None), [])
    if not isinstance(references, list):
        tell("references that are not a list (left out)", place)
        return ()
    keys: dict[str, None] = {}
    for reference in references:
        paper_id = reference
        if isinstance(reference, Mapping):
            inner = reference.get("citedPaper")
            paper = inner if isinstance(inner, Mapping) else reference
            paper_id = next((paper[name] for name in IDS if paper.get(name) is not None), None)
        if key := _id(paper_id):
            keys[key] = None
        else:
            tell("a reference without an id (left out)", place)
    return tuple(keys)


def _facts(record: Mapping[str, Any], arxiv: str) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    authors = record.get("authors")
    if isinstance(authors, str):
        authors = re.split(r",\s*(?:and\s+)?|\s+and\s+|;\s*", clean(authors))
    if isinstance(authors, list):
        names = (author.get("name") if isinstance(author, Mapping) else author for author in authors[:MOST_AUTHORS])
        facts["authors"] = [name for name in map(clean, names) if name]
    venue = clean(record.get("venue")) or clean(record.get("journal-ref"))
    if venue:
        facts["venue"] = venue[:LONGEST_TITLE]
    if arxiv:
        facts["arxiv_id"] = arxiv
    if doi := clean(record.get("doi")):
        facts["doi"] = doi[:LONGEST_TITLE]
    return facts
