"""Bifurcation-v0: walks and dials, the expert, its practice, and the exact values of a policy."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from teaching import Acting
from teaching import played as acted

from envsuite.bifurcation.env import COUNTS, Bifurcation
from envsuite.bifurcation.expert import BifurcationExpert, BifurcationWalker
from envsuite.bifurcation.milestones import BifurcationMilestones
from envsuite.bifurcation.world import (
    ALIASING,
    COMMON,
    DOORS,
    LETTERS,
    MISTAKES,
    PARTS,
    REWARDS,
    DoorState,
    Floats,
    Kind,
    Walk,
)
from envsuite.core import Action, EnvsuiteError, Observation, ToolCall, UsageError
from envsuite.remote.making import practice_of
from trainers.imitation.vocabulary import word_tokenizer

Result = tuple[Observation, float, bool, bool, Any]
DIALS: list[dict[str, Any]] = [
    {},
    {"mistake": "recoverable"},
    {"reward": "each", "decisions": 6},
    {"aliasing": "alike", "own_words": 4},
    {"aliasing": "different", "own_words": 0, "forks": 32},
    {"horizon": 40, "doors": 5, "map_seed": 7},
    {"horizon": 1, "decisions": 1, "doors": 2},
    {"decisions": 0},
    {"source": "generated", "map_seed": 3},
]


def take(door: str) -> Action:
    return (ToolCall("take", {"command": door}),)


def played(env: Bifurcation, task: str, doors: str) -> list[Result]:
    """The results of doors, by their first letters: red, green; of an episode's own words for others."""
    env.reset(options={"task_id": task})
    names = {"r": "red", "b": "blue", "g": "green", "?": "a wall"}
    return [env.step(take(names[door])) for door in doors if not env.done]


def test_other_doors_at_a_place_that_is_no_fork_give_other_slips_and_names():
    env = Bifurcation(horizon=8, decisions=0, slip=0.5, aliasing="different")
    texts, taken = set(), set()
    for first in "rbg":
        texts.add(tuple(result[0]["text"] for result in played(env, "train-0", first + "rrrrrr")))
        taken.add(env.chance)
    assert len(texts) == len(taken) == 3


@pytest.mark.parametrize("slip", [0.1, 0.4])
@pytest.mark.parametrize("wrong", [0, 1], ids=["right", "wrong"])
def test_slips_are_as_frequent_as_the_dial_says_and_lead_to_each_other_door_alike(slip, wrong):
    """A wrong door slips to the right one of three half of the time."""
    env, passed = Bifurcation(horizon=6, decisions=6, mistake="recoverable", slip=slip), list[bool]()
    for task in env.tasks.ids("test"):
        env.reset(options={"task_id": task})
        for _ in range(12):
            if env.done:
                break
            right = 0 if env.state.astray else env.walk.right(env.state.place)
            assert right is not None
            astray, before = env.state.astray, env.passed
            env.step(take(env.commands[(right + wrong) % 3]))
            if not astray:
                passed.append(env.passed > before)
    expected = slip / 2 if wrong else 1.0 - slip
    error = np.sqrt(expected * (1.0 - expected) / len(passed))
    assert abs(np.mean(passed) - expected) < 4 * error and error < 0.02


@pytest.mark.parametrize(
    "action", [(), take("a wall"), take("red") * 2, (ToolCall("open", {}),), (ToolCall("take", {}),)]
)
def test_an_invalid_action_changes_nothing_and_the_last_line_is_still_the_place(action):
    env = Bifurcation(slip=0.3, aliasing="different", mistake="recoverable")
    for task in env.tasks.ids("train")[:20]:
        before, info = played(env, task, "rb")[-1][::4]
        kept = (env.state, env.passed, env.chance)
        after, reward, terminated, _, told = env.step(action)
        assert (reward, terminated, told["valid"]) == (0.0, False, False)
        assert (env.state, env.passed, env.chance) == kept and told["score"] == info["score"]
        *said, place = after["text"].split("\n")
        assert place == before["text"].split("\n")[-1] == told["state_key"] and said[0].startswith("Invalid action: ")


def texts_of(env: Bifurcation, task: str) -> dict[str, set[DoorState]]:
    """Text of a place in one walk -> the states that show it."""
    walk, found = Walk(env.kind, task), dict[str, set[DoorState]]()
    for place, astray, name in itertools.product(range(env.kind.horizon), range(2), range(env.kind.names)):
        state = DoorState(place, astray)
        found.setdefault(walk.text(state, name), set()).add(state)
    return found


