"""Several agents of one environment: each is credited as if it had played alone.

The balance of an update over processes: who computes which episode, and what is exchanged for it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from episodes import episode as made_episode
from episodes import step as made_step
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from ranks import on_ranks
from tiny_runs import model, step_table
from update_cases import exchanged

from envsuite.core import ToolCall
from envsuite.playing.step import Episode, Step
from trainers.credit.estimators import ESTIMATORS
from trainers.credit.rows import as_played, estimation_order, unshaped_steps
from trainers.policy.balance import EpisodeWork, attention_span, spread_episodes
from trainers.policy.packing import micro_batches
from trainers.report.methods import step_means
from trainers.steps import StepTable
from trainers.steps.columns import AGENT
from trainers.steps.parquet import read_episodes, write_episodes

Turn = tuple[str, dict[str, float]]
"""Agent, and what the step gave to each."""


def _episode(number: int, group: int, turns: list[Turn]) -> Episode:
    def step(t: int, agent: str, rewards: dict[str, float]) -> Step:
        info: dict[str, Any] = {"state_key": f"{agent}-{(t + number) % 3}"} | ({"rewards": rewards} if agent else {})
        ids = list(range(1 + (number + t) % 3))
        return made_step(
            t, response_ids=ids, response_logprobs=[-1.0] * len(ids), state_key=f"{agent}-{t % 3}", info=info,
            action=(ToolCall("act", {}),), reward=sum(rewards.values()), agent=agent,
        )  # fmt: skip

    steps = (step(t, agent, rewards) for t, (agent, rewards) in enumerate(turns))
    return made_episode(number, *steps, group_id=group, success=bool(number % 2))


def test_a_step_earns_what_its_agent_gets_until_its_next_turn():
    turns: list[Turn] = [
        ("a", {"a": 1.0, "b": 64.0}),  # before b's first turn: lost
        ("b", {"a": 2.0, "b": 0.5}),
        ("b", {"a": 4.0, "b": 0.25}),
        ("a", {"a": 8.0, "b": 0.125}),
    ]
    assert _episode(0, 0, turns).own_rewards == [7.0, 0.5, 0.375, 8.0]


def test_the_only_agent_of_an_environment_earns_its_rewards():
    assert _episode(0, 0, [("", {"x": 1.0}), ("", {"x": 2.0})]).own_rewards == [1.0, 2.0]


_TURNS = st.lists(
    st.tuples(st.sampled_from(["searcher", "selector"]), st.fixed_dictionaries(
        {"searcher": st.sampled_from([0.0, 0.5, 1.0]), "selector": st.sampled_from([0.0, -1.0, 1.0])}
    )),
    min_size=1, max_size=6,
)  # fmt: skip


def _alone(episodes: list[Episode], agent: str) -> list[Episode]:
    """The episodes of one agent, as if the environment had no other."""
    found = []
    for episode in episodes:
        own = [one for one in zip(episode.steps, episode.own_rewards, strict=True) if one[0].agent == agent]
        turns = (replace(step, t=t, reward=reward, agent="") for t, (step, reward) in enumerate(own))
        found.append(replace(episode, steps=tuple(turns)))
    return found


@pytest.mark.seconds
@pytest.mark.parametrize("name", ["grpo", "gigpo", "hgpo", "rloo", "graphgpo"])
@given(games=st.lists(_TURNS, min_size=2, max_size=6))
def test_an_estimator_credits_each_agent_as_if_it_had_played_alone(name, games):
    episodes = [_episode(number, number // 3, turns) for number, turns in enumerate(games)]
    estimator = ESTIMATORS[name]()
    together = unshaped_steps(episodes, 1)
    rows = together.take(estimation_order(together))
    got = {place: row for place, row in zip(as_played(rows), _per_step(estimator, rows), strict=True)}
    for agent in ("searcher", "selector"):
        table = unshaped_steps(_alone(episodes, agent), 1)
        if not len(table):
            continue
        own = table.take(estimation_order(table))
        places = [(episode.episode_id, step.t) for episode in episodes for step in episode.steps if step.agent == agent]
        order = np.lexsort(([t for _, t in places], [e for e, _ in places], [e // 3 for e, _ in places]))
        assert_allclose([got[places[i]] for i in order], _per_step(estimator, own), rtol=1e-12, atol=1e-12)


def _per_step(estimator: Any, rows: StepTable) -> list[float]:
    return step_means(rows, estimator(rows)).tolist()


@given(games=st.lists(_TURNS, min_size=2, max_size=5))
def test_numbers_of_groups_do_not_depend_on_what_other_processes_have(games):
    episodes = [_episode(number, 0, turns) for number, turns in enumerate(games)]
    whole = unshaped_steps(episodes, 1)
    parts = [unshaped_steps([episode], 1) for episode in episodes]
    assert np.concatenate([part.group_id for part in parts]).tolist() == whole.group_id.tolist()
    assert np.concatenate([part.episode_id for part in parts]).tolist() == whole.episode_id.tolist()


def test_steps_of_one_agent_stay_as_they_are_beside_those_of_several():
    one, two = _episode(3, 1, [("", {"x": 1.0})]), _episode(4, 1, [("a", {"a": 1.0})])
    table = unshaped_steps([one, two], 1)
    assert (table.episode_id[0], table.group_id[0], table.t[0]) == (3, 1, 0)
    assert table.group_id[1] != 1
    assert table.extra[AGENT].tolist() == ["", "a"]


def test_agents_are_kept_on_disk(tmp_path):
    episode = _episode(0, 0, [("a", {"a": 1.0}), ("b", {"a": 2.0})])
    write_episodes(tmp_path / "x.parquet", [episode])
    assert [step.agent for step in read_episodes(tmp_path / "x.parquet")[0].steps] == ["a", "b"]


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
def test_no_other_place_for_an_episode_of_the_slowest_process_saves_a_hundredth(work, ranks):
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
def test_what_is_even_stays_where_it_is(work):
    rank = spread_episodes(work, 4)
    there = EpisodeWork(rank, work.part, work.group, work.episode, work.shared, work.own)
    assert spread_episodes(there, 4).tolist() == rank.tolist()
    assert spread_episodes(work, 4).tolist() == rank.tolist(), "and every process finds the same"


def test_a_group_stays_together_where_that_is_as_good():
    group = np.array([0, 0, 1, 1, 2, 2, 3, 3])
    same = np.zeros(8, np.int64)
    work = EpisodeWork(same, same, group, np.arange(8), same + 500, same + 10)
    assert [len(set(spread_episodes(work, 2)[group == of].tolist())) for of in range(4)] == [1] * 4
    assert sorted(Counter(spread_episodes(work, 2).tolist()).values()) == [4, 4]


@given(st.integers(0, 10**6), st.booleans(), st.booleans())
def test_work_is_the_tokens_that_micro_batches_compute(seed, append, share):
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
def test_work_counts_the_tokens_that_each_token_attends_to(seed, span):
    table = step_table(np.random.default_rng(seed), SIZE, groups=1, members=4)
    work = EpisodeWork.of(table, np.zeros(len(table), np.int64), 0, True, span)
    (tree,) = micro_batches(table, 10**6, True)
    assert loads(work, work.rank, 0, 1)[0] == pytest.approx((1 + tree.depth / span).sum(), abs=len(table))


def test_the_span_of_attention_is_its_share_of_a_models_products():
    policy = model("llama", SIZE)
    layer = policy.model.layers[0]
    products = sum(p.numel() for p in layer.parameters() if p.ndim == 2)
    assert attention_span(policy) == pytest.approx(products / (2 * 4 * 8), rel=0.02), "scores and means of 4 heads of 8"


@pytest.mark.seconds
@pytest.mark.parametrize("ranks", [2, 4])
def test_episodes_move_whole_and_unchanged(ranks):
    found: list[dict[str, Any]] = on_ranks(exchanged, ranks)
    before = sorted(row for told in found for row in told["before"])
    assert sorted(row for told in found for row in told["after"]) == before
    episodes = [set(told["episodes"]) for told in found]
    assert sum(map(len, episodes)) == len(set.union(*episodes)), "an episode is in one process"
    assert any(told["came"] for told in found) and all(told["episodes"] for told in found)
