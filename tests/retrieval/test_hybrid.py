from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from envsuite.core.errors import UsageError
from envsuite.retrieval.documents import Found
from envsuite.retrieval.hybrid import Hybrid, Reranked, fused

rankings = st.lists(st.lists(st.integers(0, 12), unique=True, max_size=10), min_size=1, max_size=3)


class Fixed:
    """Finds the same documents for every query."""

    def __init__(self, name: str, *numbers: int) -> None:
        self.name, self.numbers = name, numbers

    def search(self, query: str, k: int, stop: int | None = None) -> Found:
        kept = [number for number in self.numbers if stop is None or number < stop][:k]
        return np.array(kept, dtype=np.int64), np.linspace(1, 0.5, len(kept), dtype=np.float32)


def test_scores_of_a_fusion_by_hand() -> None:
    hybrid = Hybrid([Fixed("one", 5, 3, 9), Fixed("two", 3, 7)])
    numbers, scores = hybrid.search("", 10)
    assert hybrid.name == "one+two"
    assert numbers.tolist() == [3, 5, 7, 9]
    assert np.allclose(scores, [1 / 62 + 1 / 61, 1 / 61, 1 / 62, 1 / 63], rtol=1e-6)
    assert numbers.dtype == np.int64 and scores.dtype == np.float32


def test_weights_and_constant_by_hand() -> None:
    hybrid = Hybrid([Fixed("one", 1, 2), Fixed("two", 2, 1)], weights=(3, 1), constant=1, name="mine")
    numbers, scores = hybrid.search("", 1)
    assert hybrid.name == "mine" and numbers.tolist() == [1] and scores.tolist() == pytest.approx([3 / 2 + 1 / 3])


def test_equal_scores_come_in_the_order_of_numbers() -> None:
    hybrid = Hybrid([Fixed("one", 8, 4), Fixed("two", 4, 8)])
    assert hybrid.search("", 5)[0].tolist() == [4, 8]
    assert Hybrid([Fixed("one", 8), Fixed("two", 4), Fixed("three", 6)]).search("", 2)[0].tolist() == [4, 6]


def test_depth_limits_what_each_search_contributes_and_a_cut_off_reaches_them() -> None:
    parts = [Fixed("one", 1, 2, 3), Fixed("two", 4, 3, 2)]
    assert set(Hybrid(parts, depth=1).search("", 1)[0].tolist()) == {1}
    assert sorted(Hybrid(parts, depth=1).search("", 9, 4)[0].tolist()) == [1, 2, 3]
    assert Hybrid(parts).search("", 0)[0].tolist() == []
    assert Hybrid([Fixed("none")]).search("", 3)[0].tolist() == []


@given(rankings, st.integers(0, 15))
def test_a_fusion_is_the_sum_over_the_rankings_whatever_their_order(found: list[list[int]], k: int) -> None:
    scores: dict[int, float] = {}
    for ranking in found:
        for rank, number in enumerate(ranking, 1):
            scores[number] = scores.get(number, 0) + 1 / (60 + rank)
    expected = sorted(scores, key=lambda number: (-np.float32(scores[number]), number))[:k]
    for order in itertools.permutations(found):
        arrays = [np.array(ranking, dtype=np.int64) for ranking in order]
        assert fused(arrays, [1.0] * len(found), 60, k)[0].tolist() == expected


def test_a_hybrid_that_makes_no_sense_is_an_error() -> None:
    one = Fixed("one", 1)
    with pytest.raises(UsageError):
        Hybrid([])
    for weights in ((1.0, 1.0), (0.0,), (float("nan"),)):
        with pytest.raises(UsageError, match="positive weight"):
            Hybrid([one], weights)
    for constant, depth in ((-1, 1), (60, 0)):
        with pytest.raises(UsageError, match="at least 0 and 1"):
            Hybrid([one], constant=constant, depth=depth)


class Longest:
    """Prefers long texts."""

    name = "longest"

    def scores(self, query: str, texts: list[str]) -> NDArray[np.float32]:
        return np.array([len(text) for text in texts], dtype=np.float32)


def test_a_reranker_orders_the_first_and_leaves_the_rest_behind_them() -> None:
    reranked = Reranked(Fixed("one", 1, 30, 200, 20, 5000), Longest(), str, depth=3)  # type: ignore[arg-type]
    assert reranked.name == "one>longest"
    numbers, scores = reranked.search("", 5)
    assert numbers.tolist() == [200, 30, 1, 20, 5000] and scores.tolist() == [3, 2, 1, 1, 1]
    assert reranked.search("", 1)[0].tolist() == [200]
    assert reranked.search("", 5, 31)[0].tolist() == [20, 30, 1]
    assert Reranked(Fixed("none"), Longest(), str).search("", 5)[0].tolist() == []  # type: ignore[arg-type]
