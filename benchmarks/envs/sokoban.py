"""The figures of Sokoban-v0."""

from __future__ import annotations

import random
import time
from pathlib import Path

import gymnasium

from benchmarks.envs.measure import Plays, Row, memory, play, reset_rate, seconds, step_rates
from envsuite.core.draws import Draw
from envsuite.core.tools import ToolCall
from envsuite.sokoban.env import SokobanEnv
from envsuite.sokoban.generate import LevelKind, generate
from envsuite.sokoban.level import DIRECTIONS, Level
from envsuite.sokoban.solver import solve
from envsuite.sokoban.source import LevelFolder
from envsuite.sokoban.tasks import load
from envsuite.sokoban.world import Sokoban

_MOVES = 15
_SECOND = 1.0  # a solver gets this long for a level


def sokoban(boxoban: Path | None, count: int) -> list[Row]:
    """The figures of Sokoban-v0 on the built-in source, in random play; with ``boxoban`` also those of the solver."""
    levels, task_set = load("builtin", LevelKind(), 0, 0)
    ids = list(task_set.types)
    boards = [levels.level(task_id) for task_id in ids]
    draw = random.Random(0)
    directions = {task_id: [draw.choice(DIRECTIONS) for _ in range(_MOVES)] for task_id in ids}
    calls = {task_id: [ToolCall("move", {"direction": d}) for d in moves] for task_id, moves in directions.items()}
    plays: Plays = {task_id: [(call,) for call in moves] for task_id, moves in calls.items()}

    def world() -> None:
        for level, moves in zip(boards, directions.values(), strict=True):
            move = Sokoban(level).move
            for direction in moves:
                move(direction)

    bare, many = SokobanEnv(), SokobanEnv(max_calls=_MOVES)
    at_once: Plays = {task_id: [tuple(moves)] for task_id, moves in calls.items()}
    spent = seconds(lambda: play(many, at_once)) - seconds(lambda: play(many, at_once, 0))
    rows = [
        ("world alone", f"{len(ids) * _MOVES / seconds(world):,.0f} moves/s"),
        (f"{_MOVES} moves in a step", f"{play(bare, plays) / spent:,.0f} moves/s"),
        *step_rates(
            {
                "whole contract: SokobanEnv.step": bare,
                "shown as images": SokobanEnv(observation="image"),
                "through gymnasium.make, env checker off": gymnasium.make("Sokoban-v0", disable_env_checker=True),
            },
            plays,
        ),
        ("reset, level seen before", reset_rate(bare, plays)),
        memory(SokobanEnv, {task_id: [] for task_id in ids}),
    ]
    for kind in (LevelKind(), LevelKind(8, 8, 3, (5, 60)), LevelKind(10, 10, 4, (8, 60))):
        name = f"generating {kind.width}x{kind.height}, {kind.boxes} boxes, at least {kind.pushes[0]} pushes"
        rows.append((name, f"{seconds(lambda kind=kind: _generated(kind), 2) / 20 * 1e3:.1f} ms a level"))
    if boxoban is not None:
        for folder in sorted(path for path in boxoban.iterdir() if path.is_dir()):
            rows += _solved(folder, LevelFolder(folder), count)
    return rows


def _generated(kind: LevelKind) -> list[Level]:
    return [generate(kind, Draw(f"benchmark {number}"))[0] for number in range(20)]


def _solved(folder: Path, levels: LevelFolder, count: int) -> list[Row]:
    """How the solver does on the first ``count`` levels of each file in a folder."""
    by_file: dict[str, list[str]] = {}
    for task_id in levels.listed:
        by_file.setdefault(task_id.partition("#")[0], []).append(task_id)
    rows = []
    for name, ids in by_file.items():
        solved = quick = states = pushes = 0
        spent = 0.0
        for task_id in ids[:count]:
            level = levels.level(task_id)
            began = time.process_time()
            found = solve(level)
            took = time.process_time() - began
            spent, states = spent + took, states + found.states
            if found.moves is not None:
                solved, quick, pushes = solved + 1, quick + (took <= _SECOND), pushes + found.pushes
        number = len(ids[:count])
        rows += [
            (f"{folder.name}/{name}: solved with the fewest pushes", f"{solved} of {number}"),
            ("    in a second each", f"{quick / number:.1%}"),
            ("    states", f"{states / spent:,.0f} a second"),
            ("    pushes of a solution", f"{pushes / max(solved, 1):.1f}"),
        ]
    return rows
