"""The pool of the papers' page as CSV and BibTeX."""

from __future__ import annotations

import csv
import io
import re

from hypothesis import given
from hypothesis import strategies as st

from envsuite.core.escaping import cell
from envsuite.papersearch.page.exports import as_csv, bibtex
from envsuite.retrieval.documents import Document

PAPERS = (
    Document(
        "p1", "Search in trees", "Trees.", 19990101, (), {"authors": ["Ada Byron", "Émile Zola"], "venue": "TREE"}
    ),
    Document("p2", "Search in graphs & more", "Graphs.", 20100615, ("p1",), {"authors": ["Byron, Ada"]}),
    Document("p3", "Search everywhere", "", 20240301, ("p1", "p2"), {"authors": ["Ada Byron"]}),
    Document("p4", "樹の探索", "search", 0),
)


def test_bibtex_has_an_entry_with_a_key_of_its_own_for_each() -> None:
    written = bibtex([*PAPERS, PAPERS[0]])
    assert re.findall(r"@misc\{(.*),", written) == [
        "byron1999search", "byron2010search", "byron2024search", "paper", "byron1999search-2",
    ]  # fmt: skip
    assert r"title = {{Search in graphs \& more}}" in written
    assert "author = {Ada Byron and Émile Zola}" in written


@given(st.lists(st.tuples(st.text(), st.lists(st.text())), max_size=4))
def test_any_title_and_author_can_be_written(papers: list[tuple[str, list[str]]]) -> None:
    documents = [
        Document(f"p{rank}", title, "", 20200101, (), {"authors": authors})
        for rank, (title, authors) in enumerate(papers)
    ]
    written = bibtex(documents)
    assert written.count("@misc{") >= len(documents)
    assert re.sub(r"\\.", "", written).count("{") == re.sub(r"\\.", "", written).count("}")
    rows = [*csv.DictReader(io.StringIO(as_csv(documents), newline=""))]
    assert [row["title"] for row in rows] == [cell(_one_line(title)) for title, _ in papers]
    assert [row["rank"] for row in rows] == [str(rank) for rank in range(1, len(papers) + 1)]


def _one_line(text: str) -> str:
    return " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())
