"""Folders in the official layout with games that have the right keys and cannot be played: enough for an index."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from envsuite.alfworld.game_file import GAME, TRAJECTORY

FAMILY = "pick_and_place_simple"


def write_game(root: Path, split: str, task: str, trial: str = "trial_T1", text: str = "", **changes: Any) -> Path:
    """Write a game; returns its folder. ``changes`` replace keys of the game, or of the trajectory (``task_type``)."""
    folder = root / "json_2.1.1" / split / task / trial
    folder.mkdir(parents=True, exist_ok=True)
    family = changes.pop("task_type", task.partition("-")[0])
    game = {"pddl_domain": "(define)", "grammar": "", "pddl_problem": text, "solvable": True, "walkthrough": []}
    (folder / GAME).write_bytes(orjson.dumps(game | changes))
    (folder / TRAJECTORY).write_bytes(orjson.dumps({"task_type": family, "plan": {}}))
    return folder


def write_games(root: Path, count: int = 3) -> Path:
    """``count`` games in each published split."""
    for split in ("train", "valid_seen", "valid_unseen"):
        for number in range(count):
            write_game(root, split, f"{FAMILY}-Mug-None-Desk-{number}", f"trial_{split}", text=f"{split} {number}")
    return root
