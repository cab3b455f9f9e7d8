"""The figures of TextCraft-v0."""

from __future__ import annotations

import copy

import gymnasium

from benchmarks.envs.measure import EPISODES, Row, import_seconds, memory, reset_rate, seconds, step_rates
from envsuite.core.tools import ToolCall
from envsuite.textcraft.env import TextCraft
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
    plays = {
        task_id: [(ToolCall("env_step", {"command": c}),) for c in commands] for task_id, commands in plans.items()
    }

    def world() -> None:
        for task_id, commands in plans.items():
            crafting = Crafting(book, NAMESPACE + task_id)
            for command in commands:
                crafting.do(command)

    def first_resets() -> None:
        bare.book = copy.copy(book)  # instructions are cached for each book
        for task_id in ids:
            bare.reset(options={"task_id": task_id})

    def read_book() -> None:
        builtin_book.cache_clear()
        task_set(builtin_book(), "builtin")

    def draw_book() -> None:
        generated_book.cache_clear()
        task_set(generated_book(1, 2000), "generated")

    craftable_names()
    bare = TextCraft()
    envs = {
        "whole contract: TextCraft.step": bare,
        "through gymnasium.make, env checker off": gymnasium.make("TextCraft-v0", disable_env_checker=True),
        "through gymnasium.make, env checker on": gymnasium.make("TextCraft-v0"),
    }
    return [
        ("world alone", f"{sum(map(len, plans.values())) / seconds(world):,.0f} steps/s"),
        *step_rates(envs, plays),
        ("reset, task seen before", reset_rate(bare, plays)),
        ("reset, task not seen before", f"{len(ids) / seconds(first_resets):,.0f} resets/s"),
        memory(TextCraft, plays),
        (
            f"constructing {EPISODES} environments",
            f"{seconds(lambda: [TextCraft() for _ in range(EPISODES)]) * 1e3:.1f} ms",
        ),
        ("reading the built-in book and its tasks", f"{seconds(read_book) * 1e3:.0f} ms"),
        ("generating a book of 2,000 goals and its tasks", f"{seconds(draw_book, 3) * 1e3:.0f} ms"),
        ("import envsuite, over importing gymnasium", f"{import_seconds() * 1e3:.0f} ms"),
    ]
