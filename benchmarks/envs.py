"""Measure environments: steps and resets a second, memory, start-up.

    python -m benchmarks.envs textcraft
    python -m benchmarks.envs webshop

Times are CPU seconds of one thread; the best of five rounds counts, since other programs only ever slow one down.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium

import envsuite
from envsuite.core.tools import Action, ToolCall
from envsuite.textcraft.env import TextCraft, instruct
from envsuite.textcraft.generate import generated_book
from envsuite.textcraft.planning import plan
from envsuite.textcraft.source import builtin_book, craftable_names
from envsuite.textcraft.tasks import task_set
from envsuite.textcraft.world import NAMESPACE, Crafting

ROUNDS = 5

Row = tuple[str, str]
"""What was measured, and the figure with its unit."""


def seconds(work: Callable[[], object], rounds: int = ROUNDS) -> float:
    """CPU seconds that ``work`` takes, at best."""
    times = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def import_seconds() -> float:
    """CPU seconds that ``import envsuite`` takes in a fresh interpreter that has imported gymnasium."""
    code = "import gymnasium, time; start = time.process_time(); import envsuite; print(time.process_time() - start)"
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(3)]
    return min(float(run.stdout) for run in runs)


def textcraft() -> list[Row]:
    """The figures of TextCraft-v0 on the built-in source; every episode is the expert's."""
    book = builtin_book()
    ids = [task_id for split in task_set(book, "builtin").splits.values() for task_id in split]
    plans = {task_id: plan(book, NAMESPACE + task_id) for task_id in ids}
    actions: dict[str, list[Action]] = {
        task_id: [(ToolCall("env_step", {"command": command}),) for command in commands]
        for task_id, commands in plans.items()
    }
    steps = sum(map(len, plans.values()))

    def world() -> None:
        for task_id, commands in plans.items():
            crafting = Crafting(book, NAMESPACE + task_id)
            for command in commands:
                crafting.do(command)

    def contract(env: gymnasium.Env[Any, Any]) -> Callable[[], None]:
        def play() -> None:
            for task_id in ids:
                env.reset(options={"task_id": task_id})
                for action in actions[task_id]:
                    env.step(action)

        return play

    def resets() -> None:
        for task_id in ids:
            bare.reset(options={"task_id": task_id})

    def first_resets() -> None:
        instruct.cache_clear()
        resets()

    bare = TextCraft()
    made = gymnasium.make("TextCraft-v0", disable_env_checker=True)
    checked = gymnasium.make("TextCraft-v0")
    resetting = seconds(resets)
    rows = [
        ("world alone", f"{steps / seconds(world):,.0f} steps/s"),
        ("whole contract: TextCraft.step", f"{steps / (seconds(contract(bare)) - resetting):,.0f} steps/s"),
        ("through gymnasium.make, env checker off", f"{steps / (seconds(contract(made)) - resetting):,.0f} steps/s"),
        ("through gymnasium.make, env checker on", f"{steps / (seconds(contract(checked)) - resetting):,.0f} steps/s"),
        ("reset, task seen before", f"{len(ids) / resetting:,.0f} resets/s"),
        ("reset, task not seen before", f"{len(ids) / seconds(first_resets):,.0f} resets/s"),
    ]
    tracemalloc.start()
    envs = [TextCraft() for _ in range(128)]
    for env, task_id in zip(envs, ids, strict=False):
        env.reset(options={"task_id": task_id})
        for action in actions[task_id]:
            env.step(action)
    rows.append(("memory of 128 episodes more", f"{tracemalloc.get_traced_memory()[0] / 1e6:.2f} MB"))
    tracemalloc.stop()
    rows.append(("constructing 128 environments", f"{seconds(lambda: [TextCraft() for _ in range(128)]) * 1e3:.1f} ms"))

    def read_book() -> None:
        builtin_book.cache_clear()
        task_set(builtin_book(), "builtin")

    def draw_book() -> None:
        generated_book.cache_clear()
        task_set(generated_book(1, 2000), "generated")

    craftable_names()
    rows.append(("reading the built-in book and its tasks", f"{seconds(read_book) * 1e3:.0f} ms"))
    rows.append(("generating a book of 2,000 goals and its tasks", f"{seconds(draw_book, 3) * 1e3:.0f} ms"))
    rows.append(("import envsuite, over importing gymnasium", f"{import_seconds() * 1e3:.0f} ms"))
    return rows


def webshop() -> list[Row]:
    """The figures of WebShop-v0 on the official files in $ENVSUITE_DATA."""
    from benchmarks.envs_webshop import webshop as measure  # it imports this module

    return measure()


ENVIRONMENTS: dict[str, Callable[[], list[Row]]] = {"textcraft": textcraft, "webshop": webshop}


def main(argv: Sequence[str] | None = None) -> None:
    """Print the figures of the environment that ``argv`` names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.envs", description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="environment", required=True)
    for name, measure in ENVIRONMENTS.items():
        commands.add_parser(name, help=(measure.__doc__ or "").split("\n")[0])
    rows = ENVIRONMENTS[parser.parse_args(argv).environment]()
    width = max(len(what) for what, _ in rows)
    sys.stdout.write(f"envsuite {envsuite.__version__}, gymnasium {gymnasium.__version__}\n")
    sys.stdout.writelines(f"{what:<{width}}  {figure:>18}\n" for what, figure in rows)


if __name__ == "__main__":
    main()
