from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsuite.retrieval import hybrid
from envsuite.retrieval.documents import Found
from envsuite.retrieval.hybrid import Hybrid


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


def by_hand(rows: Sequence[Row], depth: int, stop: int | None) -> list[tuple[int, float]]:
    """The mean, document by document, of what is between the lowest and the highest score of each search."""
    parts = []
    for row in rows:
        found = sorted(((-score, i) for i, score in enumerate(row[:stop]) if score is not None))[:depth]
        low, high = (-found[-1][0], -found[0][0]) if found else (0.0, 0.0)
        parts.append({i: (-score - low) / (high - low) if high > low else 1.0 for score, i in found})
    total = {i: float(np.float32(sum(part.get(i, 0.0) for part in parts) / 2)) for i in {*parts[0], *parts[1]}}
    return sorted(total.items(), key=lambda one: (-one[1], one[0]))


def listed(found: Found) -> list[tuple[int, float]]:
    assert found[0].dtype == np.int64 and found[1].dtype == np.float32
    return list(zip(found[0].tolist(), found[1].tolist(), strict=True))


@given(tables, st.integers(0, 15), st.integers(1, 15), st.none() | st.integers(0, 14))
def test_a_fusion_equals_the_mean_computed_document_by_document_in_either_order(
    rows: tuple[Row, Row], k: int, depth: int, stop: int | None
) -> None:
    parts = [Table(row) for row in rows]
    expected = by_hand(rows, max(depth, k), stop)[:k]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hybrid, "DEPTH", depth)
        assert listed(Hybrid(parts).search("", k, stop)) == expected
        assert listed(Hybrid(parts[::-1]).search("", k, stop)) == expected


@given(tables, st.integers(0, 14))
def test_a_cut_off_hides_every_later_document(rows: tuple[Row, Row], stop: int) -> None:
    cut = Hybrid([Table(row[:stop]) for row in rows]).search("", 12)
    assert listed(Hybrid([Table(row) for row in rows]).search("", 12, stop)) == listed(cut)


def test_a_fusion_is_named_after_its_searches() -> None:
    assert Hybrid([Table([1], "one"), Table([2], "two")]).name == "one+two"
