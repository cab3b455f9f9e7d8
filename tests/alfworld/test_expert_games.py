"""The expert on real games."""

from pathlib import Path

import gymnasium
import pytest

from envsuite.alfworld.env import ALFWorld
from envsuite.alfworld.expert import ALFWorldExpert
from envsuite.core import ToolEnv


@pytest.mark.parametrize("split", ["valid_seen", "valid_train"])
def test_it_wins_real_games_of_all_six_families_within_the_horizon(games_root: Path, split: str) -> None:
    env = gymnasium.make("ALFWorld-v0", source=str(games_root), split=split)
    world, expert, families = env.unwrapped, ALFWorldExpert(), set()
    assert isinstance(world, ToolEnv)
    for task_id in world.tasks.ids(split)[::9]:
        observation, info = env.reset(options={"task_id": task_id})
        families.add(info["task_type"])
        done = cut = False
        while not (done or cut):
            action = expert.act(env)
            assert action == expert.act(env)
            assert action[0].arguments["command"] in observation["commands"]
            observation, _, done, cut, info = env.step(action)
        assert info["success"], task_id
    assert len(families) == 6


def test_one_expert_plays_many_episodes_at_once(games_root: Path) -> None:
    envs = [ALFWorld(source=games_root, split="valid_seen") for _ in range(4)]
    expert, playing = ALFWorldExpert(), set(envs)
    for number, env in enumerate(envs):
        env.reset(seed=number)
    for _ in range(50):
        for env in list(playing):
            _, _, done, _, _ = env.step(expert.act(env))
            if done:
                playing.remove(env)
    assert not playing
