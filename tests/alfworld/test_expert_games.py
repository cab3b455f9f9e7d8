"""The expert on real games."""

from pathlib import Path

import pytest

from envsuite.alfworld.env import ALFWorld
from envsuite.alfworld.expert import ALFWorldExpert


@pytest.mark.parametrize("split", ["valid_seen", "valid_train"])
def test_one_expert_wins_games_of_all_six_families_at_once_within_the_horizon(games_root: Path, split: str) -> None:
    ids, expert = ALFWorld(source=games_root, split=split).tasks.ids(split)[::9], ALFWorldExpert()
    playing = {task_id: ALFWorld(source=games_root, split=split) for task_id in ids}
    assert len({env.reset(options={"task_id": task_id})[1]["task_type"] for task_id, env in playing.items()}) == 6
    for _ in range(50):
        for task_id, env in list(playing.items()):
            action = expert.act(env)
            assert action == expert.act(env)
            assert action[0].arguments["command"] in env.observation["commands"]
            _, _, done, _, info = env.step(action)
            if done:
                assert info["success"], task_id
                del playing[task_id]
    assert not playing
