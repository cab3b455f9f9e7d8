"""Papers and queries from files: what is read, and that what is wrong is counted where it is."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsuite.core.errors import DataError
from envsuite.papersearch import lines as lines_module
from envsuite.papersearch.cacm import Cacm
from envsuite.papersearch.ieee_vis import COLUMNS, IeeeVis
from envsuite.papersearch.lines import records
from envsuite.papersearch.paper_files import PaperFiles, paper_of, plain_arxiv_id
from envsuite.papersearch.pasa import PapersWithQueries, alike
from envsuite.papersearch.source import official_source, source_of
from envsuite.retrieval.corpus import Corpus
from envsuite.retrieval.corpus_build import build
from envsuite.retrieval.documents import Document, Source

TODAY = 20261124


def _written(path: Path, rows: Iterable[Any]) -> Path:
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return path


def _read(row: dict[str, Any]) -> tuple[Document | None, list[str]]:
    problems: list[str] = []
    return paper_of(row, "papers.jsonl:1", lambda kind, place: problems.append(kind), TODAY), problems


def test_a_paper_of_semantic_scholar_is_read():
    row = {
        "paperId": "649def34", "corpusId": 5, "externalIds": {"ArXiv": "1805.02262", "DOI": "10.1/x"},
        "title": "Construction of the\n Literature Graph", "abstract": "We describe  a system.", "year": 2018,
        "publicationDate": "2018-05-06", "venue": "NAACL", "authors": [{"authorId": "1", "name": "Waleed Ammar"}],
        "references": [{"paperId": "aaa", "title": "A"}, {"paperId": None, "title": "B"}, {"paperId": "aaa"}],
    }  # fmt: skip
    paper, problems = _read(row)
    facts = {"authors": ["Waleed Ammar"], "venue": "NAACL", "arxiv_id": "1805.02262"}
    assert paper == Document(
        "649def34", "Construction of the Literature Graph", "We describe a system.", 20180506, ("aaa",), facts
    )
    assert problems == ["a reference without an id (left out)"]


def test_a_paper_of_arxivs_snapshot_is_dated_by_its_first_version():
    row = {
        "id": "0704.0001", "title": "Calculation", "abstract": "  A calculation.\n", "update_date": "2008-11-26",
        "authors": "C. Bal\\'azs, E. L. Berger and C. Yuan", "categories": "hep-ph", "journal-ref": "Phys.Rev.D76",
        "versions": [{"version": "v1", "created": "Mon, 2 Apr 2007 19:18:42 GMT"}, {"version": "v2", "created": "x"}],
    }  # fmt: skip
    paper, problems = _read(row)
    assert paper is not None and not problems
    assert (paper.key, paper.date, paper.text) == ("0704.0001", 20070402, "A calculation.")
    assert paper.facts["authors"] == ["C. Bal\\'azs", "E. L. Berger", "C. Yuan"]
    assert paper.facts["arxiv_id"] == "0704.0001" and paper.facts["venue"] == "Phys.Rev.D76"
    again, _ = _read({**row, "versions": []})
    assert again is not None and again.date == 20081126


@pytest.mark.parametrize(
    ("row", "date", "problem"),
    [
        ({"year": 2020}, 20201231, None),
        ({"year": 2020, "arxiv_id": "1910.09070"}, 20191031, None),
        ({"year": 2018, "arxiv_id": "1910.09070"}, 20181231, None),
        ({"date": "2020-02-03", "arxiv_id": "1910.09070"}, 20200203, None),
        ({"arxiv_id": "hep-th/9901001v2"}, 19990131, None),
        ({"arxiv_id": "2313.00001"}, 0, "no date (counts as older than all others)"),
        ({"arxiv_id": "x"}, 0, "no date (counts as older than all others)"),
        ({"year": None}, 0, "no date (counts as older than all others)"),
        ({"year": "soon"}, 0, "a date that cannot be read (counts as older than all others)"),
        ({"publicationDate": "2020-13-01", "year": 2020}, 20201231, None),
        ({"year": 2031}, 20311231, "a date in the future (kept)"),
        ({"date": "2026-11-24"}, 20261124, None),
        ({"date": "2026-11-25"}, 20261125, "a date in the future (kept)"),
    ],
)
def test_dates_of_papers(row, date, problem):
    paper, problems = _read({"id": "1", "title": "T", "abstract": "A", **row})
    assert paper is not None and paper.date == date
    assert problems == ([problem] if problem else [])


@pytest.mark.parametrize(
    ("row", "kept", "problem"),
    [
        ({"title": "T"}, True, "no abstract (kept)"),
        ({"title": "T", "abstract": None}, True, "no abstract (kept)"),
        ({"title": " \n", "abstract": "Some words"}, True, "no title (the abstract's first words stand for it)"),
        ({"title": 7}, False, "no title and no abstract (left out)"),
        ({"title": "T", "abstract": "A", "paper_id": ""}, False, "no id (left out)"),
        ({"title": "T", "abstract": "A", "paper_id": [1]}, False, "no id (left out)"),
        ({"title": "T" * 1_001, "abstract": "A"}, True, "a title of more than 1,000 characters (cut)"),
        ({"title": "T", "abstract": "A", "references": "P2"}, True, "references that are not a list (left out)"),
        ({"title": "T", "abstract": "A", "references": [None]}, True, "a reference without an id (left out)"),
        ({"title": "T", "abstract": "A", "authors": {"a": 1}, "venue": 9, "externalIds": []}, True, None),
    ],
)
def test_what_is_wrong_with_a_paper_is_counted(row, kept, problem):
    paper, problems = _read({"paper_id": "P1", "year": 2000, **row})
    assert (paper is not None) == kept
    assert problems == ([problem] if problem else [])
    assert paper is None or (0 < len(paper.title) <= 1_000)


def test_a_file_with_everything_wrong_is_read_to_its_end(tmp_path):
    good = [{"paper_id": f"P{n}", "title": f"Title {n}", "abstract": "中文 ελληνικά", "year": 2000} for n in range(3)]
    path = tmp_path / "papers.jsonl"
    lines = [json.dumps(good[0]), "{broken", "", "[1, 2]", '"text"', '{"title": "\\ud800"}', json.dumps(good[1])]
    path.write_bytes("\n".join(lines).encode() + b'\n{"title": "\xff"}\n' + json.dumps(good[2]).encode())
    source = PaperFiles(path)
    assert [paper.key for paper in source.documents()] == ["P0", "P1", "P2"]
    assert source.problems.counts == {
        "a line that is not JSON (left out)": 2,
        "a line that is not a JSON object (left out)": 2,
        "a line that is not UTF-8 (left out)": 1,
    }
    assert source.problems.places["a line that is not JSON (left out)"] == ["papers.jsonl:2", "papers.jsonl:6"]
    assert source.problems.places["a line that is not UTF-8 (left out)"] == ["papers.jsonl:8"]
    with pytest.raises(DataError, match=r"papers\.jsonl:2: a line that is not JSON"):
        list(PaperFiles(path, strict=True).documents())


def test_lines_that_are_too_long_are_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(lines_module, "LONGEST_LINE", 100)
    path = _written(tmp_path / "papers.jsonl", [{"a": "x" * 1_000}, {"b": "y" * 80}, {"c": "z" * 101}, {"d": 1}])
    told: list[str] = []
    assert [row for _, row in records(path, lambda kind, place: told.append(place))] == [{"b": "y" * 80}, {"d": 1}]
    assert told == ["papers.jsonl:1", "papers.jsonl:3"]


def test_of_a_damaged_gzip_file_the_beginning_is_read(tmp_path):
    rows = "".join(json.dumps({"id": f"{n}", "title": f"T{n * 7919}", "abstract": "A", "year": 1}) + "\n"
                   for n in range(5_000))  # fmt: skip
    whole = gzip.compress(rows.encode(), mtime=0)
    for name, damaged in (("cut", whole[:-2_000]), ("changed", whole[:9_000] + b"\0" * 500 + whole[9_500:])):
        path = tmp_path / f"{name}.jsonl.gz"
        path.write_bytes(damaged)
        source = PaperFiles(path)
        assert 100 < len(list(source.documents())) < 5_000
        assert source.problems.counts["a damaged gzip file (its rest is not read)"] == 1
    (tmp_path / "gzipped_without_suffix.json").write_bytes(whole)
    assert len(list(PaperFiles(tmp_path / "gzipped_without_suffix.json").documents())) == 5_000


def test_the_files_of_a_folder_are_read_by_their_names(tmp_path):
    for name, number in (("b.jsonl", 2), ("a.json", 1), ("c.jsonl", 3), ("readme.txt", 4)):
        _written(tmp_path / name, [{"id": number, "title": "T", "abstract": "A", "year": 2000}])
    assert [paper.key for paper in PaperFiles(tmp_path).documents()] == ["1", "2", "3"]


@pytest.mark.parametrize("make", [PaperFiles, IeeeVis, Cacm, source_of])
def test_what_is_not_there_is_said(make, tmp_path):
    with pytest.raises(DataError, match=str(tmp_path)):
        make(tmp_path)
    if make is not Cacm:
        with pytest.raises(DataError, match="there is no"):
            make(tmp_path / "none")
    with pytest.raises(DataError, match="papersearch"):
        official_source()


@given(st.dictionaries(
    st.sampled_from(["paper_id", "title", "abstract", "year", "versions", "references", "authors", "externalIds"]),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["name", "paperId", "created"]), inner),
        max_leaves=6,
    ),
))  # fmt: skip
def test_no_object_makes_the_reader_fail(row):
    paper, _ = _read(row)
    assert paper is None or (paper.key and paper.title and 0 <= paper.date)


@pytest.mark.parametrize(
    ("written", "plain"),
    [("1706.05350v1", "1706.05350"), ("arXiv:1706.05350", "1706.05350"), ("cs/0501001v12", "cs/0501001"),
     ("math.AG/0501001", "math.AG/0501001"), ("nips2017-2", "nips2017-2"), (" 0704.0001 ", "0704.0001")],
)  # fmt: skip
def test_versions_of_arxiv_ids_are_taken_off(written, plain):
    assert plain_arxiv_id(written) == plain


def _queries(folder: Path, rows: list[Any], name: str = "AutoScholarQuery_dev.jsonl") -> Source:
    papers = [
        {"paper_id": "a", "title": "On Graphs!", "abstract": "A", "year": 2019, "arxiv_id": "1901.00001"},
        {"paper_id": "b", "title": "Trees: a Survey", "abstract": "B", "year": 2020},
        {"paper_id": "c", "title": "Trees, a survey", "abstract": "C", "year": 2022},
    ]
    return PapersWithQueries(PaperFiles(_written(folder / "papers.jsonl", papers)), [_written(folder / name, rows)])


def test_queries_find_their_gold_by_arxiv_id_and_by_title(tmp_path):
    row = {
        "qid": "q1", "question": "Which?", "answer": ["Another name", "TREES - A survey", "Not there", "On graphs"],
        "answer_arxiv_id": ["1901.00001v3", "2001.00009", "2001.00008", "1901.00001"],
        "source_meta": {"published_time": "20210531"},
    }  # fmt: skip
    source = _queries(tmp_path, [row, {**row, "qid": "q2", "answer": ["X"], "answer_arxiv_id": ["1"]}])
    assert list(source.tasks()) == [{
        "id": "q1", "text": "Which?", "gold": ["a", "b"], "date": 20210531, "kind": "autoscholarquery",
        "split": "validation", "absent": 1, "newer": 0,
    }]  # fmt: skip
    assert not source.problems.counts


def test_gold_that_is_newer_than_the_query_is_counted_and_not_asked_for(tmp_path):
    row = {"question": "Q", "answer": ["On Graphs", "Trees: a survey"], "source_meta": {"published_time": "20191231"}}
    (task,) = _queries(tmp_path, [row], "RealScholarQuery.jsonl").tasks()
    assert (task["gold"], task["newer"], task["split"], task["id"]) == (["a"], 1, "test", "realscholarquery_test_0")


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"question": "", "answer": ["On Graphs"]}, "a query without question or answers (left out)"),
        ({"question": "Q", "answer": "On Graphs"}, "a query without question or answers (left out)"),
        (
            {"question": "Q", "answer": ["A"], "answer_arxiv_id": ["1", "2"]},
            "a query with other numbers of titles and of arXiv ids (left out)",
        ),
        ({"question": "Q", "answer": ["On Graphs"], "source_meta": None}, "a query without a date (has no cut-off)"),
        ("{", "a line that is not JSON (left out)"),
    ],
)
def test_what_is_wrong_with_a_query_is_counted(row, problem, tmp_path):
    source = _queries(tmp_path, [row])
    tasks = list(source.tasks())
    assert source.problems.counts == {problem: 1}
    assert [task["date"] for task in tasks] == ([0] if "cut-off" in problem else [])


@given(st.text())
def test_titles_are_compared_by_letters_and_digits(title):
    assert alike(title) == alike(f" {title} -!") == "".join(
        one for one in title.lower() if one in "abcdefghijklmnopqrstuvwxyz0123456789"
    )  # fmt: skip


ROWS = [
    {"venue": "Vis", "year": "1999", "title": "One", "doi": "10.1/1", "key": "11", "abstract": "A", "authors": "X;Y"},
    {"venue": "Vis", "year": "2000", "title": "Two", "doi": "", "key": "12", "abstract": "", "references": "11;99;11"},
    {"venue": "Vis", "year": "?", "title": "", "key": "13", "abstract": "Text"},
    {"venue": "Vis", "year": "2001", "title": "No key", "key": "", "abstract": "Text"},
]


def test_the_table_of_ieee_vis_is_read(tmp_path):
    lines = ["\t".join(COLUMNS.values())] + ["\t".join(row.get(name, "") for name in COLUMNS) for row in ROWS]
    source = source_of(_written(tmp_path / "vis.tsv", [*lines, "too\tfew"]))
    papers = list(source.documents())
    assert [(paper.key, paper.title, paper.date, paper.links) for paper in papers] == [
        ("11", "One", 19991231, ()), ("12", "Two", 20001231, ("11", "99")), ("13", "Text", 0, ()),
    ]  # fmt: skip
    assert papers[0].facts == {"authors": ["X", "Y"], "venue": "Vis", "doi": "10.1/1"}
    assert sum(source.problems.counts.values()) == 5
    with pytest.raises(DataError, match="no column"):
        list(IeeeVis(_written(tmp_path / "other.tsv", ["a\tb"])).documents())


CACM = (
    ".I 1\n.T\nFirst\n title\n.W\nText\n.B\nCACM December, 1958\n.A\nPerlis, A. J.\n.X\n2\t5\t1\n1\t5\t1\n3\t4\t1\n"
    ".I 2\n.T\nSecond\n.B\nCACM July 1960\n.X\n1\t5\t2\n3\t5\t2\nodd\n.I 3\n.T\n"
    ".W\nOnly text\n.B\nCACM July, 1960\n.I 4\n.T\n"
)


def test_cacm_is_read_and_the_newer_of_two_linked_articles_cites(tmp_path):
    (tmp_path / "cacm.all").write_text(CACM)
    (tmp_path / "query.text").write_text(".I 1\n.W\n Asked\n for\n.N\n x\n.I 2\n.W\nNot judged\n")
    (tmp_path / "qrels.text").write_text("01 0003  0 0\n01 1 0 0\nbad\n")
    source = source_of(tmp_path)
    papers = list(source.documents())
    assert [(paper.key, paper.title, paper.text, paper.date, paper.links) for paper in papers] == [
        ("1", "First title", "Text", 19581231, ()),
        ("2", "Second", "", 19600731, ("1",)),
        ("3", "Only text", "Only text", 19600731, ("2",)),
    ]
    (task,) = source.tasks()
    assert (task["id"], task["text"], task["gold"], task["date"]) == ("cacm-1", "Asked for", ["3", "1"], 0)
    assert source.problems.counts["a row of links that is none (left out)"] == 1
    assert source.problems.counts["no title and no abstract (left out)"] == 1


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("name", "papers", "links", "tasks", "gold"),
    [
        pytest.param("papers_12k.jsonl.gz", 12_000, 0, 305, None, marks=pytest.mark.slow),
        ("ieee_vis_1990_2015", 2_752, 9_993, 897, None),
        ("cacm", 3_204, 2_720, 52, 796),
    ],
)
def test_the_published_collections_are_read_whole(name, papers, links, tasks, gold, shared, tmp_path):
    data = shared / "data" / "papersearch"
    queries = sorted((data / "pasa_queries").glob("*.jsonl")) if "12k" in name else []
    corpus = Corpus(build(source_of(data / name, queries), tmp_path / f"{name}.corpus"))
    assert len(corpus) == papers
    assert sum(len(corpus.links(number)) for number in range(papers)) == links
    assert len(found := corpus.tasks()) == tasks
    assert all(corpus.number(key) is not None for task in found for key in task["gold"])
    assert gold is None or sum(len(task["gold"]) for task in found) == gold
