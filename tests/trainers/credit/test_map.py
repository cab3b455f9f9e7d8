"""Where an environment lies on the map: distances, the nearest cell, and what is said of it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainers.credit.map import AXES, FAR, Map, Spot, best_of, describe_nearest, distance, load, nearest

MEASURES = st.fixed_dictionaries({
    "median_length": st.none() | st.floats(1.0, 100.0), "success": st.none() | st.floats(0.0, 1.0),
    "effective_decisions": st.none() | st.floats(0.0, 10.0),
})  # fmt: skip


def spot(name: str, length: float, success: float, **gain: float) -> Spot:
    """A cell whose gains are certain to a point."""
    measures = {"median_length": length, "success": success, "effective_decisions": None}
    return Spot(name, measures, {arm: (mean, mean - 1.0, mean + 1.0) for arm, mean in gain.items()})


@given(MEASURES, MEASURES)
def test_distances_are_symmetric_and_need_length_and_success(one: dict[str, float], other: dict[str, float]) -> None:
    assert distance(one, other) == distance(other, one) >= 0.0
    told_of = all(m[name] is not None for m in (one, other) for name in ("median_length", "success"))
    assert math.isfinite(distance(one, other)) == (told_of)
    if math.isfinite(distance(one, one)):
        assert distance(one, one) == 0.0


def test_a_doubling_of_the_length_is_one_and_what_is_far_is_on_no_map() -> None:
    short, long = spot("short", 8.0, 0.2, g2po=3.0), spot("long", 32.0, 0.2, g2po=-3.0, exact=9.0)
    assert distance(short.measures, long.measures) == pytest.approx(2.0 / math.sqrt(2.0))
    assert nearest([short, long], {**long.measures, "median_length": 30.0}) is long
    assert nearest([short, long], {**long.measures, "median_length": 32.0 * 2 ** (FAR * 1.5)}) is None
    assert nearest([short, long], {**long.measures, "success": 0.0}) is None
    assert best_of(short) == "g2po" and best_of(long) == "grpo"  # exact credit is nobody's


def test_a_suggestion_is_made_only_by_a_map_whose_choices_held() -> None:
    spots = [spot("short", 8.0, 0.2, g2po=3.0, exact=8.0)]
    lines = describe_nearest(Map(spots, "g2po", True, "a test"), spots[0].measures)
    assert "short" in lines[0] and "exact +8.0 [+7.0, +9.0]" in lines[0] and lines[1] == "suggested: g2po"
    assert (
        describe_nearest(Map(spots, "g2po", False, "a test"), spots[0].measures)[1] == "no method is suggested: a test"
    )
    assert len(describe_nearest(Map(spots, "g2po", True, "a test"), {})) == 1


def test_the_package_s_map_is_whole() -> None:
    atlas = load()
    assert atlas.tested and atlas.usual and (atlas.spots or describe_nearest(atlas, {}) == [])
    for one in atlas.spots:
        assert {*one.measures} == {*AXES} and distance(one.measures, one.measures) == 0.0
        assert all(low <= mean <= high for mean, low, high in one.gain.values())
        assert best_of(one) in {"grpo", *one.gain}
