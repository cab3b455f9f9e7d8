"""Milestones of TextCraft: the goods that the expert's recipes make on the way to the goal, and the goal."""

from __future__ import annotations

from typing import ClassVar

from envsuite.core.env import StepInfo, ToolEnv
from envsuite.core.players import unwrap_local_env
from envsuite.core.tools import Action
from envsuite.textcraft.env import TextCraft
from envsuite.textcraft.planning import choices
from envsuite.textcraft.tasks import ENV_ID
from envsuite.textcraft.world import RecipeBook


class TextCraftMilestones:
    """Each is reached when the item is in the inventory for the first time, in any order.

    Where a recipe takes any member of a family, any crafted member will do. Items that ``get`` obtains are none.
    """

    from_observations: ClassVar[bool] = False

    def __init__(self, env: ToolEnv) -> None:
        self._world = unwrap_local_env(env, ENV_ID, TextCraft).world
        self._left = goods(self._world.book, self._world.goal)
        self.count = len(self._left)

    def count_reached(self, action: Action, info: StepInfo) -> int:
        """Returns the number of goods that the agent has now for the first time."""
        inventory, family_of = self._world.inventory, self._world.book.family_of
        new_goods = self._left.intersection((*inventory, *(family_of[item] for item in inventory if item in family_of)))
        self._left -= new_goods
        return len(new_goods)


def goods(book: RecipeBook, goal: str) -> set[str]:
    """Returns the items and families that the expert crafts for ``goal``, itself included; none if it cannot."""
    choice = choices(book, goal)
    if goal not in choice.recipe:
        return set()
    names, items, pending = {goal}, {goal}, [goal]
    for item in pending:
        for part in choice.recipe[item].inputs:
            ingredient = choice.members[part.name][0] if part.name in book.families else part.name
            if ingredient in book.base:
                continue
            names.add(part.name)
            if ingredient not in items:
                items.add(ingredient)
                pending.append(ingredient)
    return names
