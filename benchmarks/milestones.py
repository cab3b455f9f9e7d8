"""Measure what milestones cost: the expert plays the same tasks with and without them.

    python -m benchmarks.milestones

The last column is what ``method.milestones: {of: expert}`` costs besides, once per task and process: an episode of the
expert. Times are CPU milliseconds, the median over the tasks, all of which were played once before.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from statistics import median

from rich.console import Console
from rich.table import Table

import envsuite  # noqa: F401  (registers the ids)
from envsuite.vector import EnvFactory
from envsuite.vector.milestones import REACHED, TOTAL, Guide, MilestoneFactory, expert_of

ENVIRONMENTS = {
    "TextCraft-v0": {"split": "train"},
    "ALFWorld-v0": {"split": "train"},
    "WebShop-v0": {"split": "train", "source": "builtin"},
    "Sokoban-v0": {"split": "train"},
    "Bifurcation-v0": {"split": "train"},
    "PythonMath-v0": {"split": "train", "interpreter": "unisolated"},
}


def played(factory: EnvFactory, tasks: Sequence[str]) -> tuple[list[float], list[float], int]:
    """Returns CPU milliseconds of each task's episode, milestones reached in each, and episodes solved."""
    env = factory.make()
    times, found, solved = [], [], 0
    for task in tasks:
        expert = expert_of(factory.env_id)
        began = time.process_time()
        _, info = env.reset(options={"task_id": task})
        over = False
        while not over:
            _, _, terminated, truncated, info = env.step(expert.act(env))
            over = terminated or truncated
        times.append(1000 * (time.process_time() - began))
        found.append(info["metrics"].get(TOTAL, 0.0))
        solved += info["success"]
        assert REACHED in info or not isinstance(factory, MilestoneFactory)
    env.close()
    return times, found, solved


def main(arguments: list[str] | None = None) -> int:
    """Prints a table; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.milestones", description=main.__doc__)
    parser.add_argument("--tasks", type=int, default=40, help="tasks of each environment (default: %(default)s)")
    parser.add_argument("--only", nargs="+", choices=list(ENVIRONMENTS), default=list(ENVIRONMENTS))
    options = parser.parse_args(arguments)
    table = Table(title=f"The expert's episodes of {options.tasks} tasks, CPU ms each (median)")
    for name in ("environment", "solved", "milestones", "without", "with", "expert, once per task"):
        table.add_column(name, justify="left" if name == "environment" else "right")
    for env_id in options.only:
        kwargs = {"max_episode_steps": 500, **ENVIRONMENTS[env_id]}
        plain = EnvFactory(env_id, kwargs)
        made = plain.make()
        tasks = made.unwrapped.tasks.ids("train")[: options.tasks]  # type: ignore[attr-defined]
        made.close()
        played(plain, tasks)  # loads what environments share
        without, _, solved = played(plain, tasks)
        seen, found, _ = played(MilestoneFactory(env_id, kwargs), tasks)
        guide, once = Guide(plain), []
        for task in tasks:
            began = time.process_time()
            guide.actions(task)
            once.append(1000 * (time.process_time() - began))
        numbers = (median(without), median(seen), median(once))
        mean = sum(found) / max(1, len(found))
        table.add_row(env_id, f"{solved} of {len(tasks)}", f"{mean:.1f}", *(f"{number:.2f}" for number in numbers))
    Console().print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
