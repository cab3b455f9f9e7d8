"""Reads recipe books: from the package ``minecraft-data``, a folder of recipe files, or a seed."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import orjson

from envsuite.core.errors import DataError, require_extra
from envsuite.data.places import data_root
from envsuite.textcraft.world import NAMESPACE, CraftRecipe, Ingredient, RecipeBook

GAME_VERSION = "1.16.2"
"""The release of Minecraft, Java edition, whose recipes ``minecraft-data`` has for 1.16."""

WOODS = ("oak", "spruce", "birch", "jungle", "acacia", "dark_oak")
STEMS = ("crimson", "warped")


def _families() -> dict[frozenset[str], str]:
    """Returns sets of interchangeable ingredients -> the name of their family."""
    colours = "white orange magenta light_blue yellow lime pink gray light_gray cyan purple blue brown green red black"
    logs = {wood: [f"{wood}_log", f"{wood}_wood", f"stripped_{wood}_log", f"stripped_{wood}_wood"] for wood in WOODS}
    stems = {w: [f"{w}_stem", f"{w}_hyphae", f"stripped_{w}_stem", f"stripped_{w}_hyphae"] for w in STEMS}
    sets = {
        "planks": [f"{wood}_planks" for wood in WOODS + STEMS],
        "wooden_slabs": [f"{wood}_slab" for wood in WOODS + STEMS],
        "wool": [f"{colour}_wool" for colour in colours.split()],
        "logs": [log for group in (*logs.values(), *stems.values()) for log in group],
        "coals": ["coal", "charcoal"],
        "stone_materials": ["cobblestone", "blackstone"],
        "soul_fire_base_blocks": ["soul_sand", "soul_soil"],
        **{f"{wood}_logs": group for wood, group in logs.items()},
        **{f"{wood}_stems": group for wood, group in stems.items()},
    }
    return {frozenset(members): name for name, members in sets.items()}


GROUPED = ("planks", "wool")
"""Families that their members' recipes provide; the others are base items, as in the official book."""


_NEWER = "it is in the layout of Minecraft 1.21 and later; give recipe files of 1.16 to 1.20"


def _data(path: Path) -> Any:
    try:
        return orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise DataError(f"{path}: not readable as JSON ({error})") from error


def _minecraft(name: str) -> Any:
    """Reads a file of ``minecraft-data`` for :data:`GAME_VERSION`; importing the package would read far more."""
    with require_extra("TextCraft-v0 with source='builtin' or 'generated' needs minecraft-data", "textcraft"):
        import minecraft_data
    root = Path(minecraft_data.__path__[0])
    return _data(root / "data" / "data" / "pc" / GAME_VERSION / name)


@cache
def _item_names() -> Mapping[int, str]:
    return {item["id"]: item["name"] for item in _minecraft("items.json")}


@cache
def vocabulary() -> tuple[str, ...]:
    """Returns every word in the names of Minecraft's items and of the families, sorted: those of generated names."""
    names = [*_item_names().values(), *_families().values(), "stone_crafting_materials", "stone_tool_materials"]
    return tuple(sorted({word for name in names for word in name.split("_")}))


@cache
def craftable_names() -> frozenset[str]:
    """Returns the names of the items that Minecraft has a recipe for."""
    names = _item_names()
    return frozenset(names[int(key)] for key in _minecraft("recipes.json"))


@cache
def builtin_book() -> RecipeBook:
    """Returns the recipes of Minecraft 1.16 as ``minecraft-data`` lists them.

    The package lists one recipe for each combination of interchangeable ingredients; these are folded into families
    (see :func:`fold`). Items are taken in alphabetical order.
    """
    names = _item_names()
    families = _families()
    member_of = {m: family for members, family in families.items() if family in GROUPED for m in members}
    by_item = {names[int(key)]: variants for key, variants in _minecraft("recipes.json").items()}
    recipes = []
    for item in sorted(by_item):
        group = member_of.get(item)
        for count, inputs in fold([_variant(entry, names) for entry in by_item[item]], families):
            parts = tuple(Ingredient(NAMESPACE + name, n, name in families.values()) for name, n in inputs.items())
            recipes.append(CraftRecipe(NAMESPACE + item, count, parts, None if group is None else NAMESPACE + group))
    return RecipeBook(f"minecraft-{GAME_VERSION}", recipes)


def _variant(entry: Mapping[str, Any], names: Mapping[int, str]) -> tuple[int, dict[str, int]]:
    cells = [cell for row in entry["inShape"] for cell in row] if "inShape" in entry else entry["ingredients"]
    return entry["result"]["count"], dict(Counter(names[cell] for cell in cells if cell is not None))


