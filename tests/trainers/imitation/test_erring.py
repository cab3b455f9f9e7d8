"""A player that errs at every step alike."""

from __future__ import annotations

import random

import gymnasium
import pytest

import envsuite  # noqa: F401  # registers the environments
from envsuite.core import ToolEnv, UsageError
from envsuite.remote.making import make_player, practice_of
from envsuite.sokoban.player import Pusher
from trainers.imitation.erring import Erring, Following

WORLDS = {
    "Sokoban-v0": {"source": "generated", "levels": 60, "boxes": 2, "pushes": (2, 6)},
    "TextCraft-v0": {"source": "generated", "goals": 60, "max_distractors": 3, "tasks": ["depth-2"], "spare": 1},
}

OTHERS = {
    "WebShop-v0": {
        "source": "builtin", "products": 300, "mode": "structured", "goals": "human",
        "difficulty": {"attributes": 2, "hidden": 0, "vagueness": 0},
    },
    "ALFWorld-v0": {"source": "builtin", "games": 60},
}  # fmt: skip


def _played(env_id: str, share: float, episodes: int, seed: int = 0) -> tuple[int, int, int]:
    """Returns the number of moves, of those that the expert would not have made, and of episodes won."""
    env = gymnasium.make(env_id, disable_env_checker=True, max_episode_steps=40, **WORLDS[env_id])
    world = env.unwrapped
    assert isinstance(world, ToolEnv)
    rng, moves, mistakes, won = random.Random(seed), 0, 0, 0
    ids = world.tasks.ids("train")
    for number in range(episodes):
        env.reset(options={"task_id": ids[number % len(ids)]})
        for move in Erring(Following(make_player(env_id, "expert")), share).turns(env, rng):
            right = make_player(env_id, "expert").act(env)
            _, _, terminated, truncated, info = env.step(move.action)
            assert info["valid"] and not move.slip, "every move is possible, and a target"
            moves, mistakes, won = moves + 1, mistakes + (move.action != right), won + bool(info["success"])
            if terminated or truncated:
                break
    env.close()
    return moves, mistakes, won


@pytest.mark.parametrize("env_id", WORLDS)
def test_a_share_of_the_moves_are_possible_ones_that_the_expert_would_not_make(env_id: str) -> None:
    _, mistakes, won = _played(env_id, 0.0, 6)
    assert mistakes == 0 and won == 6, "without mistakes it is the expert"
    moves, mistakes, _ = _played(env_id, 0.4, 12)
    assert 0.2 < mistakes / moves < 0.5
    assert _played(env_id, 0.4, 12) == _played(env_id, 0.4, 12), "the same with the same seed"


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(UsageError, match=r"errs=1\.5"):
        Erring(Pusher(), 1.5)


@pytest.mark.parametrize("env_id", [*WORLDS, "WebShop-v0", "ALFWorld-v0"])
def test_a_demonstration_player_can_err_instead_of_the_expert(env_id: str) -> None:
    env = gymnasium.make(env_id, disable_env_checker=True, max_episode_steps=40, **{**OTHERS, **WORLDS}[env_id])
    world = env.unwrapped
    assert isinstance(world, ToolEnv)
    tasks, found = list(world.tasks.ids("train")), dict[float, tuple[int, int]]()
    for share in (0.0, 0.4):
        won, moves = 0, 0
        for seed in range(8):
            env.reset(options={"task_id": tasks[seed]})
            for move in Erring(practice_of(env_id).teacher(), share).turns(env, random.Random(seed)):
                assert not move.slip, "mistakes are targets, too"
                _, _, terminated, truncated, info = env.step(move.action)
                moves += 1
                if terminated or truncated:
                    won += bool(info["success"])
                    break
        found[share] = won, moves
    env.close()
    assert found[0.0][0] == 8, "without mistakes it is the player, though each move was tried before"
    assert found[0.4][0] < 8 or found[0.4][1] > found[0.0][1]
