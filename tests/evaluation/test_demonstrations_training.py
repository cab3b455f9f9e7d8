"""Demonstrations in the trainer: imitated from a file, and made of a run's episodes."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from test_demonstrations import some_episode

from envsuite.core import DataError, UnparsedAction
from envsuite.evaluation.demonstrations.demonstration import Demonstration
from envsuite.evaluation.demonstrations.file import read_demonstrations, write_demonstrations
from envsuite.playing.step import Episode, Step
from envsuite.remote.making import make
from trainers.imitation.demonstrations import demonstrations
from trainers.programs.export_episodes import main as export_main
from trainers.steps.parquet import write_episodes

FEW = {"source": "generated", "goals": 60, "max_distractors": 0}


def test_a_file_is_read_as_a_folder_of_episodes_is(tmp_path):
    path = tmp_path / "some.jsonl"
    env = make("TextCraft-v0")
    shown = [some_episode(env, task, 0, wild) for task, wild in zip(env.tasks.ids("train"), (0, 4, 4), strict=False)]
    failed = replace(shown[0], success=False)
    write_demonstrations(path, [*shown, failed])
    found = demonstrations(path, "TextCraft-v0")
    assert found.played == 4 and [task for task, _ in found.players] == [one.task_id for one in shown]
    for (_, player), one in zip(found.players, shown, strict=True):
        kept = [step for step in one.steps if not isinstance(step.action, UnparsedAction)]
        assert [move.action for move in player.moves] == [step.action for step in kept]
        assert [move.slip for move in player.moves] == [not step.valid for step in kept]
    for seed in range(6):
        found.draw(env, random.Random(seed))  # each solves its task again
    with pytest.raises(DataError, match=r"0 episodes of ALFWorld-v0, none of which .*TextCraft-v0"):
        demonstrations(path, "ALFWorld-v0")
    with pytest.raises(DataError, match="no file or folder"):
        demonstrations(tmp_path / "other.jsonl", "TextCraft-v0")


def recorded(shown: Demonstration, number: int) -> Episode:
    """The episode as a run records it."""
    steps, seen = [], shown.first["text"]
    for t, step in enumerate(shown.steps):
        action = None if isinstance(step.action, UnparsedAction) else step.action
        problem = step.action.problem if isinstance(step.action, UnparsedAction) else None
        steps.append(
            Step(t, np.array([1]), np.array([2]), np.array([0.0]), np.array([0]), "stop", seen, "", action, problem,
                 step.valid, step.reward)
        )  # fmt: skip
        seen = step.observation["text"]
    return Episode(
        number, number, shown.env_id, shown.task_id, shown.task_type, shown.split, shown.first["task"], tuple(steps),
        True, False, shown.success, shown.score,
    )  # fmt: skip


def test_episodes_of_a_run_become_the_demonstrations_that_they_are(tmp_path, console):
    env, out = make("TextCraft-v0", **FEW), tmp_path / "out.jsonl"
    shown = [some_episode(env, task, 1, wild) for task, wild in zip(env.tasks.ids("train"), (0, 5), strict=False)]
    lost = replace(some_episode(env, env.tasks.ids("train")[2], 0, 0), success=False)
    write_episodes(tmp_path / "run" / "episodes.parquet", [recorded(one, n) for n, one in enumerate([*shown, lost])])
    options = " ".join(f"--option={name}={value}" for name, value in FEW.items())
    line = f"{tmp_path}/run --env TextCraft-v0 --out {out} {options}"
    assert console(line, main=export_main)[0] == f"2 of 3 episodes of TextCraft-v0 written to {out}\n"
    for made_of, one in zip(read_demonstrations(out), shown, strict=True):
        assert (made_of.steps, made_of.first, made_of.success) == (one.steps, one.first, True)
        assert made_of.player == "policy" and made_of.env_options == FEW
    out.unlink()
    other = f"--env Sokoban-v0 --out {out}"
    for words, said in (
        (line.replace("max_distractors=0", "max_distractors=9"), "takes another course here at step 0"),
        (f"{tmp_path}/run {other}", "0 episodes of Sokoban-v0"),
        (f"{tmp_path}/none {other}", "no such file"),
    ):
        assert said in console(words, 2, export_main)[1] and not out.exists()
