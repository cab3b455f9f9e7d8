from __future__ import annotations

import contextlib
import json
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from answering import Answer, answering
from hypothesis import given, settings
from hypothesis import strategies as st

from envsuite.retrieval import servers
from envsuite.retrieval.servers import JsonServer, SearchR1, ServerError

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


plain = st.none() | st.booleans() | st.integers(-3, 70) | st.integers() | st.floats() | st.text('07ab\n"é', max_size=4)
some = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner), max_leaves=6
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
