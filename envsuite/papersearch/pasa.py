"""PaSa's queries (AutoScholarQuery, RealScholarQuery) on the papers of any source."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envsuite.papersearch.lines import Tell, clean, digest_of, records
from envsuite.papersearch.paper_files import plain_arxiv_id
from envsuite.retrieval.documents import Document, Source, day

READER = "pasa 1"
"""Name and version of what reads these files; part of the digest."""
_OTHER = re.compile(r"[^a-z0-9]+")
_SPLITS = (("train", "train"), ("dev", "validation"), ("val", "validation"))


@dataclass(frozen=True, slots=True)
class PaSaQuery:
    """A query of PaSa's files."""

    task_id: str
    text: str
    titles: tuple[str, ...]
    """Title of each gold paper, as :func:`alike` gives it; empty where there is none."""
    arxiv_ids: tuple[str, ...]
    """arXiv id of each gold paper, without version; empty where there is none."""
    date: int
    split: str
    kind: str
    """Name of the data set, e.g. ``autoscholarquery``."""


class PapersWithQueries:
    """The papers of a source with the queries of PaSa's files as tasks; a source itself.

    A gold paper is known by its arXiv id, or else by its title. Queries none of whose gold papers is there are left
    out; of the others, ``absent`` counts the gold papers that are not there, and ``newer`` those that are newer than
    the query's date, which nobody could have found; neither are in ``gold``. The split is the one that the name of the
    file says (``train``; ``dev``: validation), or else test.

    Args:
        papers: The papers.
        queries: Files of JSON lines with ``question``, ``answer`` (titles), ``answer_arxiv_id`` and
            ``source_meta.published_time``.
    """

    def __init__(self, papers: Source, queries: Sequence[Path]) -> None:
        self.problems = papers.problems
        self._papers, self._queries = papers, tuple(queries)

    @property
    def name(self) -> str:
        """The names of papers and queries."""
        return ", ".join((self._papers.name, *(path.name for path in self._queries)))

    @property
    def size(self) -> int | None:
        """Number of papers."""
        return self._papers.size

    def digest(self) -> str:
        """Returns the SHA-256 (hex) of papers and queries."""
        return digest_of(self._queries, f"{READER} {self._papers.digest()} {' '.join(p.name for p in self._queries)}")

    def documents(self) -> Iterator[Document]:
        """Yields the papers."""
        return self._papers.documents()

    def tasks(self) -> Iterator[Mapping[str, Any]]:
        """Yields the tasks of the papers, then the queries, in the order of the files."""
        yield from self._papers.tasks()
        queries = list(self._read(self.problems.add))
        names = {name for query in queries for name in (*query.titles, *query.arxiv_ids) if name}
        papers = self._index_papers(names)
        for query in queries:
            if (task := _task(query, papers)) is not None:
                yield task

    def _index_papers(self, names: set[str]) -> dict[str, tuple[str, int]]:
        """Returns key and date of each paper by its arXiv id and by its title, those of them that are in ``names``."""
        papers: dict[str, tuple[str, int]] = {}
        counts, places = self.problems.counts.copy(), {kind: [*at] for kind, at in self.problems.places.items()}
        for document in self._papers.documents():
            for name in (str(document.facts.get("arxiv_id", "")), alike(document.title), document.key):
                if name in names:
                    papers.setdefault(name, (document.key, document.date))
        self.problems.counts, self.problems.places = counts, places  # of the papers, which were read before
        return papers

    def _read(self, tell: Tell) -> Iterator[PaSaQuery]:
        for path in self._queries:
            split = next((split for word, split in _SPLITS if word in path.name.lower()), "test")
            kind = alike(path.name.partition(".")[0].partition("_")[0]) or "query"
            for number, (place, record) in enumerate(records(path, tell)):
                if (query := _query(record, place, tell, split, kind, number)) is not None:
                    yield query


def alike(title: str) -> str:
    """Returns the letters a-z and digits of a title, in lower case: titles are compared by these."""
    return _OTHER.sub("", title.lower())


def _query(record: Mapping[str, Any], place: str, tell: Tell, split: str, kind: str, number: int) -> PaSaQuery | None:
    text = clean(record.get("question"))
    titles, ids = _texts(record.get("answer")), _texts(record.get("answer_arxiv_id"))
    if not text or not (titles or ids):
        tell("a query without question or answers (left out)", place)
        return None
    if titles and ids and len(titles) != len(ids):
        tell("a query with other numbers of titles and of arXiv ids (left out)", place)
        return None
    meta = record.get("source_meta")
    date = day(meta.get("published_time")) if isinstance(meta, Mapping) else None
    if date is None:
        tell("a query without a date (has no cut-off)", place)
    count = max(len(titles), len(ids))
    return PaSaQuery(
        task_id=clean(record.get("qid")) or f"{kind}_{split}_{number}",
        text=text,
        titles=tuple(map(alike, titles)) or ("",) * count,
        arxiv_ids=tuple(map(plain_arxiv_id, ids)) or ("",) * count,
        date=date or 0,
        split=split,
        kind=kind,
    )


def _texts(value: object) -> list[str]:
    return [text if isinstance(text, str) else "" for text in value] if isinstance(value, list) else []


def _task(query: PaSaQuery, papers: Mapping[str, tuple[str, int]]) -> dict[str, Any] | None:
    gold: dict[str, None] = {}
    absent = newer = 0
    for title, arxiv in zip(query.titles, query.arxiv_ids, strict=True):
        paper = papers.get(arxiv) if arxiv else None
        paper = paper or (papers.get(title) if title else None)
        if paper is None:
            absent += 1
        elif query.date and paper[1] > query.date:
            newer += 1
        else:
            gold[paper[0]] = None
    if not gold:
        return None
    task = {"id": query.task_id, "text": query.text, "gold": [*gold], "date": query.date, "kind": query.kind}
    return {**task, "split": query.split, "absent": absent, "newer": newer}
