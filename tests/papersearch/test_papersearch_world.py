"""Every rule of reward and penalty, computed by hand on a corpus of seven papers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from envsuite.core.errors import DataError, UsageError
from envsuite.papersearch.question import CorpusQuery
from envsuite.papersearch.selectors import ModelSelector, Selector, selector_of
from envsuite.papersearch.tasks import PaperCollection
from envsuite.papersearch.world import LONGEST_QUERY, LiteratureSearch, PaperLibrary, Rules
from envsuite.retrieval.corpus import Corpus
from envsuite.retrieval.corpus_build import build
from envsuite.retrieval.documents import Document, InMemory

SCORES = {"g1": 0.9, "g2": 0.8, "g3": 0.7, "g4": 0.005, "old": 0.4, "side": 0.6, "late": 1.0}
TITLES = {"g1": "Alpha beta", "g2": "Alpha", "g3": "Gamma", "g4": "Delta beta", "old": "Beta", "side": "Alpha omega"}


def judged(query: str, papers: Sequence[tuple[str, str]]) -> list[float]:
    """A selector with known scores."""
    keys = {title: key for key, title in TITLES.items()}
    return [SCORES[keys[title]] for title, _ in papers]


@pytest.fixture
def begin(seven: Path) -> Callable[..., LiteratureSearch]:
    def begun(selector: str | Callable[..., Any] = "gold", task: str = "q-train", **rules: Any) -> LiteratureSearch:
        collection = PaperCollection(Corpus(seven), "test")
        library = collection.library
        chosen = selector_of(selector, collection.corpus, library.words)
        return LiteratureSearch(library, chosen, replace(Rules(), **rules), collection.question(task))

    return begun


def pool(session: LiteratureSearch) -> set[str]:
    return {session.library.corpus.key(number) for number in session.pool}


def test_a_step_earns_the_three_best_scores_of_its_new_papers(begin):
    session = begin(judged, reward="step")
    # "beta" finds old (0.4), g1 (0.9) and g4 (0.005: discarded); "gamma" finds g3 (0.7); "omega" finds side (0.6).
    done = session.step([("search", "beta"), ("search", "gamma"), ("search", "omega")])
    assert done.reward == pytest.approx(0.9 + 0.7 + 0.6)
    assert pool(session) == {"old", "g1", "g3", "side"}
    # g1 leads to old (known), g2 (0.8), g3 (known), side (known); late is too new.
    assert session.step([("expand", "g1")]).reward == pytest.approx(0.8)
    assert pool(session) == {"old", "g1", "g3", "side", "g2"}
    # g2 leads to g1, old and g3, all known.
    assert session.step([("expand", "g2")]).reward == 0.0


def test_each_call_earns_the_three_best_scores_of_the_papers_that_it_finds_first(begin):
    session = begin(judged, best=2)
    # "beta" finds old (0.4), g1 (0.9) and g4 (0.005: discarded); "alpha" finds g1 again, g2 (0.8) and side (0.6).
    assert session.step([("search", "beta"), ("search", "alpha")]).reward == pytest.approx(0.9 + 0.4 + 0.8 + 0.6)
    assert begin(judged, best=2).step([("search", "alpha"), ("search", "beta")]).reward == pytest.approx(
        0.9 + 0.8 + 0.4
    )
    gold = begin("gold")
    assert gold.step([("search", "alpha beta"), ("search", "gamma")]).reward == 4.0  # g1, g2 and g4; g3
    assert pool(gold) == {"g1", "g2", "g3", "g4", "old", "side"}


@pytest.mark.parametrize("searched_last", [False, True])
def test_what_a_search_and_an_expansion_find_is_the_search_s(searched_last, begin):
    session = begin(judged, best=1)
    session.step([("search", "beta")])  # old and g1
    calls = [("search", "gamma"), ("expand", "g1")]  # g3 (0.7); g2 (0.8), g3 and side (0.6)
    assert session.step(calls[::-1] if searched_last else calls).reward == pytest.approx(0.7 + 0.8)
    session = begin(judged, best=1)
    session.step([("search", "beta")])
    calls = [("search", "alpha"), ("expand", "g1")]  # g2 and side; g2, g3 and side
    assert session.step(calls[::-1] if searched_last else calls).reward == pytest.approx(0.8 + 0.7)


def test_gold_scores_are_one_and_zero(begin):
    session = begin("gold")
    assert session.step([("search", "beta")]).reward == 2.0  # g1 and g4; old is not gold
    assert pool(session) == {"old", "g1", "g4"}  # nothing is discarded, which would tell what is gold
    assert session.step([("expand", "g1")]).reward == 2.0  # g2, g3; side is not gold
    assert session.step([("search", "omega")]).reward == 0.0


def test_at_most_three_papers_of_a_step_are_paid(begin):
    session = begin("gold", reward="step")
    assert session.step([("search", "alpha beta"), ("search", "gamma")]).reward == 3.0
    assert pool(session) == {"g1", "g2", "g3", "g4", "old", "side"}
    assert begin("gold", best=4, reward="step").step([("search", "alpha beta"), ("search", "gamma")]).reward == 4.0


def test_lexical_scores_are_the_weighted_share_of_the_querys_words(begin):
    session = begin("lexical")
    corpus = session.library.corpus
    numbers = np.array([corpus.number(key) for key in ("g1", "g2", "g3", "g4", "old", "side")])
    alpha = np.log(1 + (7 - 4 + 0.5) / (4 + 0.5))  # g1, g2, side, late
    beta = np.log(1 + (7 - 4 + 0.5) / (4 + 0.5))  # g1, g4, old, late
    assert alpha == beta
    assert session.selector.scores(session.question, numbers).tolist() == pytest.approx([1, 0.5, 0, 0.5, 0.5, 0.5])
    # g1 (1.0), old and g4 (0.5 each); g3 shares no word with the query and is discarded.
    assert session.step([("search", "beta gamma")]).reward == pytest.approx(2.0)
    assert pool(session) == {"g1", "g4", "old"}


@pytest.mark.parametrize(
    ("tool", "arguments", "reward", "error"),
    [
        ("search", ("beta", " BETA ", "Beta\n"), -0.5, "this query was searched before"),
        ("expand", ("g2", "none", "", "late", "g1 g1", "\ud800", "x" * 5_000), -0.5, "no paper with this id is in the"),
        ("search", ("", " \n\t", "x" * (LONGEST_QUERY + 1)), 0.0, "the query "),
    ],
)
def test_a_refused_call_is_charged_unless_it_has_no_query(tool, arguments, reward, error, begin):
    session = begin("gold")
    session.step([("search", "beta")])
    before = pool(session)
    for argument in arguments:
        done = session.step([(tool, argument)])
        assert done.reward == reward and len(done.errors) == 1 and done.errors[0].startswith(error)
    assert (pool(session), session.searches, session.expansions) == (before, 1, 0)


@pytest.mark.parametrize(("reward", "penalty"), [("step", 0.5), ("call", 0.0)])
def test_a_search_that_is_repeated_within_a_step_is_refused_and_charged_where_the_step_is_paid(reward, penalty, begin):
    session = begin("gold", reward=reward)
    done = session.step([("search", "beta"), ("search", "beta")])
    assert done.reward == 2.0 - penalty and len(done.errors) == 1
    assert session.step([("search", "beta"), ("search", "beta")]).reward == -1.0


@pytest.mark.parametrize("reward", ["step", "call"])
@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("query", ["nowhere", " Alpha  beta"])
def test_a_repeated_search_whose_first_found_nothing_new_is_charged_at_once_and_later(query, steps, reward, begin):
    session = begin("gold", reward=reward)
    session.step([("search", "beta alpha")])  # finds all that the second query finds
    before = pool(session)
    calls = [("search", query), ("search", query.upper())]
    earned = [session.step(some).reward for some in ([calls] if steps == 1 else [[call] for call in calls])]
    assert sum(earned) == -0.5 and pool(session) == before


def test_each_penalty_of_a_step_counts(begin):
    session = begin("gold", penalty=0.25, cost=0.1)
    session.step([("search", "delta")])
    done = session.step(
        [("search", "delta"), ("expand", "g1"), ("expand", "g4"), ("search", "omega"), ("expand", "g4")]
    )
    assert done.reward == pytest.approx(1.0 - 3 * 0.25 - 2 * 0.1)


def test_nothing_newer_than_the_query_is_found(begin):
    session = begin("gold")
    session.step([("search", "alpha beta newer")])
    session.step([("expand", "g1"), ("expand", "g2"), ("expand", "side")])
    assert "late" not in pool(session)
    undated = begin("gold", task="q-test")
    undated.step([("search", "alpha beta newer")])
    assert "late" in pool(undated)


@pytest.mark.parametrize("reward", ["step", "call"])
def test_calls_see_the_pool_as_it_was_before_the_step_in_any_order(reward, begin):
    calls = [("search", "delta"), ("expand", "g4"), ("expand", "g1"), ("search", "omega"), ("search", "delta")]
    seen = set()
    for order in permutations(calls):
        session = begin("gold", reward=reward)
        session.step([("search", "beta")])  # g1, g4 and old
        done = session.step(order)
        seen.add((done.reward, frozenset(pool(session)), tuple(sorted(done.errors)), session.key()))
    assert len(seen) == 1
    session = begin("gold", reward=reward)
    assert session.step([("search", "delta"), ("expand", "g4")]).reward == 1.0 - 0.5
    assert session.key() not in {key for *_, key in seen}


def test_metrics_are_those_of_the_papers_above_the_threshold(begin):
    session = begin(judged)
    session.step([("search", "beta"), ("search", "gamma"), ("search", "omega")])  # old .4, g1 .9, g3 .7, side .6
    metrics = session.metrics()
    assert metrics["recall_all"] == 2 / 4 and metrics["precision_all"] == pytest.approx(2 / 3)
    assert metrics["f1_all"] == pytest.approx(2 * 0.5 * (2 / 3) / (0.5 + 2 / 3))
    assert metrics["recall_20"] == metrics["recall_50"] == metrics["recall_100"] == 0.5
    assert (metrics["pool"], metrics["calls"], metrics["searches"], metrics["expansions"]) == (4, 3, 3, 0)
    strict = begin(judged, threshold=0.95)
    strict.step([("search", "beta")])
    assert strict.metrics()["f1_all"] == strict.metrics()["precision_all"] == 0.0
    assert strict.metrics()["recall_20"] == 0.25
    assert set(begin().metrics().values()) == {0.0}


def test_the_pool_is_shown_best_first_and_gold_by_words(begin):
    for selector, order in ((judged, ["g1", "g3", "side", "old"]), ("gold", ["g1", "old", "g4", "side", "g3"])):
        session = begin(selector)
        session.step([("search", "beta"), ("search", "gamma"), ("search", "omega")])
        assert [session.library.corpus.key(n) for n in session.papers[session.rank_papers()].tolist()] == order


def star(tmp_path: Path) -> PaperLibrary:
    """A paper that 40 cite, of which the last 20 are cited most, and that cites 120."""
    many = [Document(f"c{n:03}", f"Citing {n}", "Text", 20010101 + n, ("hub",)) for n in range(40)]
    fans = [
        Document(f"f{n:03}", "Fan", "Text", 20050101, tuple(f"c{m:03}" for m in range(20, 40) if m >= n))
        for n in range(40)
    ]
    old = [Document(f"r{n:03}", f"Cited {n}", "Text", 19900101) for n in range(120)]
    hub = Document("hub", "Hub", "Text", 20000101, tuple(paper.key for paper in old))
    return PaperLibrary(Corpus(build(InMemory("star", [*many, *fans, *old, hub]), tmp_path / "star.corpus")))


def test_an_expansion_returns_the_30_most_cited_citing_papers_and_99_cited_ones(tmp_path):
    library = star(tmp_path)
    corpus = library.corpus
    hub = corpus.number("hub")
    assert hub is not None
    found = [corpus.key(number) for number in library.expand(hub, 30, 99, len(corpus))]
    assert len(found) == 129
    assert found[:20] == [f"c{n:03}" for n in range(39, 19, -1)]  # c039 has 40 fans, c020 has 21
    assert found[20:30] == [f"c{n:03}" for n in range(10)]  # none has any: the older ones
    assert found[30:] == [f"r{n:03}" for n in range(99)]
    before_fans = library.expand(hub, 30, 99, corpus.stop(20040101))
    assert [corpus.key(number) for number in before_fans[:30]] == [f"c{n:03}" for n in range(30)]


def test_a_function_is_asked_once_for_each_paper(seven):
    asked: list[str] = []

    def scorer(query: str, papers: Sequence[tuple[str, str]]) -> list[float]:
        asked.extend(title for title, _ in papers)
        return [0.5] * len(papers)

    model: Selector = ModelSelector(Corpus(seven), scorer, "mine")
    question = CorpusQuery("q", "words", frozenset({1}), 0, 7)
    for numbers in ([0, 1], [1, 2], [2, 0]):
        assert model.scores(question, np.array(numbers)).tolist() == [0.5, 0.5]
    assert asked == ["Beta", "Alpha beta", "Alpha"]


@pytest.mark.parametrize("scores", [[0.5], [0.5, 1.5], [0.5, float("nan")], [-0.1, 0.5]])
def test_a_function_that_returns_no_scores_is_refused(scores, seven):
    with pytest.raises(UsageError, match="a number from 0 to 1"):
        ModelSelector(Corpus(seven), lambda query, papers: scores, "mine").scores(
            CorpusQuery("q", "words", frozenset({1}), 0, 7), np.array([0, 1])
        )


QUERY = {"id": "q", "text": "t", "gold": ["x"], "date": 0, "kind": "k", "split": "test"}


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ([], "has no queries"),
        ([{"id": "q", "text": "t"}], "not a query on papers"),
        ([{**QUERY, "split": "dev"}], "not a query on papers"),
        ([{**QUERY, "gold": ["x", "y"]}], r"gold papers of q are not there.*\['y'\]"),
    ],
)
def test_a_corpus_without_queries_or_their_gold_is_refused(tasks, message, tmp_path):
    path = build(InMemory("one", [Document("x", "T", "A")], tasks), tmp_path / "one.corpus")
    with pytest.raises(DataError, match=message):
        PaperCollection(Corpus(path), "test").question("q")
