"""The figures of TextCraft-v0."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import gymnasium

from benchmarks.envs.measure import Row, import_seconds, seconds
from envsuite.core.tools import Action, ToolCall
from envsuite.textcraft.env import TextCraft, instruct
from envsuite.textcraft.generate import generated_book
from envsuite.textcraft.planning import plan
from envsuite.textcraft.source import builtin_book, craftable_names
from envsuite.textcraft.tasks import task_set
from envsuite.textcraft.world import NAMESPACE, Crafting


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
