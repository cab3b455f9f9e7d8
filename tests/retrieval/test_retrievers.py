"""Searches by description, and searches by other servers."""

from __future__ import annotations

import contextlib
import json
import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import yaml
from answering import Answer, answering
from hypothesis import given, settings
from hypothesis import strategies as st
from vector_files import Drawn

from envsuite.core.errors import DataError, EnvsuiteError, MissingExtra, UnknownName, UsageError
from envsuite.retrieval import servers, vectors
from envsuite.retrieval.approximate import build_index
from envsuite.retrieval.corpus import Corpus
from envsuite.retrieval.corpus_build import build
from envsuite.retrieval.documents import Document, InMemory
from envsuite.retrieval.retrievers import (
    DescribedSearch,
    SearchCache,
    parse_search,
    vectors_of,
)
from envsuite.retrieval.sentence import SentenceEncoder
from envsuite.retrieval.servers import JsonServer, SearchR1, ServerError

BM25, DRAWN = DescribedSearch("bm25"), DescribedSearch("drawn")
SAME = {
    "bm25": BM25,
    " drawn ": DRAWN,
    ' {"faiss": "papers.faiss", "vectors": "drawn"}': DescribedSearch(faiss="papers.faiss", vectors="drawn"),
    '{"search-r1": "http://wiki:8000"}': DescribedSearch(url="http://wiki:8000"),
}


@pytest.mark.parametrize("text", SAME)
def test_a_description_is_the_same_as_text_in_json_and_in_yaml(text):
    given = json.loads(text) if "{" in text else text
    assert (
        parse_search(text) == parse_search(given) == parse_search(yaml.safe_load(yaml.safe_dump(given))) == SAME[text]
    )


@pytest.mark.parametrize(
    "given, error, message",
    [
        ("", UsageError, "search is ''; give a name such as bm25"),
        ("{", UsageError, "not JSON"),
        (7, UsageError, "search is 7; give a name"),
        ({}, UsageError, "one of the keys faiss, search-r1; this one has none"),
        ({"fais": "a"}, UsageError, "this one has fais"),
        ({"faiss": "a"}, UsageError, "search: 'faiss' needs 'vectors', too"),
        ({"faiss": "a", "vector": "drawn"}, UnknownName, "Nearest: 'vectors'"),
        ({"faiss": "a\0b", "vectors": "drawn"}, UsageError, r"search\.faiss"),
        ({"search-r1": "db:6333"}, UsageError, r"search\.search-r1: url is 'db:6333'"),
        ({"search-r1": "http://u:secret@w"}, UsageError, r"search\.search-r1: url of w has a password"),
    ],
)
def test_a_description_of_another_form_is_told_where_and_what_to_write(given, error, message):
    with pytest.raises(error, match=message) as caught:
        parse_search(given)
    assert "secret" not in str(caught.value)


keys = st.sampled_from(["faiss", "vectors", "search-r1"])
plain = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["bm25", "drawn", "a+b", "http://w", ""])
)
anything = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys | st.text(max_size=2), inner, max_size=4)
)


@settings(max_examples=300)
@given(anything)
def test_anything_is_a_search_or_an_error_of_the_user_also_as_text(given):
    found = []
    for description in (given, json.dumps(given) if isinstance(given, Mapping) else given):
        try:
            search = parse_search(description)
        except EnvsuiteError as error:
            found.append(None)
            assert str(error)
        else:
            found.append(search)
            files, addresses = search.reads()
            assert all(isinstance(one, str) and one for one in (*files, *addresses))
    assert found[0] == found[1]


def test_what_a_search_reads_is_its_file_or_address():
    assert parse_search({"faiss": "f", "vectors": "v"}).reads() == (("f",), ())
    assert parse_search({"search-r1": "http://q"}).reads() == ((), ("http://q",))
    assert parse_search("drawn").reads() == ((), ())


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corpus]:
    animals = "cat dog horse cow goat sheep duck goose owl crow".split()
    pages = [
        Document(f"{one}-{other}", f"{one} and {other}", f"the {one} meets the {other}", date)
        for date, (one, other) in enumerate(((a, b) for a in animals for b in animals if a < b), 20200101)
    ]
    path = tmp_path_factory.mktemp("corpus") / "animals.corpus"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vectors, "open_encoder", lambda facts: Drawn(8))
        yield Corpus(build(InMemory("animals", pages), path, encoders=[Drawn(8)]))


