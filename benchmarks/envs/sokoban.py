"""The figures of Sokoban-v0."""

from __future__ import annotations

import random
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium

from benchmarks.envs.measure import Row, seconds
from envsuite.core.draws import Draw
from envsuite.core.tools import Action, ToolCall
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
    directions = [[draw.choice(DIRECTIONS) for _ in range(_MOVES)] for _ in ids]
    actions: list[list[Action]] = [[(ToolCall("move", {"direction": d}),) for d in moves] for moves in directions]
    calls: list[Action] = [tuple(action[0] for action in one) for one in actions]

    def world() -> None:
        for level, moves in zip(boards, directions, strict=True):
            move = Sokoban(level).move
            for direction in moves:
                move(direction)

    def contract(env: gymnasium.Env[Any, Any], played: list[list[Action]]) -> Callable[[], int]:
        def play() -> int:
            steps = 0
            for task_id, moves in zip(ids, played, strict=True):
                env.reset(options={"task_id": task_id})
                for action in moves:
                    steps += 1
                    if env.step(action)[2]:
                        break
            return steps

        return play

    def resets() -> None:
        for task_id in ids:
            bare.reset(options={"task_id": task_id})

    bare, many, seen = SokobanEnv(), SokobanEnv(max_calls=_MOVES), SokobanEnv(observation="image")
    made = gymnasium.make("Sokoban-v0", disable_env_checker=True)
    resetting = seconds(resets)
    steps = contract(bare, actions)()
    rows = [
        ("world alone", f"{len(ids) * _MOVES / seconds(world):,.0f} moves/s"),
        ("whole contract: SokobanEnv.step", f"{steps / (seconds(contract(bare, actions)) - resetting):,.0f} steps/s"),
        ("15 moves in a step", f"{steps / (seconds(contract(many, [[c] for c in calls])) - resetting):,.0f} moves/s"),
        ("shown as images", f"{steps / (seconds(contract(seen, actions)) - resetting):,.0f} steps/s"),
        (
            "through gymnasium.make, env checker off",
            f"{steps / (seconds(contract(made, actions)) - resetting):,.0f} steps/s",
        ),
        ("reset, level seen before", f"{len(ids) / resetting:,.0f} resets/s"),
    ]
    tracemalloc.start()
    envs = [SokobanEnv() for _ in range(128)]
    for env, task_id in zip(envs, ids, strict=False):
        env.reset(options={"task_id": task_id})
    rows.append(("memory of 128 episodes more", f"{tracemalloc.get_traced_memory()[0] / 1e6:.2f} MB"))
    tracemalloc.stop()
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
