"""A corpus holds what its source gave, whatever that is, and says what was wrong with it.

However many corpora the clients of a server ask for, what they leave is bounded.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsuite.core import UsageError
from envsuite.core.errors import DataError
from envsuite.retrieval import corpus_build
from envsuite.retrieval.corpus import REMEDY, Corpus
from envsuite.retrieval.corpus_build import build, ensure_corpus, open_generated
from envsuite.retrieval.documents import Document, DocumentProblems, InMemory, day
from envsuite.searchqa.env import SearchQAEnv

PAPERS = (
    Document("new", "Graph search", "We search graphs of graphs.", 20240301, ("old", "mid"), {"venue": "V"}),
    Document("old", "Search", "A search in trees.", 19990101),
    Document("mid", "Trees of graphs", "Graphs and trees.", 20100615, ("old",)),
    Document("undated", "Graph theory", "", 0, ("new",)),
)


def _built(folder: Path, *documents: Document, tasks: tuple[dict[str, object], ...] = ()) -> Corpus:
    return Corpus(build(InMemory("test", documents, tasks), folder / "test.corpus"))


def test_documents_are_numbered_by_date_hold_everything_and_are_linked_both_ways(tmp_path):
    corpus = _built(tmp_path, *PAPERS, tasks=({"id": "q", "gold": ["new"]},))
    assert [corpus.key(i) for i in range(len(corpus))] == ["undated", "old", "mid", "new"]
    assert [_unordered(corpus.document(i)) for i in (3, 1, 2, 0)] == [*map(_unordered, PAPERS)]
    assert [corpus.number(paper.key) for paper in PAPERS] == [3, 1, 2, 0]
    assert corpus.number("none") is None
    assert corpus.title(3) == "Graph search"
    assert corpus.tasks() == [{"gold": ["new"], "id": "q"}]
    assert corpus.source == "test"
    assert [corpus.links(i).tolist() for i in range(4)] == [[3], [], [1], [1, 2]] and corpus.links(3).dtype == np.uint32
    assert [corpus.linked_by(i).tolist() for i in range(4)] == [[], [2, 3], [3], [0]]
    dates = (0, 19981231, 19990101, 20100614, 20240229, 20240301, 99991231)
    assert list(map(corpus.stop, dates)) == [1, 1, 2, 2, 3, 4, 4], "a date that cuts off is a bound on numbers"


def _unordered(document: Document) -> tuple[object, ...]:
    """Returns the fields of a document, its links as a set: a corpus keeps them in the order of their dates."""
    return document.key, document.title, document.text, document.date, {*document.links}, document.facts


@given(
    numbers=st.lists(st.integers(0, 200), min_size=1, max_size=60),
    stop=st.integers(-1, 70),
    k=st.integers(0, 12),
)
def test_search_before_a_date_is_search_without_what_is_newer(numbers, stop, k, tmp_path_factory):
    papers = [
        Document(f"p{i}", f"word{n % 7}", f"word{n % 3} word{n % 5}", 20000101 + n) for i, n in enumerate(numbers)
    ]
    corpus = _built(tmp_path_factory.mktemp("c"), *papers)
    found, scores = corpus.search("word0 word1", k, stop)
    everything, all_scores = corpus.search("word0 word1", len(papers))
    assert (found.dtype, scores.dtype) == (np.int64, np.float32)
    assert found.tolist() == everything[everything < stop][:k].tolist()
    assert scores.tolist() == all_scores[everything < stop][:k].tolist()


def test_problems_of_documents_are_counted(tmp_path):
    source = InMemory(
        "test",
        [
            Document("a", "one", "x" * 100_001, 20240101, ("a", "b", "nowhere")),
            Document("a", "the same key", ""),
            Document("", "no key", ""),
            Document("two\nlines", "", ""),
            Document("b", "half a pair \ud800", "", 123456789),
        ],
    )
    corpus = Corpus(build(source, tmp_path / "test.corpus"))
    assert corpus.problems == {
        "a date that is not YYYYMMDD (taken as unknown)": 1,
        "a key that is not one line of 1 to 200 characters (left out)": 2,
        "a link to a document that is not there (left out)": 1,
        "a link to itself (left out)": 1,
        "a text of more than 100,000 characters (cut)": 1,
        "another document with the same key (left out)": 1,
    }
    assert len(corpus) == 2
    assert corpus.document(0).title == "half a pair \ufffd"
    assert len(corpus.document(1).text) == 100_000
    assert source.problems.lines()[0].endswith("'', 'two\\nlines'")


def test_a_strict_build_stops_at_the_first_problem_and_leaves_the_old_corpus(tmp_path):
    old = _built(tmp_path, *PAPERS).path.read_bytes()
    source = InMemory("test", [Document("a", "", ""), Document("a", "", "")])
    source.problems = DocumentProblems(strict=True)
    with pytest.raises(DataError, match=r"^a: another document with the same key .* --strict"):
        build(source, tmp_path / "test.corpus")
    assert (tmp_path / "test.corpus").read_bytes() == old
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".building")] == []


def test_a_source_without_documents_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"^empty: has no document$"):
        build(InMemory("empty", []), tmp_path / "test.corpus")


def test_what_a_killed_build_left_is_removed_by_the_next(tmp_path):
    class Killed(InMemory):
        def documents(self) -> Iterator[Document]:
            yield from super().documents()
            raise KeyboardInterrupt

    whole = build(InMemory("test", PAPERS), tmp_path / "whole.corpus")
    with pytest.raises(KeyboardInterrupt):
        build(Killed("test", PAPERS), tmp_path / "test.corpus")
    assert not (tmp_path / "test.corpus").exists() and not (tmp_path / ".test.corpus.building").exists()
    (tmp_path / ".test.corpus.building").mkdir()
    (tmp_path / ".test.corpus.building" / "texts").write_text("the remains of a build that was killed")
    assert build(InMemory("test", PAPERS), tmp_path / "test.corpus").read_bytes() == whole.read_bytes()
    assert not (tmp_path / ".test.corpus.building").exists()


def test_the_file_does_not_depend_on_the_order_of_documents(tmp_path):
    class Same(InMemory):
        def digest(self) -> str:
            return "same"

    one = build(Same("test", PAPERS), tmp_path / "one.corpus")
    two = build(Same("test", PAPERS[::-1]), tmp_path / "two.corpus")
    assert one.read_bytes() == two.read_bytes()


def test_a_corpus_in_the_cache_is_built_once(tmp_path, monkeypatch):
    monkeypatch.setenv("ENVSUITE_DATA", str(tmp_path))
    path = ensure_corpus(InMemory("test", PAPERS))
    before = path.stat().st_ino
    assert ensure_corpus(InMemory("test", PAPERS)) == path
    assert path.stat().st_ino == before
    assert ensure_corpus(InMemory("test", PAPERS[:2])) != path


def test_generated_corpora_take_no_more_than_their_share_of_the_disk(tmp_path, monkeypatch):
    monkeypatch.setenv("ENVSUITE_DATA", str(tmp_path))
    sources = [InMemory("test", (*PAPERS, Document(f"k{number}", "Gamma", "rays"))) for number in range(3)]
    first = open_generated(sources[0])
    size, titles = first.path.stat().st_size, _titles(first)
    monkeypatch.setattr(corpus_build, "GENERATED", 2 * size + 100)
    os.utime(first.path, ns=(1, 1))
    second = open_generated(sources[1])
    assert open_generated(sources[0]).path.is_file()  # used once more, so the other is removed
    os.utime(second.path, ns=(1, 1))
    third = open_generated(sources[2])
    assert sorted(first.path.parent.glob("*.corpus")) == sorted((first.path, third.path))
    assert not second.path.exists() and len(second.search("gamma", 3)[0]) > 0, "who has it open goes on"
    again = open_generated(sources[1])
    assert again.path == second.path and again.path.read_bytes() == build(sources[1], tmp_path / "x").read_bytes()
    assert _titles(first) == titles


def test_a_cache_that_cannot_be_made_is_named_with_the_remedy(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("ENVSUITE_DATA", str(tmp_path / "file" / "data"))
    for build_once in (open_generated, ensure_corpus):
        with pytest.raises(DataError, match=r"cannot be written .*set ENVSUITE_DATA to a folder"):
            build_once(InMemory("test", PAPERS))


def test_a_corpus_that_is_removed_before_it_is_open_is_built_again(tmp_path, monkeypatch):
    monkeypatch.setenv("ENVSUITE_DATA", str(tmp_path))
    source, removed = InMemory("test", PAPERS), []

    def late(path: Path) -> Corpus:
        if not removed:
            removed.append(path)
            path.unlink()
        return Corpus(path)

    monkeypatch.setattr(corpus_build, "Corpus", late)
    assert len(open_generated(source)) == len(PAPERS) and removed
    removed[0].write_bytes(b"damaged")
    with pytest.raises(DataError, match="is no corpus"):
        open_generated(source)


def _titles(corpus: Corpus) -> list[str]:
    return [corpus.title(number) for number in range(len(corpus))]


def test_a_corpus_goes_to_other_processes(tmp_path):
    corpus = _built(tmp_path, *PAPERS)
    assert _titles(pickle.loads(pickle.dumps(corpus))) == _titles(corpus)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_titles, (corpus,)) == _titles(corpus)


def test_other_files_are_refused(tmp_path):
    path = _built(tmp_path, *PAPERS).path
    whole = path.read_bytes()
    for content, message in (
        (b"", r"is no corpus"),
        (b"not a corpus, but longer than its end", r"is no corpus"),
        (whole[:-1], r"is no corpus, or a truncated one"),
        (whole[:-8] + b"\xff" * 8, r"holds no corpus"),
    ):
        path.write_bytes(content)
        with pytest.raises(DataError, match=message) as caught:
            Corpus(path)
        assert str(path) in str(caught.value)
        assert REMEDY in str(caught.value)
    with pytest.raises(DataError, match=r"cannot be read \(No such file"):
        Corpus(tmp_path / "none.corpus")


def test_every_damaged_byte_is_found_or_does_not_matter(tmp_path):
    corpus = _built(tmp_path, *PAPERS, tasks=({"id": "q"},))
    whole, path = corpus.path.read_bytes(), tmp_path / "damaged.corpus"
    right = _contents(corpus)
    draw = random.Random(0)
    for place in draw.sample(range(len(whole)), 400):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << draw.randrange(8)]) + whole[place + 1 :])
        try:
            assert _contents(Corpus(path)) == right
        except DataError as error:
            assert str(path) in str(error)


def _contents(corpus: Corpus) -> list[object]:
    numbers, scores = corpus.search("graphs of trees", 10)
    everything = [corpus.document(number) for number in range(len(corpus))]
    return [everything, numbers.tolist(), scores.tolist(), corpus.tasks(), [corpus.number(d.key) for d in everything]]


@pytest.mark.parametrize(
    ("text", "date"),
    [
        ("2023-03-25", 20230325), ("20230325", 20230325), ("2023/3", 20230331), ("2023-3-7", 20230307),
        (2023, 20231231), (2023.0, 20231231), ("2024-02", 20240229), ("2023-03-25T10:00:00Z", 20230325),
        ("2023-00", 20231231), ("2023-02-30", None), ("0000", None), ("2023111", None), ("soon", None), ("", None),
        (None, None), (True, None), (2023.5, None), (float("nan"), None), (float("inf"), None), ("99999", None),
        ("-2023", None),
    ],
)  # fmt: skip
def test_dates(text, date):
    assert day(text) == date


@given(st.one_of(st.text(), st.floats(), st.integers(), st.dates().map(str)))
def test_a_date_is_a_day_or_none(text):
    date = day(text)
    assert date is None or 10000 < date <= 99991231


def test_an_encyclopaedia_that_cannot_be_made_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("ENVSUITE_DATA", str(tmp_path))
    for seed in range(3):
        with pytest.raises(UsageError, match="ask for fewer questions"):
            SearchQAEnv(entities=100, questions=5000, corpus_seed=seed)
    assert len([*(tmp_path / "cache" / "corpora" / "generated").iterdir()]) <= 1, "the lock of the last one"
