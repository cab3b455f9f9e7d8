"""``envsuite fuse``: weights of two searches, fitted to judged queries."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import envsuite  # noqa: F401
from envsuite.cli import main
from envsuite.evaluation.fuse_command import FOLDS, SHARES, described, fit
from envsuite.papersearch.literature import Literature
from envsuite.retrieval.corpus import Corpus
from envsuite.retrieval.corpus_build import build
from envsuite.retrieval.documents import Found
from envsuite.retrieval.hybrid import Hybrid
from envsuite.retrieval.judging import Judged, average_precision, judged, ndcg, recall
from envsuite.retrieval.lsa import Lsa
from envsuite.retrieval.retrievers import retriever_of


class Noisy:
    """Finds the query's number and 19 others, whose scores a seed draws."""

    def __init__(self, name: str, good: Callable[[int], float]) -> None:
        self.name, self._good = name, good

    def _scores(self, query: str) -> np.ndarray:
        number = int(query)
        scores = np.random.default_rng([number, len(self.name)]).random(20) * 0.99 + 0.01
        scores[number % 20] = max(1e-3, scores[number % 20] * (1 - self._good(number)) + self._good(number))
        return scores.astype(np.float32)

    def search(self, query: str, k: int, stop: int | None = None) -> Found:
        scores = self._scores(query)
        numbers = np.argsort(-scores, kind="stable")[:k]
        return numbers, scores[numbers]


def queries(count: int) -> list[Judged]:
    return [Judged(str(number), frozenset([number % 20]), None) for number in range(count)]


def test_a_weight_is_judged_only_on_queries_that_it_was_not_fitted_to() -> None:
    fitted = fit([Noisy("a", lambda n: 0.3), Noisy("bb", lambda n: 0.5)], queries(60))
    for fold in range(FOLDS):
        others = [place for place in range(60) if place % FOLDS != fold]
        means = fitted.gains[:, others].mean(axis=1)
        best = [row for row in range(len(SHARES)) if means[row] == means.max()]
        row = min(best, key=lambda row: abs(SHARES[row] - 0.5))
        assert np.array_equal(fitted.crossed[fold::FOLDS], fitted.gains[row, fold::FOLDS])
    assert SHARES.index(fitted.share) in np.flatnonzero(fitted.gains.mean(axis=1) == fitted.gains.mean(axis=1).max())


def test_gains_are_those_of_the_searches_alone_and_of_their_fusion() -> None:
    parts = [Noisy("a", lambda n: 0.3), Noisy("bb", lambda n: 0.5)]
    fitted = fit(parts, queries(30))
    for place, query in enumerate(queries(30)):
        alone = [ndcg(part.search(query.text, 10)[0], query.gold) for part in parts]
        assert [fitted.gains[0, place], fitted.gains[-1, place]] == alone
        for row in (1, 10, 19):
            hybrid = Hybrid(parts, (1 - SHARES[row], SHARES[row]))
            assert fitted.gains[row, place] == ndcg(hybrid.search(query.text, 10)[0], query.gold)


def test_a_search_that_finds_nothing_of_use_gets_no_weight_and_costs_nothing() -> None:
    fitted = fit([Noisy("a", lambda n: 1.0), Noisy("bb", lambda n: -1.0)], queries(60))
    assert fitted.gains[0].mean() == 1 and np.array_equal(fitted.crossed, fitted.better)
    worse = fit([Noisy("bb", lambda n: -1.0), Noisy("a", lambda n: 0.9)], queries(60))
    assert worse.share > 0.5 and worse.better.mean() == worse.gains[-1].mean()


def test_the_description_leaves_out_a_search_without_weight() -> None:
    assert described(["bm25", "lsa"], 0.0) == '"bm25"' and described(["bm25", "lsa"], 1.0) == '"lsa"'
    assert json.loads(described(["bm25", "lsa"], 0.35)) == {"fuse": ["bm25", "lsa"], "weights": [0.65, 0.35]}
    inner = '{"search-r1": "http://w"}'
    assert json.loads(described(["bm25", inner], 0.5))["fuse"] == ["bm25", {"search-r1": "http://w"}]


def test_measures_by_hand() -> None:
    found, gold = np.array([4, 7, 1, 9]), frozenset([7, 9, 5])
    assert recall(found, gold, 2) == 1 / 3 and recall(found, gold, 9) == 2 / 3
    ideal = 1 + 1 / np.log2(3) + 1 / np.log2(4)
    assert ndcg(found, gold) == pytest.approx((1 / np.log2(3) + 1 / np.log2(5)) / ideal)
    assert ndcg(found, gold, 2) == pytest.approx(1 / np.log2(3) / (1 + 1 / np.log2(3)))
    assert average_precision(found, gold) == pytest.approx((1 / 2 + 2 / 4) / 3)
    assert ndcg(found[:0], gold) == recall(found[:0], gold, 5) == average_precision(found[:0], gold) == 0


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("fuse") / "literature.corpus"
    return build(Literature(1500, 0), path, encoders=[Lsa(32)])


def test_the_command_prints_a_search_that_its_environment_takes(
    corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fuse", str(corpus), "bm25", "lsa"]) == 0
    out = capsys.readouterr().out
    assert f"{len(judged(Corpus(corpus), 'train'))} queries" in out
    description = out.splitlines()[-1].removeprefix("retriever: ")
    assert retriever_of(Corpus(corpus), json.loads(description)).search("learning", 3)
    env = gymnasium.make("PaperSearch-v0", source=str(corpus), retriever=json.loads(description))
    assert env.reset()[1]["versions"]["search"]


def test_a_split_with_too_few_tasks_is_told_which_there_are(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuse", str(corpus), "bm25", "lsa", "--split", "dev"]) == 2
    assert "has 0 judged tasks in the split 'dev'" in (err := capsys.readouterr().err) and "train: " in err
    assert main(["fuse", str(corpus), "bm25", "minilm"]) == 2
    assert "Known: bm25, lsa" in capsys.readouterr().err


def test_judged_queries_have_the_gold_papers_before_their_date(corpus: Path) -> None:
    opened = Corpus(corpus)
    tasks = [task for task in opened.tasks() if task["split"] == "train"]
    for query, task in zip(judged(opened, "train"), tasks, strict=True):
        assert query.text == task["text"] and {opened.key(number) for number in query.gold} == {*task["gold"]}
        assert query.stop == (opened.stop(task["date"]) if task["date"] else None)
