from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsuite.core.errors import UnknownName, UsageError
from trainers.credit.estimators.gigpo import GiGPO
from trainers.credit.estimators.returns import discounted_returns, episode_returns
from trainers.credit.scorers import Exact
from trainers.credit.scpo import SCPO, failure_table, match_credit
from trainers.steps import Ragged, StepTable
from trainers.steps.columns import STEP_SCORE
from trainers.steps.table import MissingColumn

Played = tuple[int, float, list[str | None]]
"""group, return, texts of the steps."""


def table(episodes: list[Played], lengths: list[int] | None = None) -> StepTable:
    rows = [(e, t) for e, (_, _, texts) in enumerate(episodes) for t in range(len(texts))]
    tokens = Ragged.of([[0] * n for n in lengths or [1] * len(rows)], np.int64)
    keys, column = np.empty(len(rows), object), np.empty(len(rows), object)
    keys[:] = ["s"] * len(rows)
    column[:] = [episodes[e][2][t] for e, t in rows]
    return StepTable(
        group_id=np.array([episodes[e][0] for e, _ in rows], np.int64),
        episode_id=np.array([e for e, _ in rows], np.int64),
        t=np.array([t for _, t in rows], np.int64),
        reward=np.array([episodes[e][1] if t == len(episodes[e][2]) - 1 else 0.0 for e, t in rows]),
        state_key=keys,
        valid=np.ones(len(rows), np.bool_),
        prompt=tokens,
        response=tokens,
        logprob=tokens,
        extra={"step_text": column},
    )


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
    np.testing.assert_allclose(discounted_returns(shaped, 1.0), [1, 1, 1, 0, 0.5, 0, 0.5])
    np.testing.assert_array_equal(episode_returns(shaped), episode_returns(steps))


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
    np.testing.assert_array_equal(SCPO(order="chronological").credit(steps.take(order), Exact()), credit[order])


@given(tables())
def test_with_weight_zero_the_advantage_under_it_stays_what_it_is(steps: StepTable):
    np.testing.assert_array_equal(GiGPO()(SCPO(alpha=0.0)(steps)).per_step, GiGPO()(steps).per_step)


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
    np.testing.assert_allclose(alone, [1 / 3, 0.0, 1.0])


def test_after_a_mismatch_matching_goes_on_where_the_reference_repeats_itself():
    own = np.array([[float(a == b) for b in "abac"] for a in "abac"])
    assert failure_table(own, 0.5) == [-1, -1, 0, -1]
    # "aba" then "b": back to the beginning "a", after which "b" matches again, then "a", "c".
    similarity = [[float(a == b) for b in "abc"] for a in "abac"]
    taken = ["abc".index(text) for text in "ababac"]
    assert match_credit(similarity, failure_table(own, 0.5), taken, threshold=0.5, base=0.0) == [1, 1, 1, 0, 0, 1]


def test_an_empty_reference_or_an_empty_failed_episode_credits_nothing():
    steps = table([(0, 1.0, [None]), (0, 0.0, ["a"]), (1, 1.0, ["a"]), (1, 0.0, [None, None])])
    assert not SCPO().credit(steps, Exact()).any()


def test_two_shapers_of_returns_to_go_add_up():
    steps = table([(0, 1.0, ["key"]), (0, 0.0, ["key"])])
    assert SCPO(alpha=0.5)(SCPO(alpha=0.25)(steps)).extra[STEP_SCORE].tolist() == [0.0, 0.75]


def test_a_missing_column_is_named_with_what_supplies_it():
    with pytest.raises(MissingColumn, match="scpo needs the column 'step_text', which the rollout supplies"):
        SCPO()(replace(table([(0, 1.0, ["a"])]), extra={}))


def test_settings_that_mean_nothing_are_refused():
    with pytest.raises(UnknownName, match="unknown scorer 'exakt'"):
        SCPO(scorer="exakt")
    with pytest.raises(UnknownName, match="scpo order 'random'"):
        SCPO(order="random")
    with pytest.raises(UsageError, match=r"base is 1\.0"):
        SCPO(base=1.0)
    with pytest.raises(UsageError, match=r"alpha is -1\.0"):
        SCPO(alpha=-1.0)
