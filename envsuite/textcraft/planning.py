"""Plans: chooses recipes for a goal, and the commands that execute them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from envsuite.core.caches import cache_by_owner
from envsuite.textcraft.world import CraftRecipe, RecipeBook, spoken_name

IMPOSSIBLE = math.inf


@dataclass(frozen=True)
class Choices:
    """The chosen recipe of each item and member of each family, for one goal.

    They need the fewest commands, counted from an empty inventory; so a plan made halfway continues the one before it.
    """

    recipe: Mapping[str, CraftRecipe]
    """Item -> its chosen recipe; empty if the goal cannot be made."""
    members: Mapping[str, tuple[str, ...]]
    """Family -> its members, the cheapest first."""


@cache_by_owner(50_000)
def choices(book: RecipeBook, goal: str) -> Choices:
    """Returns the choices for ``goal``; cached."""
    search = _Search(book, goal)
    if goal in book.recipes and goal not in book.families and search.steps(goal, 1) < IMPOSSIBLE:
        search.settle(goal, 1)
    return Choices(search.recipe, search.members)


def _sayable(recipe: CraftRecipe, families: frozenset[str]) -> bool:
    """Whether a command can name the output and every ingredient; a name shared with a family means the family."""
    names = [recipe.output, *(i.name for i in recipe.inputs if not i.family)]
    return families.isdisjoint(names) and all(i.count > 0 for i in recipe.inputs)


class _Search:
    def __init__(self, book: RecipeBook, goal: str) -> None:
        self.book = book
        self.recipe: dict[str, CraftRecipe] = {}
        self.members: dict[str, tuple[str, ...]] = {}
        self._ways: dict[str, list[CraftRecipe]] = {}
        self._usable: dict[str, list[str]] = {}
        self._cost: dict[tuple[str, int], float] = {}
        self._arrange(goal)

    def _arrange(self, goal: str) -> None:
        """Orders items and their recipes such that ingredients come first, so that no recipe is circular."""
        pending: dict[str, list[CraftRecipe]] = {}
        for recipe in self.book.needed_recipes(goal):
            if _sayable(recipe, self.book.families):
                pending.setdefault(recipe.output, []).append(recipe)
        members = {
            family: [m for m in names if m in pending or m in self.book.base]
            for family, names in self.book.members.items()
        }

        def is_obtainable(name: str) -> bool:
            return name in self.book.base or name in self._ways

        def at_hand(recipe: CraftRecipe, enough: Callable[[Iterable[bool]], bool]) -> bool:
            return all(
                ((m := members.get(i.name)) and enough(map(is_obtainable, m))) if i.family else is_obtainable(i.name)
                for i in recipe.inputs
            )

        while pending:
            ready = [item for item, ways in pending.items() if all(at_hand(way, all) for way in ways)]
            if not ready:  # a cycle: break it at an item that can be made without it
                ready = [item for item, ways in pending.items() if any(at_hand(way, any) for way in ways)][:1]
            if not ready:
                return
            for item in ready:
                ways = [way for way in pending.pop(item) if at_hand(way, any)]
                for i in (i for way in ways for i in way.inputs if i.family):
                    self._usable.setdefault(i.name, [m for m in members[i.name] if is_obtainable(m)])
                self._ways[item] = ways

    def steps(self, name: str, amount: int) -> float:
        """Returns the number of commands that make ``amount`` of an item, or of a family's cheapest member."""
        if name in self.book.base:
            return 1
        if (name, amount) not in self._cost:
            if name in self.book.families:
                costs = [self.steps(member, amount) for member in self._usable.get(name, ())]
            else:
                costs = [self._by(recipe, amount) for recipe in self._ways.get(name, ())]
            self._cost[name, amount] = min(costs, default=IMPOSSIBLE)
        return self._cost[name, amount]

    def _by(self, recipe: CraftRecipe, amount: int) -> float:
        crafts = -(-amount // recipe.count)
        return crafts + sum(self.steps(i.name, i.count * crafts) for i in recipe.inputs)

    def settle(self, name: str, amount: int) -> None:
        """Chooses recipes for ``name`` and everything that it is made from."""
        if name in self.book.base:
            return
        if name in self.book.families:
            if name not in self.members:
                self.members[name] = tuple(sorted(self._usable[name], key=lambda member: self.steps(member, amount)))
            self.settle(self.members[name][0], amount)
            return
        if name not in self.recipe:
            self.recipe[name] = min(self._ways[name], key=lambda recipe: self._by(recipe, amount))
        crafts = -(-amount // self.recipe[name].count)
        for i in self.recipe[name].inputs:
            self.settle(i.name, i.count * crafts)


def plan(book: RecipeBook, goal: str, inventory: Mapping[str, int] | None = None) -> list[str]:
    """Returns the commands that lead from ``inventory`` to the goal; empty if it cannot be made.

    Depth first, left to right through the ingredients of each recipe: an ingredient is obtained completely, for all
    repetitions of the craft that uses it, before the next one.
    """
    choice = choices(book, goal)
    if goal not in choice.recipe:
        return []
    stock = Counter(dict(inventory or {}))
    reserve: Counter[str] = Counter()
    commands: list[str] = []

    def obtain(name: str, amount: int) -> str:
        """Obtains ``amount`` of ``name`` beyond reserved amounts; returns the item that it is."""
        if name in book.families:
            ready = (m for m in choice.members[name] if stock[m] - reserve[m] >= amount)
            return obtain(next(ready, choice.members[name][0]), amount)
        short = amount - (stock[name] - reserve[name])
        if short > 0 and name in book.base:
            commands.append(f"get {short} {spoken_name(name)}")
            stock[name] += short
        elif short > 0:
            make(choice.recipe[name], short)
        return name

    def make(recipe: CraftRecipe, short: int) -> None:
        crafts = -(-short // recipe.count)
        ingredients: list[tuple[str, int]] = []
        for i in recipe.inputs:
            item = obtain(i.name, i.count * crafts)
            reserve[item] += i.count * crafts
            ingredients.append((item, i.count))
        using = ", ".join(f"{count} {spoken_name(item)}" for item, count in ingredients)
        commands.extend([f"craft {recipe.count} {spoken_name(recipe.output)} using {using}"] * crafts)
        for item, count in ingredients:
            reserve[item] -= count * crafts
            stock[item] -= count * crafts
        stock[recipe.output] += recipe.count * crafts

    make(choice.recipe[goal], 1)
    return commands