@pytest.mark.parametrize("mistake", ["final", "recoverable"])
def test_the_text_is_the_state_but_where_states_look_alike(mistake):
    for aliasing in ("none", "different"):
        env = Bifurcation(aliasing=aliasing, mistake=mistake)
        for task in env.tasks.ids("train")[:50]:
            texts = texts_of(env, task)
            assert all(len(states) == 1 for states in texts.values()) and len(texts) == 20 * env.kind.names
    env = Bifurcation(aliasing="alike", mistake=mistake)
    for task in env.tasks.ids("train")[:50]:
        assert all({astray for _, astray in states} == {0, 1} for states in texts_of(env, task).values())
    repeated = [max(map(len, texts_of(env, task).values())) > 2 for task in env.tasks.ids("train")]
    assert 0.5 < np.mean(repeated) < 1.0, "most walks pass a kind of place twice"


@pytest.mark.parametrize("own", range(5))
def test_two_kinds_of_places_share_the_words_that_are_not_their_own(own):
    env = Bifurcation(own_words=own, aliasing="different", forks=32)
    kinds = env.kind.words
    assert len(kinds) == 48 and all(len(names) == 4 for names in kinds)
    flat = [words for names in kinds for words in names]
    assert len(set(flat)) == len(flat) and all(len(words) == len(PARTS) for words in flat)
    for one, other in itertools.combinations(flat, 2):
        shared = [a for a, b in zip(one, other, strict=True) if a == b]
        assert shared == [*COMMON[own or 1 :]]
    if own:
        assert len({word for words in flat for word in words[:own]}) == own * len(flat), "a kind's alone"
    else:
        assert {word for words in flat for word in words[0].split()} == {*LETTERS}


@given(st.integers(2, len(DOORS)), st.integers(6, 32), st.integers(0, 99))
def test_each_door_is_right_as_often_as_the_others(doors, forks, seed):
    right = Bifurcation(doors=doors, forks=forks, map_seed=seed).kind.right
    counts = Counter(right)
    assert len(right) == forks and len(counts) == doors and max(counts.values()) - min(counts.values()) <= 1
    assert right == Bifurcation(doors=doors, forks=forks, map_seed=seed, own_words=3, horizon=7).kind.right


@pytest.mark.parametrize("dials", DIALS, ids=lambda dials: " ".join(map(str, dials.values())) or "default")
def test_the_expert_solves_every_task(dials):
    env, expert = Bifurcation(**dials), BifurcationExpert()
    for task in [task for ids in env.tasks.splits.values() for task in ids]:
        turns = acted(env, task, Acting(expert))
        info = turns[-1].info
        assert info["success"] and info["score"] == 1.0 and len(turns) == env.kind.horizon
        assert sum(turn.reward for turn in turns) == pytest.approx(1.0)


@pytest.mark.parametrize("mistake", ["final", "recoverable"])
def test_where_doors_slip_the_expert_takes_the_right_one_all_the_same(mistake):
    env, expert, solved = Bifurcation(slip=0.3, mistake=mistake), BifurcationExpert(), list[bool]()
    for task in env.tasks.ids("test"):
        _, info = env.reset(options={"task_id": task})
        while not env.done:
            (call,) = expert.act(env)
            right = None if env.state.astray else env.walk.right(env.state.place)
            assert right is None or call.arguments["command"] == env.commands[right]
            info = env.step((call,))[-1]
        solved.append(info["success"])
    assert np.mean(solved) == 1.0 if mistake == "recoverable" else abs(np.mean(solved) - 0.7**3) < 0.12


@given(st.text("rbg", max_size=20), st.sampled_from(["final", "recoverable"]), st.integers(0, 99))
def test_the_reward_for_each_fork_adds_up_to_the_score(doors, mistake, number):
    env = Bifurcation(reward="each", mistake=mistake, decisions=5, slip=0.2)
    results = played(env, f"test-{number}", doors)
    assert sum(reward for _, reward, *_ in results) == pytest.approx(env.passed / 5)
    if results:
        assert results[-1][-1]["score"] == pytest.approx(env.passed / 5)
        assert results[-1][-1]["success"] == (env.done and env.passed == 5)


