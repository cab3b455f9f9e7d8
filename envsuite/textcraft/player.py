"""A player that states its plans and makes human-like mistakes: demonstrations for a small base model."""

from __future__ import annotations

import random
import string
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium

from envsuite.core.errors import UsageError
from envsuite.core.players import unwrap_local_env
from envsuite.core.practice import FallibleTeacher
from envsuite.core.tools import Action, Move, ToolCall
from envsuite.textcraft.planning import Choices, choices
from envsuite.textcraft.world import CraftRecipe, Ingredient, RecipeBook, spoken_name


@dataclass(frozen=True)
class PlanPart:
    """One ingredient of a plan."""

    listed: str
    """The item or family in the parent recipe."""
    item: str
    """The item that is used for it."""
    count: int
    """Amount that one craft of the parent recipe takes."""
    recipe: CraftRecipe | None
    """The recipe that makes it; ``None`` if it is obtained by ``get``."""
    times: int
    """Number of crafts of ``recipe`` that all crafts of the parent recipe need."""
    label: str
    """Label of the part in the plan, if it is crafted: A for the goal, then in order."""

    @property
    def text(self) -> str:
        """Formats the part in a plan, e.g. ``8 planks: B craft 4 oak planks using 1 oak logs; 2 times``."""
        if self.recipe is not None:
            return f"{self.count} {spoken_name(self.listed)}: {self.label} {self.recipe.text}; {self.times} times"
        item = "" if self.item == self.listed else f" {spoken_name(self.item)}"
        return f"{self.count} {spoken_name(self.listed)}: get{item}"


def outline(
    book: RecipeBook, goal: str, careless: float = 0.0, rng: random.Random | None = None
) -> list[tuple[PlanPart, list[PlanPart]]]:
    """Plans ``goal``: returns each crafted part with its own parts, breadth first, from the goal down.

    Executed from the last to the first, each its number of times, the plan needs no further calculation. A part that
    two recipes share is made for each of them.

    Args:
        book: The recipes.
        goal: Item to make.
        careless: Probability that a part which must be crafted is mistaken for a base item.
        rng: Source of randomness; needed if ``careless`` is positive.

    Raises:
        UsageError: No recipe makes ``goal``.
    """
    choice = choices(book, goal)
    if goal not in choice.recipe:
        raise UsageError(f"no recipe leads to {spoken_name(goal)!r}; choose a goal of the task set")
    parts = [PlanPart(goal, goal, 1, choice.recipe[goal], 1, label(0))]
    plan = []
    for part in parts:
        below = []
        for ingredient in part.recipe.inputs if part.recipe is not None else ():
            mistake = careless > 0.0 and rng is not None and rng.random() < careless
            child = _part(book, choice, ingredient, part.times, label(len(parts)), mistake)
            below.append(child)
            if child.recipe is not None:
                parts.append(child)
        plan.append((part, below))
    return plan


def label(number: int) -> str:
    """Returns one letter, and two from the 27th on: A, B, ..., Z, AA, AB, ..."""
    first, last = divmod(number, 26)
    return (label(first - 1) if first else "") + string.ascii_uppercase[last]


def _part(book: RecipeBook, choice: Choices, i: Ingredient, crafts: int, label: str, mistake: bool) -> PlanPart:
    """Plans one ingredient; with ``mistake`` the player does not notice that it must be crafted."""
    item = choice.members[i.name][0] if i.name in book.families else i.name
    if item in book.base:
        return PlanPart(i.name, item, i.count, None, 0, "")
    if mistake:
        return PlanPart(i.name, i.name, i.count, None, 0, "")
    recipe = choice.recipe[item]
    return PlanPart(i.name, item, i.count, recipe, -(-i.count * crafts // recipe.count), label)


def say(plan: list[tuple[PlanPart, list[PlanPart]]]) -> str:
    """Formats a plan: the goal's recipe, then every part in the order in which the recipes name it."""
    goal = plan[0][0]
    parts = [part.text for _, below in plan for part in below]
    return ". ".join([f"{spoken_name(goal.item)}: {goal.label} {goal.recipe.text if goal.recipe else ''}", *parts])


@dataclass(frozen=True)
class CraftPlanner(FallibleTeacher):
    """States its :func:`outline`, works through it from the last label to A, and plans again when something fails.

    Before each round of getting and crafting it states the current label, and how often it has come. It never
    calculates within an action: every amount that it writes occurs in a recipe.
    """

    rash: float = 0.0
    """Probability that the player states no plan in an episode, and tries the goal's recipe until the end as if all
    ingredients were base items."""
    careless: float = 0.0
    """Probability that a plan mistakes a part which must be crafted for a base item."""
    hasty: float = 0.0
    """Probability that an ingredient is not obtained before a craft."""

    def turns(self, env: gymnasium.Env[Any, Action], rng: random.Random) -> Iterator[Move]:
        """Yields each move in the current episode of ``env``; the caller steps ``env`` in between."""
        from envsuite.textcraft.env import TextCraft

        craft = unwrap_local_env(env, "TextCraft-v0", TextCraft)
        rash = self.rash > 0.0 and rng.random() < self.rash
        while True:
            plan = outline(craft.world.book, craft.world.goal, 1.0 if rash else self.careless, rng)
            thought = say(plan)
            for due, command in self._rounds(plan, rng):
                before = dict(craft.world.inventory)  # the world is another one after a restored snapshot
                words = "" if rash else ". ".join(filter(None, (thought, due)))
                yield Move(words, (ToolCall("env_step", {"command": command}),))
                thought = ""
                if craft.world.inventory == before and not rash:
                    break

    def _rounds(self, plan: list[tuple[PlanPart, list[PlanPart]]], rng: random.Random) -> Iterator[tuple[str, str]]:
        """Yields the thought and the command of each step of ``plan``."""
        for part, below in reversed(plan):
            for time in range(1, part.times + 1):
                thought = f"{part.label} {time} of {part.times}"
                for child in below:
                    if child.recipe is None and not (self.hasty and rng.random() < self.hasty):
                        yield thought, f"get {child.count} {spoken_name(child.item)}"
                        thought = ""
                recipe = part.recipe
                if recipe is not None:
                    using = ", ".join(f"{child.count} {spoken_name(child.item)}" for child in below)
                    yield thought, f"craft {recipe.count} {spoken_name(recipe.output)} using {using}"
