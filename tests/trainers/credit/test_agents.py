"""Several agents of one environment: each is credited as if it had played alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from episodes import episode as made_episode
from episodes import step as made_step
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from envsuite.core import ToolCall
from envsuite.playing.step import Episode, Step
from trainers.credit.estimators import ESTIMATORS
from trainers.credit.rows import as_played, estimation_order, unshaped_steps
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


def test_a_step_earns_what_its_agent_gets_until_its_next_turn() -> None:
    turns: list[Turn] = [
        ("a", {"a": 1.0, "b": 64.0}),  # before b's first turn: lost
        ("b", {"a": 2.0, "b": 0.5}),
        ("b", {"a": 4.0, "b": 0.25}),
        ("a", {"a": 8.0, "b": 0.125}),
    ]
    assert _episode(0, 0, turns).own_rewards == [7.0, 0.5, 0.375, 8.0]


def test_the_only_agent_of_an_environment_earns_its_rewards() -> None:
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
def test_an_estimator_credits_each_agent_as_if_it_had_played_alone(name: str, games: list[list[Turn]]) -> None:
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
def test_numbers_of_groups_do_not_depend_on_what_other_processes_have(games: list[list[Turn]]) -> None:
    episodes = [_episode(number, 0, turns) for number, turns in enumerate(games)]
    whole = unshaped_steps(episodes, 1)
    parts = [unshaped_steps([episode], 1) for episode in episodes]
    assert np.concatenate([part.group_id for part in parts]).tolist() == whole.group_id.tolist()
    assert np.concatenate([part.episode_id for part in parts]).tolist() == whole.episode_id.tolist()


def test_steps_of_one_agent_stay_as_they_are_beside_those_of_several() -> None:
    one, two = _episode(3, 1, [("", {"x": 1.0})]), _episode(4, 1, [("a", {"a": 1.0})])
    table = unshaped_steps([one, two], 1)
    assert (table.episode_id[0], table.group_id[0], table.t[0]) == (3, 1, 0)
    assert table.group_id[1] != 1
    assert table.extra[AGENT].tolist() == ["", "a"]


def test_agents_are_kept_on_disk(tmp_path: Path) -> None:
    episode = _episode(0, 0, [("a", {"a": 1.0}), ("b", {"a": 2.0})])
    write_episodes(tmp_path / "x.parquet", [episode])
    assert [step.agent for step in read_episodes(tmp_path / "x.parquet")[0].steps] == ["a", "b"]