def fold(
    variants: list[tuple[int, dict[str, int]]], families: Mapping[frozenset[str], str]
) -> list[tuple[int, dict[str, int]]]:
    """Folds recipes that differ in one ingredient only into one.

    Args:
        variants: Output count and ingredients of each recipe of one item.
        families: Sets of ingredients with a family name; of any other set, the first ingredient is kept.

    Returns:
        The folded recipes, in the order of their first variants.
    """
    while True:
        alike: dict[tuple[Any, ...], list[int]] = {}
        for index, (count, inputs) in enumerate(variants):
            for position, (name, amount) in enumerate(inputs.items()):
                context = tuple(sorted((ingredient, n) for ingredient, n in inputs.items() if ingredient != name))
                alike.setdefault((count, len(inputs), position, amount, context), []).append(index)
        best = max(alike.items(), key=lambda entry: len(entry[1]))
        (_, size, position, _, _), indices = best
        members = [list(variants[index][1])[position] for index in indices]
        if len(indices) == 1 or (size == 1 and frozenset(members) not in families):
            return variants
        name = families.get(frozenset(members), members[0])
        count, first = variants[indices[0]]
        ingredients = {name if at == position else ingredient: n for at, (ingredient, n) in enumerate(first.items())}
        duplicates = set(indices[1:])
        variants = [
            (count, ingredients) if index == indices[0] else variant
            for index, variant in enumerate(variants)
            if index not in duplicates
        ]


def official_folder() -> Path:
    """Returns the folder of ``source="official"``: ``textcraft`` in :func:`envsuite.data.places.data_root`."""
    return data_root() / "textcraft"


@cache
def folder_book(folder: Path) -> RecipeBook:
    """Reads the recipes in a folder of Minecraft recipe files (``*.json``) as the original TextCraft does.

    Args:
        folder: Holds the files, or a folder ``recipes`` with them. They are read in the order of their names.

    Raises:
        DataError: There is no such folder, it has no crafting recipe, or a file of it is not a recipe.
    """
    inner = folder / "recipes"
    place = inner if inner.is_dir() else folder
    if not place.is_dir():
        raise DataError(
            f"TextCraft-v0: there is no folder {folder}. source= takes 'builtin', 'generated', 'official' (the folder "
            f"textcraft in $ENVSUITE_DATA), or the path of a folder of Minecraft recipe files (*.json)"
        )
    files = sorted((path for path in place.iterdir() if path.suffix == ".json"), key=lambda path: path.name)
    digest = hashlib.sha256()
    recipes = []
    for path in files:
        if (recipe := _recipe(path)) is not None:
            recipes.append(recipe)
            digest.update(f"{recipe.text} {recipe.group}\n".encode())
    if not recipes:
        raise DataError(
            f"{place}: no crafting recipe among {len(files)} .json files; source= must name a folder of them"
        )
    return RecipeBook(f"recipes-{digest.hexdigest()[:12]}", recipes)


def _recipe(path: Path) -> CraftRecipe | None:
    """Reads the crafting recipe in ``path``; ``None`` for another kind (smelting, stonecutting …)."""
    body = _data(path)
    try:
        if body["type"] == "minecraft:crafting_shaped":
            pattern = body["pattern"]
            cells = [(_slot(slot), sum(line.count(key) for line in pattern)) for key, slot in body["key"].items()]
            inputs = [Ingredient(name, count, is_family) for (name, is_family), count in cells if count]
        elif body["type"] == "minecraft:crafting_shapeless":
            by_name: dict[str, Ingredient] = {}
            for name, is_family in map(_slot, body["ingredients"]):
                before = by_name[name].count if name in by_name else 0
                by_name[name] = Ingredient(name, before + 1, is_family)
            inputs = list(by_name.values())
        else:
            return None
        result = body["result"]
        if isinstance(result, dict) and "id" in result:
            raise ValueError(_NEWER)
        output, count = (result, 1) if isinstance(result, str) else (result["item"], result.get("count") or 1)
        group = NAMESPACE + body["group"] if "group" in body else None
        if not inputs or not isinstance(output, str) or not isinstance(count, int) or count < 1:
            raise ValueError("no ingredient, or the result is not an item, or not one or more of it")
        names = (output, *(i.name for i in inputs))
        if mod := next((name for name in names if ":" in name and not name.startswith(NAMESPACE)), None):
            raise ValueError(f"{mod!r} is not in the namespace {NAMESPACE!r}, and commands cannot name it")
        return CraftRecipe(output, count, tuple(inputs), group)
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise DataError(f"{path}: not a Minecraft recipe ({type(error).__name__}: {error})") from error


def _slot(slot: Any) -> tuple[str, bool]:
    """Returns the name of an ingredient, and whether it is a family; of alternatives, the first."""
    first = slot[0] if isinstance(slot, list) else slot
    if isinstance(first, str):
        raise ValueError(_NEWER)
    return (first["item"], False) if "item" in first else (first["tag"], True)
