from __future__ import annotations

import random

from teaching import played

from envsuite.sokoban.env import SokobanEnv
from envsuite.sokoban.expert import SokobanExpert
from envsuite.sokoban.player import Pusher


def games(player: Pusher, count: int) -> list[tuple[bool, int]]:
    """Success and number of moves of the player's games on the test split."""
    env, found = SokobanEnv(split="test"), []
    for seed in range(count):
        _, info = env.reset(seed=seed)
        turns = played(env, info["task_id"], player, 15, f"{seed}")
        found.append((turns[-1].info["success"], len(turns)))
    return found


def test_a_player_who_never_strays_is_the_expert() -> None:
    env = SokobanEnv(split="test")
    for seed, (success, moves) in enumerate(games(Pusher(), 30)):
        env.reset(seed=seed)
        assert success and moves == len(SokobanExpert().moves(env.world))


def test_who_strays_wins_less_and_plays_on_when_the_level_is_lost() -> None:
    shares = [sum(won for won, _ in games(Pusher(**kind), 60)) for kind in ({"stray": 0.15}, {"stray": 0.5})]
    assert 60 > shares[0] > shares[1] > 0
    assert games(Pusher(rash=1.0), 60) != games(Pusher(stray=0.15), 60)
    assert all(moves == 15 for won, moves in games(Pusher(stray=0.5), 60) if not won)


def test_a_player_with_no_way_to_go_moves_all_the_same(tmp_path: object) -> None:
    env = SokobanEnv()
    env.reset(seed=0)
    world = env.world
    world.boxes = env.world.level.floor & ~world.player
    turns = Pusher().turns(env, random.Random(0))
    for _ in range(3):
        env.step(next(turns).action)
    assert env.world.pushes == 0
