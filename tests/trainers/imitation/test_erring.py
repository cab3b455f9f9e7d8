"""A player that errs at every step alike."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import gymnasium
import pytest

import envsuite  # noqa: F401  # registers the environments
from envsuite.core import ToolEnv, UsageError
from envsuite.core.practice import ExpertTeacher, Teacher
from envsuite.remote.making import make_player, practice_of
from envsuite.sokoban.player import Pusher
from trainers.imitation.erring import ErringTeacher

WORLDS = {
    "Sokoban-v0": {"source": "generated", "levels": 60, "boxes": 2, "pushes": (2, 6)},
    "TextCraft-v0": {"source": "generated", "goals": 60, "max_distractors": 3, "tasks": ["depth-2"], "spare": 1},
    "WebShop-v0": {
        "source": "builtin", "products": 300, "mode": "structured", "goals": "human",
        "difficulty": {"attributes": 2, "hidden": 0, "vagueness": 0},
    },
    "ALFWorld-v0": {"source": "builtin", "games": 60},
    "Bifurcation-v0": {"mistake": "recoverable"},
}  # fmt: skip


def _played(
    env_id: str, player: Callable[[], Teacher], share: float, episodes: int, judged: bool = False
) -> tuple[int, int, int]:
    """Returns the number of moves, of those that the expert would not have made (if asked for), and of wins."""
    env = gymnasium.make(env_id, disable_env_checker=True, max_episode_steps=40, **WORLDS[env_id])
    world = env.unwrapped
    assert isinstance(world, ToolEnv)
    moves, mistakes, won = 0, 0, 0
    for number, task in enumerate(world.tasks.ids("train")[:episodes]):
        env.reset(options={"task_id": task})
        for move in ErringTeacher(player(), share).turns(env, random.Random(number)):
            right = make_player(env_id, "expert").act(env) if judged else move.action
            _, _, terminated, truncated, info = env.step(move.action)
            assert info["valid"] and not move.slip, "every move is possible, and a target"
            moves, mistakes, won = moves + 1, mistakes + (move.action != right), won + bool(info["success"])
            if terminated or truncated:
                break
    env.close()
    return moves, mistakes, won


@pytest.mark.parametrize("env_id", ["Sokoban-v0", "TextCraft-v0", "Bifurcation-v0"])
def test_a_share_of_the_moves_are_possible_ones_that_the_expert_would_not_make(env_id):
    played = partial(_played, env_id, lambda: ExpertTeacher(make_player(env_id, "expert")), judged=True)
    assert played(0.0, 6)[1:] == (0, 6), "without mistakes it is the expert"
    moves, mistakes, _ = once = played(0.4, 12)
    assert 0.2 < mistakes / moves < 0.5
    assert played(0.4, 12) == once, "the same with the same seed"


def test_wrong_arguments_are_named():
    with pytest.raises(UsageError, match=r"errs=1\.5"):
        ErringTeacher(Pusher(), 1.5)


@pytest.mark.parametrize("env_id", WORLDS)
def test_a_demonstration_player_can_err_instead_of_the_expert(env_id):
    (moves, _, won), erring = (_played(env_id, practice_of(env_id).teacher, share, 8) for share in (0.0, 0.4))
    assert won == 8, "without mistakes it is the player, though each move was tried before"
    assert erring[2] < 8 or erring[0] > moves
