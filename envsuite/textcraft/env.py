"""``TextCraft-v0``: the crafting world as an environment of tool calls."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from envsuite.core.caches import cache_by_owner
from envsuite.core.draws import Draw
from envsuite.core.env import Observation, Outcome, ToolEnv
from envsuite.core.options import SEED, EnvOptions, option, source
from envsuite.core.tools import Tool, ToolCall
from envsuite.textcraft import prompts
from envsuite.textcraft.planning import plan
from envsuite.textcraft.tasks import load
from envsuite.textcraft.world import EMPTY, NAMESPACE, Crafting, CraftRecipe, RecipeBook, item_id, spoken_name


@dataclass(frozen=True, kw_only=True)
class TextCraftOptions(EnvOptions):
    """The options of ``TextCraft-v0``."""

    env_id: ClassVar[str] = "TextCraft-v0"
    source: str | Path = source(
        about='"builtin" (the recipes of Minecraft 1.16), "generated" (a recipe book drawn from book_seed), "official" '
        "(the folder textcraft in $ENVSUITE_DATA), or the path of a folder of Minecraft recipe files"
    )
    book_seed: int = option(0, "seed of the generated book", **SEED)
    goals: int = option(1000, "number of goals of the generated book", clients={"maximum": 10_000})
    max_distractors: int = option(10, "most recipes shown that the goal does not need", clients={"maximum": 1_000})
    show_inventory: bool = option(
        False, "whether each observation ends with the inventory; otherwise the command inventory shows it"
    )
    spare: int | None = option(
        None,
        "limits the stock of base items, so that what is wasted may be missed in the end: of each one in a recipe that "
        "is shown, an episode has this many more than a best plan takes, or than one craft of any recipe shown takes "
        "where that is more, and each observation ends with what is left; null: no limit, as in the original",
        minimum=0,
        clients={"maximum": 1_000},
    )


class TextCraft(ToolEnv):
    """Crafting tasks: make a goal item from base items, by recipes that the instruction lists among distractors.

    Args:
        given: Values of :class:`TextCraftOptions`.

    A task id is the name of the goal, e.g. ``cyan_banner``. The id alone determines the order of the recipes and the
    distractors; ``cyan_banner#7`` is the same goal with other draws.
    """

    tools = (Tool.of_string("env_step", prompts.TOOL, "command", prompts.COMMAND),)

    takes = TextCraftOptions

    def __init__(self, **given: Any) -> None:
        options = TextCraftOptions.of(given)
        self.book, task_set = load(str(options.source), options.book_seed, options.goals)
        self.max_distractors, self.show_inventory = options.max_distractors, options.show_inventory
        self.spare = options.spare
        super().__init__(task_set.select(options.tasks), options.split, options.render_mode)
        self.world = Crafting(self.book, "")
        self._shown: tuple[CraftRecipe, ...] = ()

    def _describe(self, task_id: str) -> tuple[str, str]:
        return super()._describe(goal_of(task_id))

    def _goal(self, task_id: str) -> str:
        return instruct(self.book, task_id, self.max_distractors)[1]

    def _identity(self, task_id: str) -> dict[str, Any]:
        """Returns the goal item, its depth, the version of the recipes, and a SHA-256 of those that the goal needs.

        The SHA-256 is that of the needed recipes' texts, sorted and joined by line feeds. With the original's recipe
        files ``data_idx`` is the number of the goal in AgentGym's order; see :attr:`RecipeBook.by_depth`.
        """
        item = NAMESPACE + goal_of(task_id)
        texts = "\n".join(sorted(recipe.text for recipe in self.book.needed_recipes(item)))
        facts = {
            "item": item,
            "depth": self.book.depth[item],
            "recipes": self.book.version,
            "recipes_sha256": hashlib.sha256(texts.encode()).hexdigest(),
        }
        return facts | ({"data_idx": self.book.by_depth[item]} if self.tasks.source == "official" else {})

    def _begin(self, task_id: str) -> tuple[str, Outcome]:
        goal = goal_of(task_id)
        self._shown, instruction = instruct(self.book, task_id, self.max_distractors)
        stock = None if self.spare is None else stock_of(self.book, NAMESPACE + goal, self._shown, self.spare)
        self.world = Crafting(self.book, NAMESPACE + goal, stock=stock)
        return instruction, Outcome(EMPTY)

    def _call(self, call: ToolCall) -> Outcome:
        text, ok, at_goal = self.world.do(call.arguments["command"])
        if at_goal:
            return Outcome(text, reward=1.0, done=True, success=True, score=1.0)
        return Outcome(text, error=None if ok else text)

    def _observe(self, outcome: Outcome) -> Observation:
        items = sorted(self.world.inventory.items())
        if self.show_inventory and items and not outcome.text.startswith("Inventory: "):
            listing = " ".join(f"[{spoken_name(item)}] ({count})" for item, count in items)
            outcome = replace(outcome, text=f"{outcome.text}\nInventory: {listing}")
        if self.world.stock is not None:
            stock = ", ".join(f"{count} {spoken_name(item)}" for item, count in self.world.stock.items() if count)
            outcome = replace(outcome, text=f"{outcome.text}\nLeft to get: {stock or 'nothing'}")
        return super()._observe(outcome)

    def _state_key(self) -> str:
        text = "" if self._last is None else self._last["text"]  # the stock, too, where there is one
        return f"{text}\n{sorted(self.world.inventory.items())}"

    def _propose(self, rng: np.random.Generator) -> ToolCall:
        recipes = self._shown or tuple(way for ways in self.book.recipes.values() for way in ways)
        recipe = recipes[int(rng.integers(len(recipes)))]
        kind = int(rng.integers(8))
        if kind == 0:
            command = "inventory"
        elif kind < 4:
            part = recipe.inputs[int(rng.integers(len(recipe.inputs)))]
            command = f"get {int(rng.integers(1, 9))} {spoken_name(part.name)}"
        else:
            command = recipe.text
        return ToolCall("env_step", {"command": command})

    def _save(self) -> dict[str, list[tuple[str, int]]]:
        """Returns pairs, since ``inventory`` answers in the order in which items were obtained."""
        return {"inventory": [*self.world.inventory.items()], "stock": [*(self.world.stock or {}).items()]}

    def _resume(self, task_id: str, world: dict[str, list[tuple[str, int]]]) -> None:
        self._begin(task_id)
        self.world.inventory.update(world["inventory"])
        if self.world.stock is not None:
            self.world.stock.update(world["stock"])


def goal_of(task_id: str) -> str:
    """Returns the goal of a task id, without the number of its variant."""
    goal, mark, variant = task_id.partition("#")
    return goal if mark and variant.isdecimal() else task_id


def stock_of(book: RecipeBook, goal: str, recipes: Iterable[CraftRecipe], spare: int) -> dict[str, int]:
    """Returns the stock of each base item that ``recipes`` name, as the argument ``spare`` says."""
    needs: Counter[str] = Counter()
    for command in plan(book, goal):
        if command.startswith("get "):
            amount, name = command.removeprefix("get ").split(" ", 1)
            needs[item_id(name)] += int(amount)
    most: dict[str, int] = {}
    for part in (part for recipe in recipes for part in recipe.inputs):
        for item in book.members[part.name] if part.family else (part.name,):
            if item in book.base:
                most[item] = max(most.get(item, 0), part.count)
    return {item: max(needs[item], count) + spare for item, count in sorted(most.items())}


@cache_by_owner(4096)
def instruct(book: RecipeBook, task_id: str, max_distractors: int = 10) -> tuple[tuple[CraftRecipe, ...], str]:
    """Returns the recipes that a task shows, and its instruction.

    The recipes are those that the goal needs and at most ``max_distractors`` others that use the same ingredients. The
    book's version and the task id determine draws and order.
    """
    goal = NAMESPACE + goal_of(task_id)
    goal_recipes = book.needed_recipes(goal)
    draw = Draw(f"{book.version} {task_id}")
    recipes = [*goal_recipes, *draw.sample(book.distractors(goal_recipes), max_distractors)]
    task_recipes = tuple(draw.sample(recipes, len(recipes)))
    return task_recipes, prompts.task([recipe.text for recipe in task_recipes], spoken_name(goal))
