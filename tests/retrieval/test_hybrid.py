from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsuite.core.errors import UnknownName, UsageError
from envsuite.retrieval.documents import Found
from envsuite.retrieval.hybrid import Fusion, Hybrid, fuse_rankings

rankings = st.lists(st.lists(st.integers(0, 12), unique=True, max_size=10), min_size=1, max_size=3)


class Fixed:
    """Finds the same documents for every query."""

    def __init__(self, name: str, *numbers: int) -> None:
        self.name, self.numbers = name, numbers

    def search(self, query: str, k: int, stop: int | None = None) -> Found:
        kept = [number for number in self.numbers if stop is None or number < stop][:k]
        return np.array(kept, dtype=np.int64), np.linspace(1, 0.5, len(kept), dtype=np.float32)


class Table:
    """Scores document i with the i-th number, and finds those that have one."""

    def __init__(self, scores: Sequence[float | None], name: str = "table") -> None:
        self.name = name
        self.table = {number: score for number, score in enumerate(scores) if score is not None}

    def search(self, query: str, k: int, stop: int | None = None) -> Found:
        found = [number for number in self.table if stop is None or number < stop]
        order = sorted(found, key=lambda number: (-self.table[number], number))[:k]
        return np.array(order, dtype=np.int64), np.array([self.table[number] for number in order], dtype=np.float32)


Row = list[float | None]
tables = st.integers(1, 12).flatmap(
    lambda size: st.tuples(
        *[st.lists(st.sampled_from([None, 0, 1, 2, 3, 7, 16, 64]), min_size=size, max_size=size)] * 2
    )
)


def by_hand(rows: Sequence[Row], weights: Sequence[float], depth: int, stop: int | None) -> list[tuple[int, float]]:
    """The weighted mean, document by document, of what is between the lowest and the highest score of each search."""
    parts = []
    for row in rows:
        found = sorted(((-score, i) for i, score in enumerate(row[:stop]) if score is not None))[:depth]
        low, high = (-found[-1][0], -found[0][0]) if found else (0.0, 0.0)
        parts.append({i: (-score - low) / (high - low) if high > low else 1.0 for score, i in found})
    shares = [weight / sum(weights) for weight in weights]
    total = {
        i: float(np.float32(sum(share * part.get(i, 0.0) for share, part in zip(shares, parts, strict=True))))
        for i in {*parts[0], *parts[1]}
    }
    return sorted(total.items(), key=lambda one: (-one[1], one[0]))


def listed(found: Found) -> list[tuple[int, float]]:
    assert found[0].dtype == np.int64 and found[1].dtype == np.float32
    return list(zip(found[0].tolist(), found[1].tolist(), strict=True))


@given(tables, st.integers(0, 15), st.integers(1, 15), st.none() | st.integers(0, 14))
def test_a_convex_fusion_equals_the_weighted_mean_computed_document_by_document_in_either_order(
    rows: tuple[Row, Row], k: int, depth: int, stop: int | None
) -> None:
    parts = [Table(row) for row in rows]
    expected = by_hand(rows, (1, 3), max(depth, k), stop)[:k]
    assert listed(Hybrid(parts, (1, 3), depth=depth).search("", k, stop)) == expected
    assert listed(Hybrid(parts[::-1], (3, 1), depth=depth).search("", k, stop)) == expected


@given(tables, st.sampled_from(["convex", "rrf"]), st.integers(0, 14))
def test_a_cut_off_hides_every_later_document(rows: tuple[Row, Row], fusion: Fusion, stop: int) -> None:
    parts = [Table(row) for row in rows]
    cut = Hybrid([Table(row[:stop]) for row in rows], fusion=fusion).search("", 12)
    assert listed(Hybrid(parts, fusion=fusion).search("", 12, stop)) == listed(cut)


def test_searches_that_are_composed_in_other_ways_have_other_names() -> None:
    one, two, three = (Fixed(name, 1, 2) for name in ("one", "two", "three"))
    inner = Hybrid([two, three], (1, 2))
    composed = [
        Hybrid([one, two], (3, 1)),
        Hybrid([one, two, three]),
        Hybrid([Hybrid([one, two]), three]),
        Hybrid([one, inner]),
        Hybrid([one, inner], fusion="rrf"),
    ]
    assert [search.name for search in composed] == [
        "3*one+1*two", "one+two+three", "(one+two)+three", "one+(1*two+2*three)", "rrf(one+(1*two+2*three))",
    ]  # fmt: skip


def test_scores_of_a_fusion_by_ranks_by_hand() -> None:
    hybrid = Hybrid([Fixed("one", 5, 3, 9), Fixed("two", 3, 7)], fusion="rrf")
    numbers, scores = hybrid.search("", 10)
    assert hybrid.name == "rrf(one+two)" and numbers.tolist() == [3, 5, 7, 9]
    assert np.allclose(scores, [1 / 62 + 1 / 61, 1 / 61, 1 / 62, 1 / 63], rtol=1e-6)
    hybrid = Hybrid([Fixed("one", 1, 2), Fixed("two", 2, 1)], weights=(3, 1), fusion="rrf", constant=1, name="mine")
    numbers, scores = hybrid.search("", 1)
    assert hybrid.name == "mine" and numbers.tolist() == [1] and scores.tolist() == pytest.approx([3 / 2 + 1 / 3])


@given(rankings, st.integers(0, 15))
def test_a_fusion_is_the_sum_over_the_rankings_whatever_their_order(found: list[list[int]], k: int) -> None:
    scores: dict[int, float] = {}
    for ranking in found:
        for rank, number in enumerate(ranking, 1):
            scores[number] = scores.get(number, 0) + 1 / (60 + rank)
    expected = sorted(scores, key=lambda number: (-np.float32(scores[number]), number))[:k]
    for order in itertools.permutations(found):
        arrays = [np.array(ranking, dtype=np.int64) for ranking in order]
        assert fuse_rankings(arrays, [1.0] * len(found), 60, k)[0].tolist() == expected


def test_a_hybrid_that_makes_no_sense_is_an_error() -> None:
    one = Fixed("one", 1)
    with pytest.raises(UsageError):
        Hybrid([])
    with pytest.raises(UnknownName, match="'rrf'"):
        Hybrid([one], fusion="rff")  # type: ignore[arg-type]
    for weights in ((1.0, 1.0), (0.0,), (float("nan"),), (float("inf"),)):
        with pytest.raises(UsageError, match="positive weight"):
            Hybrid([one], weights)
    for constant, depth in ((-1, 1), (60, 0)):
        with pytest.raises(UsageError, match="at least 0 and 1"):
            Hybrid([one], constant=constant, depth=depth)
