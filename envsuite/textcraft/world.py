"""The crafting world: a recipe book, and an inventory that commands change.

Pure and deterministic: no Gymnasium, no clock, no randomness. The behaviour, down to the texts, is that of the original
TextCraft (Prasad et al. 2024, ADaPT).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

NAMESPACE = "minecraft:"
EMPTY = "You are not carrying anything."


def spoken_name(item: str) -> str:
    """Returns the spoken name of an item id: ``minecraft:oak_planks`` -> ``oak planks``."""
    return item.replace(NAMESPACE, "").replace("_", " ")


def item_id(text: str) -> str:
    """Returns the item id of a spoken name: ``oak planks`` -> ``minecraft:oak_planks``."""
    return NAMESPACE + text.replace(" ", "_")


@dataclass(frozen=True, slots=True)
class Ingredient:
    """One ingredient of a recipe."""

    name: str
    """Item id, or family id."""
    count: int
    family: bool = False
    """Whether ``name`` is a family, of which any member fits."""


@dataclass(frozen=True)
class CraftRecipe:
    """A recipe: the ingredients and the output of one craft."""

    output: str
    """Item id."""
    count: int
    """Amount that one craft makes."""
    inputs: tuple[Ingredient, ...]
    group: str | None = None
    """The family that the output belongs to."""

    @cached_property
    def text(self) -> str:
        """Returns the command that crafts it, e.g. ``craft 4 stick using 2 planks``."""
        using = ", ".join(f"{i.count} {spoken_name(i.name)}" for i in self.inputs)
        return f"craft {self.count} {spoken_name(self.output)} using {using}"


class RecipeBook:
    """All recipes and their families, with the relations derived from them.

    The constructor applies the original's rules, in the order of ``recipes``: a recipe from one ingredient that is a
    ``…_block`` is dropped; a recipe that closes a cycle with the recipes before it, by the names that they list, is
    dropped; a family of which no member has a recipe becomes a base item.

    Args:
        version: Name of the book; part of the key of every random draw in an episode.
        recipes: The recipes as written, in order.
    """

    def __init__(self, version: str, recipes: Iterable[CraftRecipe]) -> None:
        self.version = version
        by_item: dict[str, list[CraftRecipe]] = {}
        by_family: dict[str, list[CraftRecipe]] = {}
        family_of: dict[str, str] = {}
        items: set[str] = set()
        families: set[str] = set()
        made_of: dict[str, set[str]] = {}
        for recipe in recipes:
            for i in recipe.inputs:
                (families if i.family else items).add(i.name)
            items.add(recipe.output)
            if len(recipe.inputs) == 1 and recipe.inputs[0].name.endswith("_block"):
                continue
            if recipe.group is not None and recipe.group != recipe.output:
                families.add(recipe.group)
                family_of[recipe.output] = recipe.group
            parts = {i.name for i in recipe.inputs}
            if _leads_to(recipe.output, parts, made_of):
                continue
            made_of.setdefault(recipe.output, set()).update(parts)
            by_item.setdefault(recipe.output, []).append(recipe)
            if recipe.group is not None:
                by_family.setdefault(recipe.group, []).append(recipe)
        self._settle(by_item, by_family, family_of, items, families)

    def _settle(
        self,
        by_item: dict[str, list[CraftRecipe]],
        by_family: dict[str, list[CraftRecipe]],
        family_of: dict[str, str],
        items: set[str],
        families: set[str],
    ) -> None:
        craftable_families = {family for item, family in family_of.items() if item in by_item}
        used_families = {i.name for recipes in by_item.values() for r in recipes for i in r.inputs if i.family}
        plain = used_families - craftable_families
        by_id = {id(r): _without(r, plain) for recipes in by_item.values() for r in recipes}
        self.recipes: Mapping[str, tuple[CraftRecipe, ...]] = {
            item: tuple(by_id[id(r)] for r in recipes) for item, recipes in by_item.items()
        }
        """Recipes by item, in book order."""
        self.family_recipes: Mapping[str, tuple[CraftRecipe, ...]] = {
            family: tuple(by_id[id(r)] for r in recipes) for family, recipes in by_family.items()
        }
        """Recipes that make a member, by family."""
        self.family_of: Mapping[str, str] = family_of
        """Item -> its family."""
        self.families = frozenset(families - plain)
        """Families, which commands can neither get nor carry."""
        self.base = frozenset((items | plain) - self.families - by_item.keys() - by_family.keys())
        """Base items: those that ``get`` provides."""

    @cached_property
    def members(self) -> Mapping[str, tuple[str, ...]]:
        """Family -> its members, in book order."""
        groups: dict[str, list[str]] = {}
        for item, family in self.family_of.items():
            groups.setdefault(family, []).append(item)
        return {family: tuple(names) for family, names in groups.items()}

    def ways(self, name: str) -> tuple[CraftRecipe, ...]:
        """Returns the recipes that make an item, or any member of a family; empty for a base item."""
        return self.recipes.get(name) or self.family_recipes.get(name) or ()

    @cached_property
    def depth(self) -> Mapping[str, int]:
        """Craftable item -> 1 + the deepest ingredient over its easiest recipe.

        Items that cannot be made are absent.
        """
        return {item: self._depths[item] for item in self.recipes if item in self._depths}

    @cached_property
    def by_depth(self) -> Mapping[str, int]:
        """Craftable item -> its number when these are sorted by depth, those of one depth in book order.

        AgentGym's server numbers its goals so, in the order in which it lists the recipe files.
        """
        return {item: number for number, item in enumerate(sorted(self.depth, key=lambda item: self.depth[item]))}

    @cached_property
    def _depths(self) -> Mapping[str, int]:
        depths: dict[str, int] = {}
        names = [*self.recipes, *(f for f in self.family_recipes if f not in self.recipes)]
        progress = True
        while progress:
            progress = False
            for name in names:
                for recipe in self.ways(name):
                    parts = [depths.get(i.name, math.inf) if self.ways(i.name) else 0 for i in recipe.inputs]
                    depth = max(parts) + 1
                    if depth < depths.get(name, math.inf):
                        depths[name] = int(depth)
                        progress = True
        return depths

    @cached_property
    def uses(self) -> Mapping[str, tuple[CraftRecipe, ...]]:
        """Item or family -> the recipes that name it as an ingredient, in book order."""
        by_ingredient: dict[str, list[CraftRecipe]] = {}
        for recipes in self.recipes.values():
            for recipe in recipes:
                for name in dict.fromkeys(i.name for i in recipe.inputs):
                    by_ingredient.setdefault(name, []).append(recipe)
        return {name: tuple(recipes) for name, recipes in by_ingredient.items()}

    def needed_recipes(self, goal: str) -> tuple[CraftRecipe, ...]:
        """Returns every recipe that making ``goal`` may need, all alternatives included, without repeated texts."""
        recipes: dict[str, CraftRecipe] = {}
        names = {goal}
        queue = [goal]
        for name in queue:
            for recipe in self.ways(name):
                recipes.setdefault(recipe.text, recipe)
                for i in recipe.inputs:
                    if i.name not in names:
                        names.add(i.name)
                        queue.append(i.name)
        return tuple(recipes.values())

    def distractors(self, recipes: Sequence[CraftRecipe]) -> tuple[CraftRecipe, ...]:
        """Returns the other recipes that use an ingredient of ``recipes``, without repeated texts."""
        texts = {recipe.text for recipe in recipes}
        names = dict.fromkeys(i.name for recipe in recipes for i in recipe.inputs)
        by_text: dict[str, CraftRecipe] = {}
        for name in names:
            for recipe in self.uses[name]:
                if recipe.text not in texts:
                    by_text.setdefault(recipe.text, recipe)
        return tuple(by_text.values())

    def match(self, output: str, inputs: Sequence[tuple[str, int]]) -> CraftRecipe | None:
        """Returns the recipe of ``output`` that takes exactly ``inputs``, pairs of item id and count."""
        for recipe in self.recipes.get(output, ()):
            if len(recipe.inputs) == len(inputs) and self._fits(recipe, inputs):
                return recipe
        return None

    def _fits(self, recipe: CraftRecipe, inputs: Sequence[tuple[str, int]]) -> bool:
        pool = list(inputs)
        for i in sorted(recipe.inputs, key=lambda i: i.family):  # ingredients that only one item matches come first
            for item, n in pool:
                if n == i.count and (self.family_of.get(item) if i.family else item) == i.name:
                    pool.remove((item, n))
                    break
            else:
                return False
        return True


def _leads_to(name: str, start: Iterable[str], made_of: Mapping[str, Iterable[str]]) -> bool:
    """Whether ``name`` is in ``start``, or in what that is made of, and so on."""
    parts: set[str] = set()
    stack = list(start)
    while stack and name not in parts:
        part = stack.pop()
        if part not in parts:
            parts.add(part)
            stack += made_of.get(part, ())
    return name in parts


def _without(recipe: CraftRecipe, plain: set[str]) -> CraftRecipe:
    if not any(i.family and i.name in plain for i in recipe.inputs):
        return recipe
    inputs = tuple(Ingredient(i.name, i.count, i.family and i.name not in plain) for i in recipe.inputs)
    return CraftRecipe(recipe.output, recipe.count, inputs, recipe.group)


class CommandResult(NamedTuple):
    """The result of a command."""

    text: str
    ok: bool
    """Whether it was executed; if not, nothing has changed."""
    done: bool
    """Whether the goal has been crafted."""


class Crafting:
    """One episode: a goal and an inventory.

    Args:
        book: The recipes.
        goal: Id of the item that ends the episode.
        inventory: The carried items, in the order in which they were obtained.
        stock: How many of each base item can be got; by default as many as one likes, as in the original.
    """

    __slots__ = ("book", "goal", "inventory", "stock")

    def __init__(
        self,
        book: RecipeBook,
        goal: str,
        inventory: Mapping[str, int] | None = None,
        stock: Mapping[str, int] | None = None,
    ) -> None:
        self.book = book
        self.goal = goal
        self.inventory: dict[str, int] = dict(inventory or {})
        self.stock = None if stock is None else dict(stock)
        """Amount of each base item that is left to get; ``None``: no limit."""

    def do(self, command: str) -> CommandResult:
        """Executes one command; an impossible one changes nothing and returns the reason."""
        if (craft := _CRAFT(command)) is not None:
            return self._craft(command, craft[1], craft[2])
        if (get := _GET(command)) is not None:
            return self._get(command, get[1], get[2])
        if command.startswith("inventory"):
            return CommandResult(self.inventory_text(), True, False)
        return CommandResult(f"Could not execute {command}", False, False)

    def inventory_text(self) -> str:
        """Returns the inventory, as the command ``inventory`` shows it."""
        if not self.inventory:
            return f"Inventory: {EMPTY}"
        return "Inventory: " + "".join(f"[{spoken_name(item)}] ({n}) " for item, n in self.inventory.items())

    def _get(self, command: str, digits: str, text: str) -> CommandResult:
        item = item_id(text)
        if item not in self.book.base:
            return CommandResult(f"Could not find {text}", False, False)
        if len(digits) > _MOST_DIGITS:
            return CommandResult(f"Could not execute {command}", False, False)
        amount = int(digits)
        if self.stock is not None:
            if amount > (stock := self.stock.get(item, 0)):
                return CommandResult(f"Could not get {amount} {text}: {stock} left", False, False)
            self.stock[item] = stock - amount
        self.inventory[item] = self.inventory.get(item, 0) + amount
        return CommandResult(f"Got {amount} {text}", True, False)

    def _craft(self, command: str, making: str, using: str) -> CommandResult:
        match = _COUNTED(making)
        count, output = (match[1], item_id(match[2])) if match is not None else ("1", item_id(making))
        inputs: list[tuple[str, int]] = []
        for part in using.split(","):
            if (match := _COUNTED(part.strip())) is None:
                return CommandResult(f"Wrong item format: {part.strip()}", False, False)
            if len(match[1]) > _MOST_DIGITS:
                return CommandResult(f"Could not execute {command}", False, False)
            inputs.append((item_id(match[2]), int(match[1])))
        if len(count) > _MOST_DIGITS:
            return CommandResult(f"Could not execute {command}", False, False)
        is_family = output in self.book.families
        inventory = self.inventory
        for item, amount in inputs:
            # Each ingredient is checked alone, as in the original; a family is never carried.
            if item not in inventory or inventory[item] < amount:
                name = None if is_family else output
                return CommandResult(f"Could not find enough items to craft {name}", False, False)
        recipe = None if is_family else self.book.match(output, inputs)
        if recipe is None:
            kind = f"tag={output!r}, item_id=None" if is_family else f"tag=None, item_id={output!r}"
            target = f"ItemTagWithCount(item_tag=ItemTag({kind}), count={int(count)})"
            return CommandResult(f"Could not find a valid recipe for {target}", False, False)
        after = dict(inventory)
        for item, amount in inputs:
            after[item] -= amount
            if after[item] < 0:  # a recipe that lists one item twice: the inventory suffices for either, not for both
                return CommandResult(f"Could not find enough items to craft {output}", False, False)
        for item in {item for item, _ in inputs}:
            if after[item] == 0:
                del after[item]
        after[output] = after.get(output, 0) + recipe.count
        self.inventory = after
        return CommandResult(f"Crafted {recipe.count} {output}", True, output == self.goal)


# The grammar of the original, as its `re.match` reads it: the last " using " splits, and a line break ends a command.
_CRAFT = re.compile(r"craft (.*) using (.*)").match
_GET = re.compile(r"get ([0-9]+) (.*)").match
_COUNTED = re.compile(r"([0-9]+) (.*)").match
_MOST_DIGITS = 4200
"""Python neither reads nor writes numbers of more than 4,300 digits; this leaves room for sums."""
