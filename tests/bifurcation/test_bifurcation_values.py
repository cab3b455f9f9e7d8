"""The values of a policy on a walk, against all that may happen, and against episodes that are played."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsuite.bifurcation.env import Bifurcation
from envsuite.bifurcation.world import ALIASING, MISTAKES, REWARDS, Floats, Kind, Walk
from envsuite.core import ToolCall, UsageError


def random_policy(kind: Kind, seed: int) -> Floats:
    """Chances of the doors; what is left to 1 is an action that is none."""
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.full(kind.doors + 1, 0.7), (kind.horizon, 2, kind.names))[..., :-1]


def moved(walk: Walk, place: int, astray: int, door: int) -> tuple[int, int, float]:
    """Where a door leads to, by the rules as the page has them, and the reward."""
    kind, right = walk.kind, walk.right(place)
    fork, last = right is not None and not astray, place + 1 == walk.kind.horizon
    if kind.mistake == "recoverable" and (astray or (fork and door != right)):
        return place, 1 - astray, 0.0
    lost = int(astray or (fork and door != right))
    if kind.reward == "each":
        return place + 1, lost, 1.0 / kind.decisions if fork and not lost else 0.0
    return place + 1, lost, float(last and not lost)


class Enumeration:
    """Expected returns as a sum over every sequence of doors, slips and names, nothing remembered."""

    def __init__(self, walk: Walk, policy: Floats) -> None:
        self.walk, self.kind, self.policy = walk, walk.kind, policy

    def v(self, place: int, astray: int, name: int, left: int) -> float:
        if place == self.kind.horizon or not left:
            return 0.0
        chances = self.policy[place, astray, name]
        doors = sum(chances[door] * self.q(place, astray, name, door, left) for door in range(self.kind.doors))
        return float(doors + (1.0 - chances.sum()) * self.q(place, astray, name, -1, left))

    def q(self, place: int, astray: int, name: int, door: int, left: int) -> float:
        if door < 0:
            return self.v(place, astray, name, left - 1)
        slip, total = self.kind.slip, 0.0
        for taken in range(self.kind.doors):
            chance = 1.0 - slip if taken == door else slip / (self.kind.doors - 1)
            *state, reward = moved(self.walk, place, astray, taken)
            names = range(self.kind.names) if chance else ()
            total += chance * sum(reward + self.v(*state, after, left - 1) for after in names) / self.kind.names
        return total


@st.composite
def kinds(draw: st.DrawFn, aliasing: str = "none") -> Kind:
    horizon = draw(st.integers(1, 3 if aliasing == "different" else 4))
    reward = draw(st.sampled_from(REWARDS))
    decisions = draw(st.integers(int(reward == "each"), horizon))
    return Kind(
        horizon, decisions, draw(st.integers(2, 3)), 6, draw(st.sampled_from(MISTAKES)), reward,
        aliasing, slip=draw(st.sampled_from((0.0, 0.25, 0.9))),
    )  # fmt: skip


@pytest.mark.parametrize("aliasing", ALIASING)
@given(data=st.data(), seed=st.integers(0, 99))
def test_values_are_those_of_every_sequence_of_doors(aliasing, data, seed):
    kind = data.draw(kinds(aliasing), "kind")
    steps = data.draw(st.integers(kind.horizon, 3 if kind.names > 1 else 4 if kind.slip else 6), "steps")
    walk, policy = Walk(kind, f"train-{seed}"), random_policy(kind, seed)
    q, v = walk.values(policy, steps)
    assert q.shape == (steps, kind.horizon, 2, kind.names, kind.doors + 1) and v.shape == q.shape[:-1]
    plain = Enumeration(walk, policy)
    later = [data.draw(st.integers(0, most - 1)) for most in (steps, kind.horizon, 2)]
    for step, place, astray in ([0, 0, 0], later):
        name, left = data.draw(st.integers(0, kind.names - 1), "name"), steps - step
        assert abs(v[step, place, astray, name] - plain.v(place, astray, name, left)) < 1e-12
        for door in (*range(kind.doors), -1):
            assert abs(q[step, place, astray, name, door] - plain.q(place, astray, name, door, left)) < 1e-12


@given(st.sampled_from(ALIASING).flatmap(kinds), st.integers(0, 99))
def test_the_advantage_of_a_policy_s_doors_has_the_mean_zero(kind, seed):
    policy = random_policy(kind, seed)
    q, v = Walk(kind, "test-0").values(policy, kind.horizon + 2)
    whole = np.concatenate([policy, 1.0 - policy.sum(-1, keepdims=True)], -1)
    np.testing.assert_allclose((whole * (q - v[..., None])).sum(-1), 0.0, atol=1e-12)


@pytest.mark.seconds
@pytest.mark.parametrize(
    "dials",
    [
        {"slip": 0.3},
        {"aliasing": "different"},
        {"aliasing": "different", "slip": 0.2, "mistake": "recoverable", "reward": "each", "doors": 2},
        {"mistake": "recoverable"},
    ],
    ids=lambda dials: " ".join(map(str, dials.values())),
)
def test_values_are_the_means_of_episodes_that_are_played(dials):
    """Over many walks: an episode's slips and names follow from the task and its doors, so a task's own are few."""
    env, rng = Bifurcation(horizon=4, decisions=2, **dials), np.random.default_rng(0)
    steps, episodes = 6, 8
    off = np.zeros((len(env.tasks.ids("train")), steps + 1))
    for number, task in enumerate(env.tasks.ids("train")):
        walk, policy = Walk(env.kind, task), random_policy(env.kind, number)
        for place in range(env.kind.horizon):  # at the first name of a place it plays well
            policy[place, :, 0] = 0.05
            policy[place, :, 0, walk.right(place) or 0] = 0.85
        q, v = walk.values(policy, steps)
        for _ in range(episodes):
            env.reset(options={"task_id": task})
            seen, rewards = list[float](), list[float]()
            start = v[0, 0, 0, env.name]
            while not env.done and len(seen) < steps:
                chances = policy[(*env.state, env.name)]
                door = int(rng.choice(env.kind.doors + 1, p=[*chances, max(0.0, 1.0 - chances.sum())]))
                seen.append(q[(len(seen), *env.state, env.name, door)])
                said = env.commands[door] if door < env.kind.doors else "no door"
                rewards.append(env.step((ToolCall("take", {"command": said}),))[1])
            to_go = np.cumsum(rewards[::-1])[::-1]
            off[number, : len(seen)] += to_go - seen
            off[number, -1] += to_go[0] - start
    error = off.std(0) / np.sqrt(len(off))
    assert (np.abs(off.mean(0)) < 4.0 * error + 1e-12).all(), "Q at each step, and V at the first"
    assert (error[[0, -1]] > 0).all()


def test_a_policy_of_another_shape_is_refused_in_one_line():
    with pytest.raises(UsageError, match=r"shape \(3, 2, 1, 3\); that of this walk's places is \(10, 2, 1, 3\)$"):
        Walk(Kind(), "train-0").values(np.zeros((3, 2, 1, 3)), 5)
