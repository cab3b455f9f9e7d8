"""What the measurements of all environments share."""

from __future__ import annotations

import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium

from envsuite.core.tools import Action

ROUNDS = 5
EPISODES = 128
"""Episodes whose memory is measured."""

Row = tuple[str, str]
"""What was measured, and the figure with its unit."""
Env = gymnasium.Env[Any, Any]
Plays = Mapping[str, Sequence[Action]]
"""The actions of an episode of each task."""


def seconds(work: Callable[[], object], rounds: int = ROUNDS) -> float:
    """CPU seconds that ``work`` takes, at best."""
    times = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def play(env: Env, plays: Plays, most: int | None = None) -> int:
    """Plays an episode of each task, of at most so many steps; returns the steps taken."""
    steps = 0
    for task_id, actions in plays.items():
        env.reset(options={"task_id": task_id})
        for action in actions[:most]:
            steps += 1
            if env.step(action)[2]:
                break
    return steps


def reset_rate(env: Env, plays: Plays) -> str:
    """Resets a second."""
    return f"{len(plays) / seconds(lambda: play(env, plays, 0)):,.0f} resets/s"


def step_rates(envs: Mapping[str, Env], plays: Plays, unit: str = "steps") -> list[Row]:
    """Steps a second of each environment, the time of resets taken off."""
    rows = []
    for name, env in envs.items():
        steps = play(env, plays)
        spent = seconds(lambda env=env: play(env, plays)) - seconds(lambda env=env: play(env, plays, 0))  # type: ignore[misc]
        rows.append((name, f"{steps / spent:,.0f} {unit}/s"))
    return rows


def memory(make: Callable[[], Env], plays: Plays) -> Row:
    """Memory that Python's allocator gives to :data:`EPISODES` further environments in an episode each."""
    tracemalloc.start()
    envs = [make() for _ in range(EPISODES)]
    for env, (task_id, actions) in zip(envs, plays.items(), strict=False):
        play(env, {task_id: actions})
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return f"memory of {EPISODES} episodes more", f"{used / 1e6:.2f} MB"


def import_seconds() -> float:
    """CPU seconds that ``import envsuite`` takes in a fresh interpreter that has imported gymnasium."""
    code = "import gymnasium, time; start = time.process_time(); import envsuite; print(time.process_time() - start)"
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(3)]
    return min(float(run.stdout) for run in runs)