def test_the_searches_of_a_corpus_are_those_that_are_described(corpus, tmp_path):
    dense = vectors_of(corpus, "drawn")
    assert parse_search("bm25").open(corpus) is corpus
    found = parse_search("drawn").open(corpus)
    assert found.name == dense.name
    for mine, theirs in zip(found.search("owl and duck", 5, 30), dense.search("owl and duck", 5, 30), strict=True):
        assert mine.tolist() == theirs.tolist()
    assert parse_search({"search-r1": "http://127.0.0.1:1"}).open(corpus).name == "search-r1", (
        "asked when there is a query"
    )
    for name in ("bm52", "bm25+drawn"):
        with pytest.raises(UnknownName, match=r"animals\.corpus.*Known: "):
            parse_search(name).open(corpus)


def test_environments_share_a_search_however_they_describe_it(corpus):
    shared = SearchCache(corpus, "own", lambda _, search: [search])  # type: ignore[arg-type, return-value]
    assert shared("bm25") == "own"
    server = {"search-r1": "http://w"}
    assert shared("drawn") is shared(" drawn ")
    assert shared(server) is shared(json.dumps(server))
    search = parse_search("drawn").open(corpus)
    assert shared(search) == [search] and shared(search) is not shared(search)
    for other in (["bm25", "drawn"], None, 7, object()):
        with pytest.raises(UsageError, match="give a name such as bm25, or a mapping"):
            shared(other)  # type: ignore[arg-type]


def test_an_index_of_faiss_is_opened_from_its_file(corpus, tmp_path):
    pytest.importorskip("faiss", reason="needs faiss: pip install 'envsuite[faiss]'")
    path = build_index(vectors_of(corpus, "drawn"), tmp_path / "animals.faiss")
    found = parse_search({"faiss": path, "vectors": "drawn"}).open(corpus)
    assert found.name == "drawn-ivf"
    assert found.search("owl", 5)[0].tolist() == parse_search("drawn").open(corpus).search("owl", 5)[0].tolist()
    with pytest.raises(DataError, match="cannot be read"):
        parse_search({"faiss": str(tmp_path / "none"), "vectors": "drawn"}).open(corpus)