def test_a_lost_walk_goes_on_to_its_end_and_earns_nothing_more():
    env = Bifurcation(reward="each", decisions=5)
    for task in env.tasks.ids("test")[:20]:
        env.reset(options={"task_id": task})
        rewards, lost = list[float](), False
        while not env.done:
            right = env.walk.right(env.state.place)
            wrong = right is not None and not lost and env.state.place > 3
            door = (right or 0) + wrong
            lost |= wrong
            _, reward, _, _, info = env.step(take(env.commands[door % 3]))
            rewards.append(reward)
            assert info["metrics"]["astray"] == lost and info["metrics"]["place"] == len(rewards)
            assert not (lost and reward)
        assert len(rewards) == 10 and info["success"] != lost


def test_the_map_draws_generated_walks_and_not_those_that_are_built_in():
    maps = list[list[tuple[int, ...]]]()
    assert {split: len(ids) for split, ids in Bifurcation().tasks.splits.items()} == COUNTS
    for source, seed in itertools.product(("builtin", "generated"), (0, 1)):
        env = Bifurcation(source=source, map_seed=seed)
        maps.append([Walk(env.kind, task).places for task in env.tasks.ids("train")])
        assert env.identity(env.tasks.ids("train")[0]) == {"places": [*maps[-1][0]]}
    assert maps[0] == maps[1] and not {*maps[2]} & {*maps[3]} and not {*maps[0]} & {*maps[2]}


@pytest.mark.parametrize(
    ("dials", "said"),
    [
        ({"horizon": 2}, r"decisions=3: .* as places \(horizon=2\), and none of a kind \(forks=16\) twice"),
        ({"reward": "each", "decisions": 0}, r"reward='each' and decisions=0"),
    ],
)
def test_dials_that_contradict_each_other_are_refused_in_one_line(dials, said):
    with pytest.raises(EnvsuiteError, match=said) as caught:
        gymnasium.make("Bifurcation-v0", **dials)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("mistake", ["final", "recoverable"])
def test_milestones_are_the_forks_that_are_passed_and_the_end(mistake):
    env, rng = Bifurcation(mistake=mistake, horizon=6), np.random.default_rng(0)
    for task in env.tasks.ids("test")[:60]:
        _, info = env.reset(options={"task_id": task})
        milestones, total = BifurcationMilestones(env), 0
        while not env.done:
            action = take(env.commands[rng.integers(3)])
            before, info = env.passed, env.step(action)[-1]
            reached = milestones.count_reached(action, info)
            assert reached == env.passed - before + info["success"]
            total += reached
        assert milestones.count == 4 and (total == 4) == info["success"] and total == env.passed + info["success"]


@pytest.mark.parametrize(
    "dials",
    [
        {"map_seed": 5, "own_words": 4, "doors": 5, "forks": 32, "aliasing": "different", "slip": 0.2},
        {"own_words": 0, "mistake": "recoverable", "horizon": 40, "decisions": 6},
        {"own_words": 2, "aliasing": "alike", "reward": "each", "doors": 2},
    ],
    ids=["words of another map", "shared words", "alike"],
)
def test_every_word_of_a_valid_episode_is_known_whatever_the_dials(dials):
    tokenizer = word_tokenizer(practice_of("Bifurcation-v0").texts(), 512)
    env, rng, seen = Bifurcation(**dials), random.Random(0), set[str]()
    for task in env.tasks.ids("test")[:60]:
        observation, _ = env.reset(options={"task_id": task})
        seen |= {observation["task"], observation["text"]}
        while not env.done:
            seen.add(env.step((ToolCall("take", {"command": rng.choice(env.commands)}),))[0]["text"])
    assert len(seen) > 30
    for text in seen:
        assert tokenizer.unk_token_id not in tokenizer.encode(text), text


def test_the_player_to_imitate_plays_as_the_expert_does():
    env = Bifurcation(mistake="recoverable", slip=0.3)
    env.reset(seed=3)
    for move in BifurcationWalker().turns(env, random.Random(0)):
        *_, info = env.step(move.action)
        assert info["valid"] and not move.slip and not move.thought
        if env.done:
            break
    assert info["success"]


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


def test_a_policy_of_another_shape_is_refused_in_one_line():
    with pytest.raises(UsageError, match=r"shape \(3, 2, 1, 3\); that of this walk's places is \(10, 2, 1, 3\)$"):
        Walk(Kind(), "train-0").values(np.zeros((3, 2, 1, 3)), 5)
