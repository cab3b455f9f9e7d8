"""Trajectories in ATIF, read by models of the format that others have written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_demonstrations import FEW, IDS

from envsuite.cli import main
from envsuite.evaluation.demonstrations import read_demonstrations

atif = pytest.importorskip("atif", reason="needs atif: pip install atif")


@pytest.mark.parametrize("env_id", IDS)
def test_trajectories_are_valid_and_have_every_action_and_reward(
    env_id: str, tmp_path: Path, data_folder: Path
) -> None:
    path, folder = tmp_path / "a.jsonl", tmp_path / "atif"
    few = [f"--option={name}={value}" for name, value in FEW.get(env_id, {}).items()]
    assert main(["export", "demos", env_id, "--n", "2", "--out", str(path), *few]) == 0
    assert main(["export", "demos", str(path), "--form", "atif", "--out", str(folder)]) == 0
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