def test_without_its_package_an_encoder_is_told_how_to_install_it(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(MissingExtra, match=r"pip install 'envsuite\[embeddings\]'"):
        SentenceEncoder(tmp_path)


Serve = Callable[[Answer], str]
DOCUMENTS = 60


def number_of(key: str) -> int | None:
    return int(key) if key.isdecimal() and int(key) < DOCUMENTS else None


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Starts a server that answers by a function; returns its address."""
    monkeypatch.setattr(servers, "PAUSE", 0.01)
    with contextlib.ExitStack() as stack:
        yield lambda answer: stack.enter_context(answering(answer))


def search_r1(ranking: list[dict[str, Any]]) -> Answer:
    """A server of Search-R1's protocol that finds the same for every query."""

    def answer(method: str, path: str, body: Any) -> tuple[int, object]:
        assert (method, path) == ("POST", "/retrieve") and body["return_scores"] is True
        rows = [{"document": document, "score": 1 - i / 1000} for i, document in enumerate(ranking[: body["topk"]])]
        return (200, {"result": [rows for _ in body["queries"]]})

    return answer


def test_search_r1_finds_documents_by_id_and_by_title_and_leaves_out_others(serve):
    ranking = [
        {"id": "7", "contents": '"Seven"\ntext'},
        {"id": "x", "contents": '"9"\ntext'},
        {"title": "3", "text": "three"},
        {"id": "elsewhere", "contents": ""},
        {"id": "7", "contents": ""},
    ]
    search = SearchR1(JsonServer(serve(search_r1(ranking))), number_of)
    numbers, scores = pickle.loads(pickle.dumps(search)).search("q", 10)
    assert numbers.tolist() == [7, 9, 3] and np.allclose(scores, [1, 0.999, 0.998])
    assert search.search("q", 1)[0].tolist() == [7] and search.search("q", 0)[0].tolist() == []


def test_search_r1_asks_for_more_until_enough_are_before_the_cut_off(serve):
    url = serve(search_r1([{"id": str(number)} for number in range(59, -1, -1)]))
    search = SearchR1(JsonServer(url), number_of)
    assert search.search("q", 3, stop=20)[0].tolist() == [19, 18, 17]
    assert search.search("q", 100, stop=2)[0].tolist() == [1, 0]


def test_a_request_is_tried_again_while_the_server_is_busy(serve):
    left = [503, 429, 500]

    def busy(*_: object) -> tuple[int, object]:
        return (left.pop(), b"busy") if left else (200, {"result": [[]]})

    assert SearchR1(JsonServer(serve(busy)), number_of).search("q", 5)[0].tolist() == []
    left = [503] * 9
    with pytest.raises(ServerError, match=r"does not answer \(HTTP 503: busy; 2 tries\)"):
        SearchR1(JsonServer(serve(busy), tries=2), number_of).search("q", 5)


def test_silence_ends_at_the_limit(serve):
    answered = threading.Event()

    def silent(*_: object) -> tuple[int, object]:
        answered.wait(60)
        return (200, {})

    began = time.monotonic()
    with pytest.raises(ServerError, match="timed out; 2 tries"):
        JsonServer(serve(silent), seconds=0.05, tries=2).ask("POST", "/retrieve", {})
    assert time.monotonic() - began < 30
    answered.set()


def test_where_no_server_runs_the_error_says_so():
    with pytest.raises(ServerError, match="Does the server run there"):
        JsonServer("http://127.0.0.1:1", tries=1).ask("GET", "/")


@pytest.mark.parametrize(
    "answer",
    [
        (200, b"<html>"),
        (404, b'{"detail": "not found"}'),
        (200, {"result": [[{"document": {"id": "1"}, "score": "high"}]]}),
        (200, b'{"result": [[{"document": {}, "score": 1e999}]]}'),
        (200, {"result": [[{"document": {"id": "1"}, "score": True}]]}),
        (200, {"result": [[{"document": [["id", "1"]], "score": 1}]]}),
        (200, {"result": [[{"document": {"title": 3}, "score": 1}]]}),
        (200, {"result": [[{"document": {"id": "elsewhere"}, "score": 1}]]}),
    ],
)
def test_an_answer_of_another_form_is_an_error_that_names_the_server(serve, answer):
    url = serve(lambda *_: answer)
    with pytest.raises(ServerError, match=url):
        SearchR1(JsonServer(url), number_of).search("q", 3)


class Said(JsonServer):
    """Answers every request with the same bytes."""

    def __init__(self, content: bytes) -> None:
        super().__init__("http://said")
        self.content = content

    def _exchange(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        return 200, self.content


scalars = (
    st.none() | st.booleans() | st.integers(-3, 70) | st.integers() | st.floats() | st.text('07ab\n"é', max_size=4)
)
some = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner), max_leaves=6
)


def near(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Objects with these fields, of which some are missing or hold anything."""
    return some | st.fixed_dictionaries({}, optional={name: field | some for name, field in fields.items()})


documents = near(id=st.integers(0, 70).map(str), title=st.text(max_size=3), contents=st.text(max_size=8))
rows = st.lists(near(document=documents, score=st.floats(0, 1)), max_size=4)
answers = st.binary(max_size=40) | st.one_of(some, near(result=st.lists(rows, min_size=1, max_size=1))).map(
    lambda value: json.dumps(value).encode()
)


@settings(max_examples=300)
@given(answers, st.integers(0, 5), st.none() | st.integers(0, 70))
def test_whatever_a_server_answers_is_a_ranking_of_documents_before_the_cut_off_or_an_error(content, k, stop):
    try:
        numbers, scores = SearchR1(Said(content), number_of).search("q", k, stop)
    except ServerError as error:
        assert "http://said" in str(error)
        return
    found = numbers.tolist()
    assert len(found) == len(scores) == len(set(found)) <= k and np.isfinite(scores).all()
    assert all(0 <= number < (DOCUMENTS if stop is None else stop) for number in found)
    assert found == [found[i] for i in np.lexsort((numbers, -scores)).tolist()]
