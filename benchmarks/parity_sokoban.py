"""Compare Sokoban with recordings of gym-sokoban: the reward of each move, and the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium

from benchmarks.parity_report import Report
from envsuite.core import ToolCall

MOVES = 60
"""Moves after which the recorded episodes are cut."""
REWARD_ERROR = 1e-9
Make = Callable[..., gymnasium.Env[Any, Any]]


def compare(episodes: Sequence[Mapping[str, Any]], make: Make = gymnasium.make) -> Report:
    """Replays episodes.

    Args:
        episodes: Each with ``task_id``, ``level`` (the rows of the board), ``actions``, ``rewards`` and ``done``.
        make: Makes the environment from its id and arguments.
    """
    report = Report()
    env = make("Sokoban-v0", split=None, reward="gym-sokoban", max_episode_steps=MOVES)
    for episode in episodes:
        where = episode["task_id"]
        first, _ = env.reset(options={"task_id": where})
        report.same("boards", where, first["text"].split("\n"), episode["level"])
        done = truncated = False
        for number, (direction, recorded) in enumerate(zip(episode["actions"], episode["rewards"], strict=True)):
            place = f"{where}, move {number} {direction!r}"
            _, reward, done, truncated, _ = env.step((ToolCall("move", {"direction": direction}),))
            report.near("rewards of moves", place, reward, recorded, REWARD_ERROR)
        report.same("ends", where, done or truncated, episode["done"])
    return report
