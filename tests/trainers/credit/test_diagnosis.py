"""What a diagnosis measures, in worlds whose truth is known.

Where an environment lies on the map: distances, the nearest cell, and what is said of it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from episodes import token_table
from hypothesis import given, settings
from hypothesis import strategies as st
from step_tables import step_tables

from envsuite.core.errors import DataError
from trainers.credit.diagnosis import (
    LEVEL,
    MEASURES,
    Measure,
    beyond_chance,
    diagnose,
    explained_squares,
    in_halves,
    states_apart,
    token_overlap,
    untold,
)
from trainers.credit.map import AXES, FAR, Map, Spot, best_of, describe_nearest, distance, load, nearest
from trainers.steps import StepTable

Row = tuple[str, str, float]
"""State key, action, reward."""
Play = Callable[[np.random.Generator], list[Row]]


def played(groups: Sequence[Sequence[Sequence[Row]]], prompts: Sequence[Sequence[int]] | None = None) -> StepTable:
    """Steps of groups of episodes; an episode whose rewards add up to more than 0 has succeeded."""
    rows = [
        (group, 100 * group + number, t, *row, sum(reward for _, _, reward in episode) > 0)
        for group, episodes in enumerate(groups)
        for number, episode in enumerate(episodes)
        for t, row in enumerate(episode)
    ]
    group, episode, t, key, action, reward, won = map(list, zip(*rows, strict=True))
    texts = prompts or [[1, 2]] * len(rows)
    return token_table(
        [(text, (3,)) for text in texts], group_id=np.array(group), episode_id=np.array(episode), t=np.array(t),
        reward=np.array(reward, float), state_key=np.array(key, object),
        extra={"action": np.array(action, object), "success": np.array(won)},
    )  # fmt: skip


def of_world(play: Play, groups: int, size: int, seed: int = 0) -> StepTable:
    """Groups of episodes of a world."""
    rng = np.random.default_rng(seed)
    return played([[play(rng) for _ in range(size)] for _ in range(groups)])


def corridor(length: int, decisive: Sequence[int], right: float, ends: bool, chance: float = 1.0) -> Play:
    """A corridor in which a wrong action at a decisive place is final; the last step then pays nothing."""

    def play(rng: np.random.Generator) -> list[Row]:
        alive, rows = True, list[Row]()
        for place in range(length):
            action = "right" if rng.random() < right else str(rng.choice(["left", "ahead"]))
            rows.append((f"place {place}, {alive}", action, 0.0))
            alive = alive and (action == "right" or place not in decisive)
            if ends and not alive:
                break
        key, action, _ = rows[-1]
        rows[-1] = key, action, float(alive and rng.random() < chance)
        return rows

    return play


def value(measures: dict[str, Measure], name: str) -> float:
    found = measures[name].value
    assert found is not None, name
    return found


@pytest.mark.seconds
@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize(("decisive", "right"), [((4,), 0.7), ((1, 3, 6), 0.8), (range(8), 0.9)])
def test_with_enough_episodes_the_decisive_steps_of_a_success_are_those_of_the_corridor(decisive, right, ends):
    found = diagnose(of_world(corridor(8, decisive, right, ends), 24, 120))
    assert value(found, "decisive_of_success") == pytest.approx(len(decisive), abs=0.5)
    assert value(found, "decisive_place") == pytest.approx((np.mean(decisive) + 0.5) / 8, abs=0.1) or ends


def test_where_no_action_matters_no_step_is_decisive():
    found = [diagnose(of_world(corridor(8, (), 0.6, False, chance=0.5), 16, 8, seed)) for seed in range(12)]
    steps = [value(one, "decisive_steps") for one in found]
    assert abs(np.mean(steps)) < 3 * np.std(steps) / np.sqrt(len(steps)) + 0.05 and np.mean(np.abs(steps)) < 0.6
    assert abs(np.mean([value(one, "action_variance") for one in found])) < 0.02
    assert all(one["effective_decisions"].value is None for one in found), "nothing is clear enough to be counted"
    inside = [(one["decisive_steps"].interval or (1.0, 0.0)) for one in found]
    assert sum(low <= 0.0 <= high for low, high in inside) >= 9, "the interval has the truth in it"


@pytest.mark.seconds
def test_few_episodes_find_half_of_the_decisive_steps_and_larger_groups_find_them_all():
    world = corridor(12, (0, 6, 11), 0.8, True)
    few, many = (
        np.mean([value(diagnose(of_world(world, *shape, seed)), "decisive_of_success") for seed in range(3)])
        for shape in ((16, 8), (16, 64))
    )
    assert 1.2 < few < 1.8 and 2.7 < many < 3.3, "of 3; docs/diagnose.md says so"
    assert "at least" in MEASURES["decisive_of_success"][1]


@pytest.mark.seconds
@pytest.mark.parametrize(("decisive", "right"), [((4,), 0.8), ((0, 6, 11), 0.8), ((0, 2, 4, 6, 8, 10), 0.9)])
def test_the_spread_of_returns_tells_how_many_decisions_there_are_where_a_count_does_not_yet(decisive, right):
    found = [diagnose(of_world(corridor(12, decisive, right, True), 16, 16, seed)) for seed in range(4)]
    measures = [one["effective_decisions"] for one in found]
    assert np.median([one.value for one in measures]) == pytest.approx(len(decisive), rel=0.3)
    bounds = [one.interval or (0.0, 0.0) for one in measures]
    assert sum(low - 1e-9 <= len(decisive) <= high + 1e-9 for low, high in bounds) >= 3
    assert all(value(one, "decisive_of_success") < len(decisive) + 0.5 for one in found)


def test_a_group_whose_numerator_alone_is_known_is_in_the_interval_too():
    measure = Measure("effective_decisions", np.array([*[1.0] * 18, 0.5, -0.1]), np.array([*[1.0] * 18, 0.0, 0.0]))
    assert measure.value == pytest.approx(18.4 / 18)
    low, high = measure.interval or (0.0, 0.0)
    assert low < 18.4 / 18 < high
    few = Measure("effective_decisions", np.array([1.0, 1.0, 0.5]), np.array([1.0, 1.0, 0.0]))
    assert few.value == 1.25 and few.interval is None, "a draw may have the last group alone"


def test_unequal_decisions_count_as_fewer():
    def play(rng: np.random.Generator) -> list[Row]:
        good, little = rng.random() < 0.5, rng.random() < 0.5
        return [("door", str(good), 0.0), (f"room {good}", str(little), float(good) + 0.2 * float(little))]

    found = diagnose(of_world(play, 20, 40))
    weights = np.array([1.0, 0.04])  # variances of the two choices
    assert value(found, "effective_decisions") == pytest.approx(weights.sum() ** 2 / (weights**2).sum(), abs=0.03)
    assert value(found, "decisive_steps") == pytest.approx(2.0, abs=0.1), "though each changes the return"


@settings(max_examples=25)
@given(st.lists(st.sampled_from([0.0, 1.0, 2.5]), min_size=6, max_size=6))
def test_the_variance_between_parts_is_estimated_without_bias(values):
    cell, part = np.zeros(6, np.int64), np.array([0, 0, 1, 1, 1, 1])
    every = [in_halves(np.array(one), cell, part, np.ones(6, np.bool_)) for one in set(permutations(values))]
    assert np.mean([one for one, _ in every]) == pytest.approx(0.0, abs=1e-9)
    assert all(other.tolist() == [0.0] for _, other in every), "of no rows"
    apart = np.array([0.0, 0.0, 3.0, 3.0, 3.0, 3.0])
    (found,), _ = in_halves(apart, cell, part, np.ones(6, np.bool_))
    assert found == pytest.approx(6 * np.var(apart))


def diamond(rng: np.random.Generator) -> list[Row]:
    """Two ways to one room, in which a coin decides: the way does not matter."""
    way = str(rng.choice(["upper", "lower"]))
    detour = [(way, "on", 0.0)] * int(rng.integers(1, 3))
    return [("door", way, 0.0), *detour, ("room", "on", 0.0), ("exit", "on", float(rng.random() < 0.5))]


def wings(rng: np.random.Generator) -> list[Row]:
    """Two halls, each before two rooms of the same names: of the right hall's 1 in 10 succeed, of the left one's 9."""
    left = rng.random() < 0.5
    won = float(rng.random() < (0.9 if left else 0.1))
    rooms = [("room 0", "on", 0.0), ("room 1", "on", won)]
    return [("door", "left" if left else "right", 0.0), ("left hall" if left else "right hall", "on", 0.0), *rooms]


def test_where_keys_are_states_nothing_is_hidden():
    found = [diagnose(of_world(diamond, 8, 16, seed)) for seed in range(20)]
    for name in ("alias_step", "alias_previous", "alias_history"):
        values = [value(one, name) for one in found]
        assert abs(np.mean(values)) < 3 * np.std(values) / np.sqrt(len(values)), name
    straight = diagnose(of_world(corridor(5, (2,), 0.7, True), 4, 8))
    assert straight["alias_history"].value is None, "each state has one past"


def test_equal_keys_of_different_states_are_seen_by_what_came_before():
    found = diagnose(of_world(wings, 16, 32))
    assert value(found, "alias_history") == pytest.approx(0.16 / 0.25, abs=0.1), "between the wings, of all"
    assert value(found, "alias_previous") == pytest.approx(0.16 / 0.25, abs=0.1), "the hall before the first room"
    assert found["alias_step"].value is None, "all episodes are at the same step there"
    low, high = found["alias_history"].interval or (0.0, 0.0)
    assert 0.3 < low < high < 0.9


@settings(max_examples=25)
@given(st.lists(st.sampled_from([0.0, 1.0, 2.5]), min_size=3, max_size=6), st.data())
def test_over_all_assignments_chance_explains_nothing(values, data):
    part = np.array(data.draw(st.lists(st.integers(0, 2), min_size=len(values), max_size=len(values))))
    cell = np.zeros(len(values), np.int64)
    every = [explained_squares(np.array(one), cell, part) for one in permutations(values)]
    assert np.mean([beyond for beyond, _ in every]) == pytest.approx(0.0, abs=1e-9)
    assert all(beyond <= most + 1e-9 for beyond, most in every)


@pytest.mark.parametrize("values", [(0, 0, 1, 1, 1), (0, 1, 2, 3, 4), (0, 0, 0, 0, 1)])
def test_over_all_assignments_a_test_counts_nothing(values):
    every = np.array(list(permutations(values)), float)
    cell = np.repeat(np.arange(len(every)), 5)
    weight = beyond_chance(every.ravel(), cell, np.tile([0, 0, 1, 1, 1], len(every)))
    assert weight.mean() == pytest.approx(0.0, abs=0.02)
    assert weight.min() >= -LEVEL / (1 - LEVEL) - 1e-9 and weight.max() <= 1.0


@settings(max_examples=25)
@given(step_tables())
def test_neither_the_order_of_rows_nor_the_names_of_states_matter(steps):
    order = np.random.default_rng(len(steps)).permutation(len(steps))
    names = {"a": "z", "b": "y", "c": "x"}
    other = replace(steps, state_key=np.array([names[key] for key in steps.state_key], object)).take(order)
    one, two = diagnose(steps), diagnose(other)
    assert one.keys() == two.keys() <= MEASURES.keys()
    for name, measure in one.items():
        np.testing.assert_allclose(measure.totals, two[name].totals, atol=1e-9, err_msg=name)
        np.testing.assert_allclose(measure.counts, two[name].counts, atol=1e-9, err_msg=name)


def test_the_plain_measures_of_two_groups_by_hand():
    first = [[("s", "a", 0.0), ("u", "a", 0.0), ("s", "b", 3.0)], [("s", "b", 1.0), ("v", "a", 0.0)]]
    second = [[("s", "a", 0.0), ("s", "a", 0.0)], [("s", "a", 0.0)]]
    found = diagnose(played([first, second]))
    expected = {
        "success": 2 / 4, "return": 1.0, "zero_variance_groups": 1 / 2, "episode_length": 2, "median_length": 2,
        "longest_episode": 3, "late_reward": 3 / 4, "repeated_states": 6 / 8, "singletons": 2 / 8,
        "state_group_size": 8 / 4, "cycles": 1 / 8, "stays": 1 / 8, "valid_actions": 1,
        "response_length": 1, "prompt_length": 2,
        "within_variance": 2 / 6 * 3 / 2, "other_prompts": 0.0, "prompt_overlap": 1.0,
    }  # fmt: skip
    assert {name: value(found, name) for name in expected} == pytest.approx(expected)
    assert found["success"].interval == pytest.approx((0.02, 0.98), abs=0.03), "Wilson's, of two tasks"


def test_prompts_have_in_common_what_they_have():
    steps = token_table([((1, 2), (9,)), ((1, 2), (9,)), ((2, 1, 1, 3, 4), (9,))], state_key=np.array([*"abc"], object))
    assert token_overlap(steps, np.array([0, 1])).tolist() == [1.0]
    assert token_overlap(steps, states_apart(steps)).tolist() == [1.0, 0.5, 0.5]
    assert len(states_apart(steps, 2)) == 2
    pairs = diagnose(played([[[("s", "a", 1.0)]] * 3], [[1], [1], [2]]))["other_prompts"]
    assert pairs.value == pytest.approx(2 / 3)


def test_what_cannot_be_told_is_said_with_the_reason():
    won, lost = [("s", "a", 0.0), ("t", "a", 1.0)], [("s", "b", 0.0), ("u", "a", 0.0)]
    cases = {
        "played once: .* raise rollout.group_size": [[won], [lost]],
        "no episode succeeded in 4, .* which steps decide.* easier tasks": [[lost] * 2] * 2,
        "all of 4 episodes succeeded, .* harder tasks": [[won] * 2] * 2,
        "4 episodes, and the returns of each group are equal": [[won] * 2, [lost] * 2],
        "no episode succeeded in 3: .* on the way": [[lost, lost, [("s", "a", -1.0)]]],
        "acted differently and earned differently: .* larger groups": [[won, [("v", "a", 0.0)]]],
    }
    for said, groups in cases.items():
        (line,) = untold(diagnose(played(groups)))
        assert re.search(said, line), line
    assert not untold(diagnose(played([[won, won, lost, lost]])))
    with pytest.raises(DataError, match="no step to measure"):
        diagnose(token_table([]))


MEASUREMENTS = st.fixed_dictionaries({
    "median_length": st.none() | st.floats(1.0, 100.0), "success": st.none() | st.floats(0.0, 1.0),
    "effective_decisions": st.none() | st.floats(0.0, 10.0),
})  # fmt: skip


def spot(name: str, length: float, success: float, **gain: float) -> Spot:
    """A cell whose gains are certain to a point."""
    measures = {"median_length": length, "success": success, "effective_decisions": None}
    return Spot(name, measures, {arm: (mean, mean - 1.0, mean + 1.0) for arm, mean in gain.items()})


@given(MEASUREMENTS, MEASUREMENTS)
def test_distances_are_symmetric_and_need_length_and_success(one, other):
    assert distance(one, other) == distance(other, one) >= 0.0
    told_of = all(m[name] is not None for m in (one, other) for name in ("median_length", "success"))
    assert math.isfinite(distance(one, other)) == (told_of)
    if math.isfinite(distance(one, one)):
        assert distance(one, one) == 0.0


def test_a_doubling_of_the_length_is_one_and_what_is_far_is_on_no_map():
    short, long = spot("short", 8.0, 0.2, g2po=3.0), spot("long", 32.0, 0.2, g2po=-3.0, exact=9.0)
    assert distance(short.measures, long.measures) == pytest.approx(2.0 / math.sqrt(2.0))
    assert nearest([short, long], {**long.measures, "median_length": 30.0}) is long
    assert nearest([short, long], {**long.measures, "median_length": 32.0 * 2 ** (FAR * 1.5)}) is None
    assert nearest([short, long], {**long.measures, "success": 0.0}) is None
    assert best_of(short) == "g2po" and best_of(long) == "grpo"  # exact credit is nobody's


def test_a_suggestion_is_made_only_by_a_map_whose_choices_held():
    spots = [spot("short", 8.0, 0.2, g2po=3.0, exact=8.0)]
    lines = describe_nearest(Map(spots, "g2po", True, "a test"), spots[0].measures)
    assert "short" in lines[0] and "exact +8.0 [+7.0, +9.0]" in lines[0] and lines[1] == "suggested: g2po"
    assert (
        describe_nearest(Map(spots, "g2po", False, "a test"), spots[0].measures)[1] == "no method is suggested: a test"
    )
    assert len(describe_nearest(Map(spots, "g2po", True, "a test"), {})) == 1


def test_the_package_s_map_is_whole():
    atlas = load()
    assert atlas.tested and atlas.usual and (atlas.spots or describe_nearest(atlas, {}) == [])
    for one in atlas.spots:
        assert {*one.measures} == {*AXES} and distance(one.measures, one.measures) == 0.0
        assert all(low <= mean <= high for mean, low, high in one.gain.values())
        assert best_of(one) in {"grpo", *one.gain}
