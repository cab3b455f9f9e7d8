"""Exact values of small worlds."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from envsuite.core import ToolCall
from envsuite.core.errors import UsageError
from envsuite.textcraft.env import TextCraft
from research.lab.craft import COMMANDS, GOAL, textcraft
from research.lab.mdp import World, expected_return, policy_gradient, softmax, solve, start_logits, values
from research.lab.methods import Method, furnish
from research.lab.rollout import Plan, play, table
from research.lab.worlds import aliased, delayed, graded, renamed
from trainers.steps.columns import ENTROPY, HINDSIGHT, SUCCESS

SMALL = (delayed(3), graded(2), aliased(1), renamed(2, names=3))


def random_policy(world: World, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return softmax(rng.standard_normal((world.rows, len(world.actions))))[world.row]


def enumerated(world: World, policy: np.ndarray, state: int, t: int) -> float:
    """Expected return from a state on, path by path."""
    if state == world.states or t == world.horizon:
        return 0.0
    total = 0.0
    for action, outcome in itertools.product(range(len(world.actions)), range(world.chance.shape[-1])):
        odds = policy[state, action] * world.chance[state, action, outcome]
        after = int(world.next_state[state, action, outcome])
        total += odds * (float(world.reward[state, action, outcome]) + enumerated(world, policy, after, t + 1))
    return total


@pytest.mark.parametrize("world", SMALL, ids=lambda world: world.name)
def test_values_are_those_of_an_enumeration_of_all_paths(world):
    policy = random_policy(world)
    exact = solve(world, policy)
    for t in range(world.horizon):
        for state in range(world.states):
            assert exact.v[t, state] == pytest.approx(enumerated(world, policy, state, t))
    np.testing.assert_allclose((policy * exact.advantage).sum(-1), 0.0, atol=1e-12)


@pytest.mark.parametrize("world", [*SMALL, textcraft()], ids=lambda world: world.name)
def test_values_and_visits_are_those_of_many_episodes(world):
    rng = np.random.default_rng(1)
    policy = softmax(start_logits(world, 0.4 * world.optimum, rng))[world.row]
    exact = solve(world, policy)
    episodes = 20_000
    played = play(world, policy, Plan(1, 1, episodes), rng)
    spread = played.returns.std() / np.sqrt(episodes)
    assert abs(played.returns.mean() - exact.v[0, 0]) < 4 * spread
    seen = np.bincount(played.t * world.states + played.state, minlength=exact.visits.size) / episodes
    np.testing.assert_allclose(seen, exact.visits.ravel(), atol=0.02)


def test_the_return_of_many_policies_at_once_is_that_of_each():
    world = aliased()
    policies = np.stack([random_policy(world, seed) for seed in range(3)])
    each = [solve(world, policy).v[0, 0] for policy in policies]
    np.testing.assert_allclose(expected_return(world, policies), each)
    np.testing.assert_allclose(values(world, policies)[1][0, :, 0], each)


def test_a_discount_weighs_the_reward_by_its_distance():
    world = delayed(3)
    good = world.best[world.row]
    assert solve(world, good, gamma=0.5).v[0, 0] == pytest.approx(0.25)


@pytest.mark.parametrize("world", SMALL, ids=lambda world: world.name)
def test_the_policy_gradient_is_the_slope_of_the_expected_return(world):
    logits = np.random.default_rng(0).standard_normal((world.rows, len(world.actions)))
    policy = softmax(logits)[world.row]
    gradient = policy_gradient(world, policy, solve(world, policy))
    for row, action in np.ndindex(*logits.shape):
        up, down = logits.copy(), logits.copy()
        up[row, action] += 1e-5
        down[row, action] -= 1e-5
        slope = expected_return(world, softmax(up)[world.row]) - expected_return(world, softmax(down)[world.row])
        assert gradient[row, action] == pytest.approx(float(slope) / 2e-5, abs=1e-6)


@pytest.mark.parametrize("success", [0.1, 0.5, 0.9])
def test_a_start_policy_earns_what_was_asked_for(success):
    world = aliased()
    logits = start_logits(world, success, np.random.default_rng(0))
    assert float(expected_return(world, softmax(logits)[world.row])) == pytest.approx(success, abs=1e-6)


def test_the_crafting_world_is_textcraft_itself():
    world, env = textcraft(), TextCraft(tasks=[GOAL])
    steps = table(play(world, random_policy(world), Plan(1, 2, 10), np.random.default_rng(0)), np.random.default_rng(0))
    for episode in np.unique(steps.episode_id):
        _, info = env.reset(options={"task_id": GOAL})
        for row in np.flatnonzero(steps.episode_id == episode):
            assert info["state_key"] == steps.state_key[row]
            _, reward, _, _, info = env.step((ToolCall("env_step", {"command": steps.extra["action"][row]}),))
            assert (reward, info["valid"]) == (steps.reward[row], steps.valid[row])
    assert world.optimum == 1.0
    assert set(steps.extra["action"]) <= set(COMMANDS)


def test_a_world_whose_chances_do_not_add_up_is_refused():
    good = delayed(2)
    with pytest.raises(UsageError, match="world broken: the probabilities"):
        World(
            "broken", "", good.next_state, good.chance * 0.5, good.reward, 2, good.row, good.names, good.actions,
            good.fingerprint,
        )  # fmt: skip
    with pytest.raises(UsageError, match="at least 1"):
        delayed(0)


@pytest.mark.seconds
@pytest.mark.parametrize("world", [*SMALL, textcraft()], ids=lambda world: world.name)
def test_probabilities_in_hindsight_are_the_shares_of_actions_among_successful_visits(world):
    rng = np.random.default_rng(2)
    policy = softmax(start_logits(world, 0.5 * world.optimum, rng))[world.row]
    method = Method("hcapo", "hcapo")
    played = play(world, policy, Plan(1, 10, 2_000), rng)
    steps = furnish(method, played, policy, rng, seed=0)
    told = steps.token_extra[HINDSIGHT].values[steps.response.offsets[:-1]]
    won = steps.extra[SUCCESS]
    assert won.any() and not told[~won].any()
    paid = np.concatenate([[0.0], np.cumsum(played.reward)])[:-1]
    before = paid - np.repeat(paid[played.t == 0], np.diff(np.append(np.flatnonzero(played.t == 0), len(played))))
    for at in np.unique(np.stack([played.t, played.state, before > 1e-9], 1), axis=0):
        same = won & (played.t == at[0]) & (played.state == at[1]) & ((before > 1e-9) == at[2])
        if same.sum() < 200:
            continue
        for action in np.unique(played.action[same]):
            chosen = same & (played.action == action)
            share, probability = chosen.sum() / same.sum(), np.exp(told[chosen][0])
            assert abs(share - probability) < 4.5 * np.sqrt(probability * (1 - probability) / same.sum()) + 1e-3


def test_the_entropy_is_that_of_the_policy_in_the_state():
    world, rng = delayed(2), np.random.default_rng(0)
    policy = np.array([[1.0, 0.0, 0.0], [0.5, 0.25, 0.25]])
    played = play(world, policy, Plan(1, 2, 4), rng)
    steps = furnish(Method("empg", "empg"), played, policy, rng, seed=0)
    found = steps.token_extra[ENTROPY].values[steps.response.offsets[:-1]]
    np.testing.assert_allclose(found, np.array([0.0, 1.5 * np.log(2)])[played.state], atol=1e-12)
