"""Groups are whole when their last episode has ended, whatever the order; failures are counted while they last."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trainers.rollout.episode import EpisodePlan
from trainers.rollout.ledger import Ledger
from trainers.steps import Episode


def _episode(plan: EpisodePlan) -> Episode:
    return Episode(
        plan.episode_id, plan.group_id, "X-v0", "task", "", "train", "", (), terminated=True, truncated=False,
        success=False, score=0.0,
    )  # fmt: skip


@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=5), draws=st.randoms(use_true_random=False))
def test_a_group_is_whole_with_its_last_episode_and_in_the_order_of_its_plans(sizes: list[int], draws: object) -> None:
    plans = [EpisodePlan(10 * group + n, group, 0, "task") for group, size in enumerate(sizes) for n in range(size)]
    draws.shuffle(plans)  # type: ignore[attr-defined]
    ledger = Ledger(attempts=2)
    ledger.add(plans)
    left, order = dict(enumerate(sizes)), list(plans)
    draws.shuffle(order)  # type: ignore[attr-defined]
    for number, plan in enumerate(order, 1):
        before = len(ledger.groups)
        ledger.enter(_episode(plan))
        left[plan.group_id] -= 1
        assert ledger.ended == number and len(ledger.groups) == before + (left[plan.group_id] == 0)
    for group in ledger.groups:
        (number,) = {episode.group_id for episode in group}
        assert [e.episode_id for e in group] == [plan.episode_id for plan in plans if plan.group_id == number]


def test_an_episode_is_started_as_often_as_it_may_fail_and_survives_the_losses_of_others() -> None:
    ledger, plan = Ledger(attempts=3), EpisodePlan(0, 0, 0, "task")
    ledger.add([plan])
    assert [ledger.failed(0, collateral=True) for _ in range(7)] == [True] * 7
    assert [ledger.failed(0, collateral=False) for _ in range(3)] == [True, True, False]
    assert not ledger.failed(0, collateral=True)
    ledger.enter(_episode(plan))
    ledger.add([plan])
    assert ledger.failed(0, collateral=False), "an episode of a later rollout begins anew"
