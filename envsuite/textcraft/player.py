"""A player that never calculates: it works from the goal down, one craft at a time."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from envsuite.core.tools import Action, ToolCall
from envsuite.textcraft.planning import Choices, choices
from envsuite.textcraft.world import Crafting, Recipe, spoken

if TYPE_CHECKING:
    import gymnasium

    from envsuite.textcraft.env import TextCraft


def next_command(world: Crafting) -> str:
    """The next command towards the goal of ``world``, as a function of its inventory.

    Every amount is one that a recipe states: an ingredient is fetched or made for one craft, and the craft repeated
    with fresh ingredients where more is needed. Longer than :func:`envsuite.textcraft.expert.plan`, and easier to
    imitate, because all of it can be copied from the instruction.
    """
    chosen = choices(world.book, world.goal)
    return _towards(chosen, chosen.recipe[world.goal], world, Counter())


def _towards(chosen: Choices, recipe: Recipe, world: Crafting, kept: Counter[str]) -> str:
    """The next command towards one craft of ``recipe``; what ``kept`` counts is reserved for crafts above it."""
    used: list[tuple[str, int]] = []
    for ingredient in recipe.inputs:
        item, held = _stand_in(chosen, ingredient.name, ingredient.count, world, kept)
        if held < ingredient.count:
            if item in world.book.base:
                return f"get {ingredient.count} {spoken(item)}"
            return _towards(chosen, chosen.recipe[item], world, kept)
        kept[item] += ingredient.count
        used.append((item, ingredient.count))
    using = ", ".join(f"{count} {spoken(item)}" for item, count in used)
    return f"craft {recipe.count} {spoken(recipe.output)} using {using}"


def _stand_in(chosen: Choices, name: str, count: int, world: Crafting, kept: Counter[str]) -> tuple[str, int]:
    """The item that serves as ``name``, and how many are free: a family's member that is there, or its cheapest."""
    members = chosen.members[name] if name in world.book.families else [name]
    free = [(member, world.inventory.get(member, 0) - kept[member]) for member in members]
    ready = [pair for pair in free if pair[1] >= count]
    return ready[0] if ready else free[0]


def outline(world: Crafting) -> str:
    """The recipes on the way to the goal, from the goal down; :func:`next_command` works through them from the last.

    Each recipe is followed by those of its ingredients, the last ingredient first.
    """
    chosen = choices(world.book, world.goal)
    lines: dict[str, None] = {}

    def visit(recipe: Recipe) -> None:
        lines.pop(recipe.text, None)  # needed twice: it stands where it is needed deepest
        lines[recipe.text] = None
        for ingredient in reversed(recipe.inputs):
            members = chosen.members[ingredient.name] if ingredient.name in world.book.families else (ingredient.name,)
            if members[0] not in world.book.base:
                visit(chosen.recipe[members[0]])

    visit(chosen.recipe[world.goal])
    return ". ".join(lines)


class StepwiseExpert:
    """Plays TextCraft by :func:`next_command`, and begins an episode by thinking its :func:`outline`."""

    def think(self, env: gymnasium.Env[object, Action]) -> str:
        """What the player thinks before its first action."""
        return outline(_textcraft(env).world)

    def act(self, env: gymnasium.Env[object, Action]) -> Action:
        """The next action in the episode that ``env`` is in."""
        return (ToolCall("env_step", {"command": next_command(_textcraft(env).world)}),)


def _textcraft(env: gymnasium.Env[object, Action]) -> TextCraft:
    from envsuite.textcraft.env import TextCraft

    inner = env.unwrapped
    if not isinstance(inner, TextCraft):
        raise TypeError(f"the TextCraft player plays TextCraft-v0, not {type(inner).__name__}")
    return inner
