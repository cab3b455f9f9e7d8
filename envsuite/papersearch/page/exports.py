"""The pool as a file: CSV and BibTeX."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Sequence

from envsuite.core.escaping import cell
from envsuite.core.latex import escape_latex
from envsuite.retrieval.documents import Document


def as_csv(papers: Sequence[Document]) -> str:
    """Returns papers, best first, as CSV."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["rank", "id", "date", "title", "authors", "venue"])
    for rank, paper in enumerate(papers, 1):
        words = (paper.title, "; ".join(authors_of(paper)), str(paper.facts.get("venue", "")))
        writer.writerow([rank, cell(paper.key), paper.date or "", *map(cell, map(_printable, words))])
    return out.getvalue()


def bibtex(papers: Sequence[Document]) -> str:
    """Returns the papers as BibTeX entries of the type ``misc``, each with a key of its own."""
    entries: list[str] = []
    used: set[str] = set()
    for paper in papers:
        label = base = _label(paper)
        following = 2
        while label in used:
            label, following = f"{base}-{following}", following + 1
        used.add(label)
        fields = {
            "title": f"{{{_escape(paper.title)}}}",
            "author": " and ".join(map(_escape, authors_of(paper))),
            "year": _year(paper),
            "howpublished": _escape(str(paper.facts.get("venue", ""))),
            "note": _escape(paper.key),
        }
        lines = [f"  {name} = {{{value}}}," for name, value in fields.items() if value]
        entries.append("\n".join([f"@misc{{{label},", *lines, "}"]))
    return "\n\n".join(entries) + "\n" if entries else ""


def _label(paper: Document) -> str:
    """Returns a BibTeX key: last name, year and first word in ASCII."""
    first = next(iter(authors_of(paper)), "").strip()
    name = first.partition(",")[0] if "," in first else first.rpartition(" ")[2]
    words = [word for word in re.findall(r"\w+", paper.title) if len(word) > 3]
    parts = [name, _year(paper), words[0] if words else ""]
    plain = unicodedata.normalize("NFKD", "".join(parts)).encode("ascii", "ignore").decode()
    return re.sub(r"[^A-Za-z0-9]", "", plain).lower() or "paper"


def authors_of(paper: Document) -> list[str]:
    """Returns the names of a paper's authors."""
    authors = paper.facts.get("authors", [])
    return [str(name) for name in authors] if isinstance(authors, list | tuple) else [str(authors)]


def _year(paper: Document) -> str:
    return str(paper.date // 10000) if paper.date else ""


def _escape(text: str) -> str:
    """Returns text for LaTeX, on one line."""
    return escape_latex(_printable(text))


def _printable(text: str) -> str:
    """Returns text on one line, without control characters."""
    return " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())
