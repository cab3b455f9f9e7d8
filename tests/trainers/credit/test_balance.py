"""The balance of an update over processes: who computes which episode, and what is exchanged for it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ranks import on_ranks
from tiny_runs import model, step_table
from update_cases import exchanged

from trainers.policy.balance import EpisodeWork, attention_span, spread_episodes
from trainers.policy.packing import micro_batches

SIZE = 61
work = st.integers(0, 2**32 - 1).map(np.random.default_rng).map(lambda rng: _work(rng, int(rng.integers(1, 40))))


def _work(rng: np.random.Generator, count: int) -> EpisodeWork:
    group = rng.integers(0, 6, count)
    first = rng.integers(0, 300, 6)
    return EpisodeWork(
        rank=group % 4, part=rng.integers(0, 2, count), group=group, episode=np.arange(count), shared=first[group],
        own=rng.integers(1, 1 + int(rng.choice([10, 1000])), count),
    )  # fmt: skip


def loads(work: EpisodeWork, rank: np.ndarray, part: int, ranks: int) -> list[int]:
    """Tokens of each process in a minibatch, added up one by one."""
    found = [0] * ranks
    begun = set()
    for i in range(len(rank)):
        if work.part[i] == part:
            found[rank[i]] += int(work.own[i])
            if (rank[i], work.group[i]) not in begun:
                begun.add((rank[i], work.group[i]))
                found[rank[i]] += int(work.shared[i])
    return found


@given(work, st.integers(4, 6))
def test_no_other_place_for_an_episode_of_the_slowest_process_saves_a_hundredth(work: EpisodeWork, ranks: int) -> None:
    rank = spread_episodes(work, ranks)
    assert ((rank >= 0) & (rank < ranks)).all()
    for part in np.unique(work.part).tolist():
        before, after = (loads(work, of, part, ranks) for of in (work.rank, rank))
        assert max(after) <= max(before)
        slowest, least = after.index(max(after)), after.index(min(after))
        for i in np.flatnonzero((work.part == part) & (rank == slowest)):
            moved = rank.copy()
            moved[i] = least
            new = loads(work, moved, part, ranks)
            assert max(new[slowest], new[least]) >= 0.99 * max(after)


@given(work)
def test_what_is_even_stays_where_it_is(work: EpisodeWork) -> None:
    rank = spread_episodes(work, 4)
    there = EpisodeWork(rank, work.part, work.group, work.episode, work.shared, work.own)
    assert spread_episodes(there, 4).tolist() == rank.tolist()
    assert spread_episodes(work, 4).tolist() == rank.tolist(), "and every process finds the same"


def test_a_group_stays_together_where_that_is_as_good() -> None:
    group = np.array([0, 0, 1, 1, 2, 2, 3, 3])
    same = np.zeros(8, np.int64)
    work = EpisodeWork(same, same, group, np.arange(8), same + 500, same + 10)
    assert [len(set(spread_episodes(work, 2)[group == of].tolist())) for of in range(4)] == [1] * 4
    assert sorted(Counter(spread_episodes(work, 2).tolist()).values()) == [4, 4]


@given(st.integers(0, 10**6), st.booleans(), st.booleans())
def test_work_is_the_tokens_that_micro_batches_compute(seed: int, append: bool, share: bool) -> None:
    table = step_table(np.random.default_rng(seed), SIZE, groups=4, members=3, append=append)
    part = np.zeros(len(table), np.int64)
    work = EpisodeWork.of(table, part, 0, share)
    assert sorted(work.episode.tolist()) == sorted(set(table.episode_id.tolist()))
    computed = sum(map(len, micro_batches(table, 10**6, share)))
    first = {(group, int(table.prompt[row][0])) for row, group in enumerate(table.group_id.tolist())
             if len(table.response[row])}  # fmt: skip
    alike = len(first) > len({token for _, token in first})  # groups that begin alike, which every process computes
    counted = loads(work, work.rank, 0, 1)[0]
    assert counted < computed if alike and share else counted == computed


@given(st.integers(0, 10**6), st.floats(1.0, 1000.0))
def test_work_counts_the_tokens_that_each_token_attends_to(seed: int, span: float) -> None:
    table = step_table(np.random.default_rng(seed), SIZE, groups=1, members=4)
    work = EpisodeWork.of(table, np.zeros(len(table), np.int64), 0, True, span)
    (tree,) = micro_batches(table, 10**6, True)
    assert loads(work, work.rank, 0, 1)[0] == pytest.approx((1 + tree.depth / span).sum(), abs=len(table))


def test_the_span_of_attention_is_its_share_of_a_models_products() -> None:
    policy = model("llama", SIZE)
    layer = policy.model.layers[0]
    products = sum(p.numel() for p in layer.parameters() if p.ndim == 2)
    assert attention_span(policy) == pytest.approx(products / (2 * 4 * 8), rel=0.02), "scores and means of 4 heads of 8"


@pytest.mark.seconds
@pytest.mark.parametrize("ranks", [2, 4])
def test_episodes_move_whole_and_unchanged(ranks: int) -> None:
    found: list[dict[str, Any]] = on_ranks(exchanged, ranks)
    before = sorted(row for told in found for row in told["before"])
    assert sorted(row for told in found for row in told["after"]) == before
    episodes = [set(told["episodes"]) for told in found]
    assert sum(map(len, episodes)) == len(set.union(*episodes)), "an episode is in one process"
    assert any(told["came"] for told in found) and all(told["episodes"] for told in found)
