"""The pool of groups between rollout and update."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from accelerate import Accelerator
from episodes import episode, step
from hypothesis import given
from hypothesis import strategies as st

from envsuite.core.errors import DataError, UsageError
from envsuite.playing.engine import EngineFailed
from envsuite.playing.episode import EpisodePlan
from envsuite.playing.step import Episode
from trainers.policy.stateful import StateMismatch
from trainers.run.features.staleness.groups import GroupPool
from trainers.run.tensors import with_tensors, without_tensors

SIZE = 3


def _pool(tasks: int = 2, staleness: int = 1) -> GroupPool:
    pool = GroupPool(Accelerator(cpu=True), tasks, staleness)
    pool.record_version(0)
    return pool


def _groups(first: int, count: int) -> list[tuple[int, list[EpisodePlan]]]:
    return [
        (group, [EpisodePlan(group * SIZE + i, group, 0, f"task {group}", steps=group or None) for i in range(SIZE)])
        for group in range(first, first + count)
    ]


def _episode(plan: EpisodePlan, versions: list[int], error: str | None = None) -> Episode:
    """An episode with a step for each version, of two tokens."""
    steps = (step(t, policy_version=v, valid=False, reward=0.5, info={"a": [1, "é"]}) for t, v in enumerate(versions))
    return episode(plan.episode_id, *steps, group_id=plan.group_id, task_id=plan.task_id, error=error)


def _restored(pool: GroupPool, into: GroupPool) -> GroupPool:
    """A pool from the state of another, by way of what a checkpoint writes."""
    tensors: dict[str, object] = {}
    body = without_tensors(pool.state(), "", tensors)  # type: ignore[arg-type]
    into.load(with_tensors(body, tensors))  # type: ignore[arg-type]
    return into


@given(st.integers(0, 3), st.integers(1, 4), st.integers(0, 2**32), st.booleans())
def test_groups_are_taken_once_in_order_and_never_too_old_whatever_ends_first(staleness, tasks, seed, interrupted):
    """Episodes end in any order; each token is sampled by the weights of some version since its group was started."""
    rng, pool = random.Random(seed), _pool(tasks, staleness)
    started, version, taken = 0, 0, []
    begun: dict[int, list[int]] = {}  # versions of the tokens of running episodes
    for _ in range(7):
        version += rng.choice((1, 3))  # optimiser steps of the update
        pool.record_version(version)
        begun |= {plan.episode_id: [] for plan in pool.start(_groups(started, pool.room))}
        started = max(begun, default=-1) // SIZE + 1
        assert len(pool) == pool.capacity, "as many as may be, and no more"
        while pool.lacking(pool.first(tasks)):
            for plan in rng.sample(pool.open_plans(), rng.randint(1, len(pool.open_plans()))):
                begun[plan.episode_id].append(version)
                if rng.random() < 0.3:
                    pool.enter(_episode(plan, begun[plan.episode_id], "lost" if rng.random() < 0.1 else None))
            if interrupted and rng.random() < 0.1:
                before, pool = pool.open_plans(), _restored(pool, GroupPool(pool.accelerator, tasks, staleness))
                assert pool.open_plans() == before
                begun |= {plan.episode_id: [] for plan in pool.open_plans()}  # they are played again
        numbers = pool.first(tasks)
        assert pool.too_old(numbers) == []
        assert all(0 <= pool.age(number) <= staleness for number in numbers)
        taken += pool.take(numbers)
    assert [episode.episode_id for episode in taken] == list(range(7 * tasks * SIZE)), "each once, in order"


def test_an_episode_is_not_taken_twice_nor_one_that_nobody_started():
    pool = _pool()
    first, *_ = pool.start(_groups(0, 2))
    pool.enter(_episode(first, [0]))
    with pytest.raises(UsageError, match="episode 0 of group 0 has ended twice"):
        pool.enter(_episode(first, [0]))
    for stranger in (EpisodePlan(99, 0, 0, "a"), EpisodePlan(0, 7, 0, "a")):
        with pytest.raises(UsageError, match="not one that is played"):
            pool.enter(_episode(stranger, [0]))
    with pytest.raises(UsageError, match="group 1 was started twice"):
        pool.start(_groups(1, 1))
    pool.take([0])
    with pytest.raises(UsageError, match="not one that is played"):
        pool.enter(_episode(first, [0]))


@pytest.mark.parametrize("versions", [[3, 4], [4, 9]])
def test_weights_that_are_older_than_a_group_or_newer_than_any_are_noticed(versions):
    pool = _pool()
    pool.record_version(4)
    first, second, *_ = pool.start(_groups(0, 1))
    pool.record_version(6)
    pool.enter(_episode(second, [4, 6]))
    with pytest.raises(EngineFailed, match=r"stale weights: .* version 4 before it and 6 last"):
        pool.enter(_episode(first, versions))
    pool.enter(_episode(first, versions, error="its environment crashed"))  # it is not trained on


def test_a_group_is_as_old_as_its_oldest_token_in_updates_that_changed_the_weights():
    pool = _pool(tasks=1, staleness=3)
    for plan, versions in zip(pool.start(_groups(0, 1)), ([0, 5], [5], [0]), strict=True):
        if 5 in versions:
            pool.record_version(5)
        pool.enter(_episode(plan, versions))
    assert pool.age(0) == 1
    pool.record_version(5)  # an update that changed nothing
    assert pool.age(0) == 1
    pool.record_version(6)
    pool.record_version(9)
    assert pool.age(0) == 3 and pool.too_old([0]) == []
    pool.record_version(10)
    assert pool.too_old([0]) == [0]


def test_groups_that_no_update_used_are_put_back_to_their_places():
    pool = _pool(tasks=2)
    for plan in pool.start(_groups(0, 4)):
        if plan.group_id != 3:
            pool.enter(_episode(plan, [0]))
    before, (first, *_) = pool.state(), pool.take([1])
    pool.take([0, 2])
    assert pool.first(4) == [3] and pool.room == 3
    pool.put_back()
    assert pool.first(4) == [0, 1, 2, 3] and pool.state()["groups"] == before["groups"] and pool.whole == 3
    assert pool.take([1])[0] == first
    pool.use()
    pool.put_back()
    assert pool.first(4) == [0, 2, 3], "what an update used stays away"


def test_a_state_holds_finished_episodes_and_gives_the_plans_of_all_others_back():
    pool = _pool()
    plans = pool.start(_groups(0, 3))
    ended = [_episode(plans[i], [0]) for i in (0, 1, 2, 5, 6)]
    for one in ended:
        pool.enter(one)
    again = _restored(pool, _pool())
    assert again.open_plans() == pool.open_plans() == [plans[i] for i in (3, 4, 7, 8)]
    assert again.whole == pool.whole == 1 and again.ended == 0
    assert [replace(e, steps=()) for e in again.take([0])] == [replace(e, steps=()) for e in ended[:3]]
    pool.take([0])
    empty = _restored(_pool(), _pool())
    assert len(empty) == 0 and empty.open_plans() == []


def test_a_pool_whose_staleness_was_lowered_says_which_groups_are_too_old():
    pool = _pool(tasks=1, staleness=2)
    for plan in pool.start(_groups(0, 2)):
        pool.enter(_episode(plan, [0]))
    pool.record_version(1)
    pool.start(_groups(2, 1))
    pool.record_version(2)
    lower = _restored(pool, GroupPool(pool.accelerator, 1, 1))
    lower.record_version(2)
    assert lower.room == 0 and lower.too_old(lower.first(3)) == [0, 1]
    lower.take([0, 1])
    assert lower.room == 1 and [plan.group_id for plan in lower.open_plans()] == [2] * SIZE


def test_a_damaged_state_is_refused():
    pool = _pool()
    pool.enter(_episode(pool.start(_groups(0, 1))[0], [0]))
    state = pool.state()
    with pytest.raises(StateMismatch, match="episode 0 is of group 0, which is not there"):
        _pool().load({**state, "groups": []})
    with pytest.raises(DataError, match="the checkpoint's episodes: truncated, damaged"):
        _pool().load({**state, "episodes": [np.frombuffer(b"PAR1 and nothing more", np.uint8)]})
