"""Trajectories in ATIF, read by models of the format that others have written."""

import json

import pytest
from test_demonstrations import FEW, IDS

from envsuite.evaluation.demonstrations.file import read_demonstrations

atif = pytest.importorskip("atif", reason="needs atif: pip install atif")


@pytest.mark.parametrize("env_id", IDS)
def test_trajectories_are_valid_and_have_every_action_and_reward(env_id, tmp_path, console):
    path, folder = tmp_path / "a.jsonl", tmp_path / "atif"
    few = " ".join(f"--option={name}={value}" for name, value in FEW.get(env_id, {}).items())
    console(f"export demos {env_id} --n 2 --out {path} {few}")
    console(f"export demos {path} --form atif --out {folder}")
    for file, shown in zip(sorted(folder.iterdir()), read_demonstrations(path), strict=True):
        read = atif.Trajectory.model_validate(json.loads(file.read_text()))
        steps = read.steps[1:]
        assert read.to_json_dict() == json.loads(file.read_text())
        assert [[(c.function_name, c.arguments) for c in step.tool_calls] for step in steps] == [
            [(call.name, dict(call.arguments)) for call in step.action] for step in shown.steps
        ]
        assert sum(step.extra["reward"] for step in steps) == shown.reward
        assert [step.observation.results[0].content for step in steps] == [
            step.observation["text"] for step in shown.steps
        ]
