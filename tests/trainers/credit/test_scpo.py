from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from step_tables import table_of

from trainers.credit.estimators.gigpo import GiGPO
from trainers.credit.estimators.returns import discounted_returns, episode_returns
from trainers.credit.scorers import Exact
from trainers.credit.scpo import SCPO, failure_table, match_credit
from trainers.steps import StepTable
from trainers.steps.columns import STEP_SCORE

Played = tuple[int, float, list[str | None]]
"""group, return, texts of the steps."""


def table(episodes: list[Played], lengths: list[int] | None = None) -> StepTable:
    rows = [(g, e, t, total * (t == len(texts) - 1), "s", True)
            for e, (g, total, texts) in enumerate(episodes) for t in range(len(texts))]  # fmt: skip
    texts = np.array([*(text for _, _, texts in episodes for text in texts), None], object)[:-1]
    return table_of(rows, lengths or [1] * len(rows)).with_columns(step_text=texts)


@st.composite
def tables(draw: st.DrawFn) -> StepTable:
    texts = st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=5)
    episodes = draw(st.lists(st.tuples(st.integers(0, 1), st.sampled_from([0.0, 1.0]), texts), min_size=1, max_size=6))
    count = sum(len(texts) for _, _, texts in episodes)
    return table(episodes, draw(st.lists(st.integers(0, 3), min_size=count, max_size=count)))


def test_a_failed_episode_is_credited_for_what_the_successful_one_did_too():
    steps = table([(0, 1.0, ["key", "door", "room"]), (0, 0.0, ["lamp", "key", "key", "door"])])
    assert SCPO(order="chronological").credit(steps, Exact()).tolist() == [0, 0, 0, 0, 1, 0, 1]
    shaped = SCPO(order="chronological", alpha=0.5)(steps)
    assert_allclose(discounted_returns(shaped, 1.0), [1, 1, 1, 0, 0.5, 0, 0.5])
    assert_array_equal(episode_returns(shaped), episode_returns(steps))


def test_without_monotonicity_every_match_is_credited():
    steps = table([(0, 1.0, ["key", "door", "room"]), (0, 0.0, ["key", "key", "door"])])
    once = SCPO(order="chronological").credit(steps, Exact())
    always = SCPO(order="chronological", monotonic=False).credit(steps, Exact())
    assert once.tolist() == [0, 0, 0, 1, 0, 1] and always.tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize(("order", "credit"), [("chronological", [0, 1]), ("longest_first", [1, 1])])
def test_the_order_in_which_steps_are_taken_decides_what_gets_further(order: Any, credit: list[int]):
    steps = table([(0, 1.0, ["key", "door", "room"]), (0, 0.0, ["door", "key"])], [1, 1, 1, 1, 5])
    assert SCPO(order=order).credit(steps, Exact())[3:].tolist() == credit


@pytest.mark.parametrize(("reference", "rows"), [("longest", [1, 2, 3]), ("shortest", [0])])
def test_the_reference_is_the_longest_success_or_the_shortest(reference: Any, rows: list[int]):
    steps = table([(0, 1.0, ["a"]), (0, 1.0, ["a", "b", None]), (0, 1.0, ["c", "d", "e"]), (0, 0.0, ["a"])])
    ((own, lost),) = SCPO(reference=reference).references(steps)
    assert own.tolist() == rows and [part.tolist() for part in lost] == [[7]]


@given(tables())
def test_successes_and_groups_without_one_get_no_credit(steps: StepTable):
    credit, returns = SCPO().credit(steps, Exact()), episode_returns(steps)
    assert (credit[returns > 0] == 0).all()
    for group in np.unique(steps.group_id):
        inside = steps.group_id == group
        if not (returns[inside] > 0).any():
            assert (credit[inside] == 0).all()
    assert (credit[[text is None for text in steps.extra["step_text"]]] == 0).all()


@given(tables())
def test_a_failed_episode_is_credited_at_most_once_for_each_step_of_the_reference(steps: StepTable):
    estimator = SCPO()
    credit = estimator.credit(steps, Exact())
    for own, failed in estimator.references(steps):
        for rows in failed:
            assert (credit[rows] > 0).sum() <= len(own)


@given(tables(), st.integers(0, 1000))
def test_permuting_the_rows_permutes_the_credit(steps: StepTable, seed: int):
    order = np.random.default_rng(seed).permutation(len(steps))
    credit = SCPO(order="chronological").credit(steps, Exact())
    assert_array_equal(SCPO(order="chronological").credit(steps.take(order), Exact()), credit[order])


@given(tables())
def test_with_weight_zero_the_advantage_under_it_stays_what_it_is(steps: StepTable):
    assert_array_equal(GiGPO()(SCPO(alpha=0.0)(steps)).per_step, GiGPO()(steps).per_step)


@given(tables())
def test_the_scorer_is_asked_once_for_each_pair_of_texts(steps: StepTable):
    asked: list[tuple[str, str]] = []

    def score(pairs: Any) -> np.ndarray:
        asked.extend(pairs)
        return Exact()(pairs)

    SCPO().credit(steps, score)
    assert len(asked) == len(set(asked))


def test_credit_grows_from_the_base_to_one():
    alone = [match_credit([[0.6, 0.4, 1.0]], [-1], [text], threshold=0.3, base=0.4)[0] for text in range(3)]
    assert_allclose(alone, [1 / 3, 0.0, 1.0])


def test_after_a_mismatch_matching_goes_on_where_the_reference_repeats_itself():
    own = np.array([[float(a == b) for b in "abac"] for a in "abac"])
    assert failure_table(own, 0.5) == [-1, -1, 0, -1]
    # "aba" then "b": back to the beginning "a", after which "b" matches again, then "a", "c".
    similarity = [[float(a == b) for b in "abc"] for a in "abac"]
    taken = ["abc".index(text) for text in "ababac"]
    assert match_credit(similarity, failure_table(own, 0.5), taken, threshold=0.5, base=0.0) == [1, 1, 1, 0, 0, 1]


def test_two_shapers_of_returns_to_go_add_up():
    steps = table([(0, 1.0, ["key"]), (0, 0.0, ["key"])])
    assert SCPO(alpha=0.5)(SCPO(alpha=0.25)(steps)).extra[STEP_SCORE].tolist() == [0.0, 0.75]
