"""Generates recipe books from a seed: acyclic, with families, counts, chains and depths like Minecraft's.

A book consists of districts. The items of a district share base items, so that each has natural distractors, and have
the same kinds as Minecraft's: a family whose members are each made from a raw item, with a range of products for every
member (wood); colours with a range of products (dyes, wool, beds); materials with tools; materials with stages and
shapes (stone); and single items.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from envsuite.core.draws import Draw
from envsuite.core.errors import UsageError
from envsuite.textcraft.source import craftable_names, vocabulary
from envsuite.textcraft.world import NAMESPACE, CraftRecipe, Ingredient, RecipeBook

EDITION = 3
"""Part of a generated book's version; increased whenever a seed gives another book than before."""
LONGEST = 40
"""Maximum number of commands to make an item from nothing."""
DISTRICT = 120
"""Number of goals in a district."""

OUTPUTS = ((1, 66), (2, 6), (3, 9), (4, 8), (6, 5), (8, 6))
"""Number of a single item that one craft makes, with weights."""
SIZES = ((1, 25), (2, 52), (3, 23))
"""Number of ingredients of a single item, with weights."""
AMOUNTS = ((1, 46), (2, 16), (3, 13), (4, 9), (5, 3), (6, 6), (7, 1), (8, 4), (9, 2))
"""Amount of an ingredient, with weights."""
DEPTHS = ((2, 50), (3, 38), (4, 12))
"""Depth of a single item, with weights."""
SHAPES = (
    (4, 6),
    (6, 3),
    (3, 6),
    (1, 1),
    (1, 2),
    (6, 6),
    (1, 5),
    (2, 4),
    (3, 2),
    (1, 9),
    (4, 4),
    (8, 8),
    (1, 3),
    (2, 1),
)
"""Amounts that one craft makes and takes, for products made from one item."""
TINTS = ((8, 8), (1, 1), (8, 8), (4, 4), (1, 1))
"""Amounts that one craft makes and takes besides one dye, for dyed things."""
NAME_LENGTHS = ((1, 20), (2, 60), (3, 20))
"""Number of words in a name, with weights."""


class _BookFull(Exception):
    """Raised when the book has the requested number of goals."""


class _Author:
    """Writes a book item by item, with the depth of each item and an estimate of its cost in commands."""

    def __init__(self, draw: Draw, goals: int, max_depth: int) -> None:
        self.draw = draw
        self.left = goals
        self.max_depth = max_depth
        self.words = vocabulary()
        self.taken = set(craftable_names())
        self.recipes: list[CraftRecipe] = []
        self.depth: dict[str, int] = {}
        self._cost: dict[str, tuple[int, int]] = {}

    def phrase(self) -> str:
        """Draws words for a name."""
        while True:
            name = "_".join(self.draw.sample(self.words, self.draw.choose_weighted(NAME_LENGTHS)))
            if self.free(name):
                return name

    def akin(self, parts: Sequence[Ingredient]) -> str | None:
        """Returns a new name that shares words with one of ``parts``, as in Minecraft; ``None`` if it is taken."""
        words = self.draw.choose(parts).name.removeprefix(NAMESPACE).split("_")
        stem_words = words if len(words) == 1 or self.draw.chance(50) else words[:-1]
        new = self.draw.choose(self.words)
        name = "_".join([*stem_words, new] if self.draw.chance(70) else [new, *stem_words])
        return name if self.free(name) else None

    def free(self, name: str) -> bool:
        """Whether ``name`` is available."""
        # A recipe from one ingredient that is a ..._block is dropped from every book, so no name ends like that.
        words = name.split("_")
        return name not in self.taken and words[-1] != "block" and len(set(words)) == len(words) <= 4

    def range_word(self, stems: Sequence[str]) -> str:
        """Returns a word that gives an available name after every one of ``stems``."""
        while True:
            word = self.draw.choose(self.words)
            if all(self.free(f"{stem}_{word}") for stem in stems):
                return word

    def stems(self, count: int) -> list[str]:
        """Returns ``count`` different beginnings of names: mostly one word, some with another beginning after it."""
        words = self.draw.sample(self.words, count)
        stems = words[:1]
        for word in words[1:]:
            suffix = self.draw.choose(stems)
            stems.append(f"{word}_{suffix}" if "_" not in suffix and self.draw.chance(20) else word)
        return stems

    def base(self, name: str | None = None) -> Ingredient:
        """Creates a base item."""
        name = name or self.phrase()
        self.taken.add(name)
        self.depth[NAMESPACE + name] = 0
        return Ingredient(NAMESPACE + name, 1)

    def family(self, name: str, depth: int, count: int, cost: int) -> Ingredient:
        """Creates a family whose members have depth ``depth``; ``cost`` commands make ``count`` of one."""
        self.taken.add(name)
        self.depth[NAMESPACE + name] = depth
        self._cost[NAMESPACE + name] = (count, cost)
        return Ingredient(NAMESPACE + name, 1, True)

    def item(
        self, count: int, inputs: Sequence[Ingredient], name: str | None = None, group: Ingredient | None = None
    ) -> Ingredient | None:
        """Writes a recipe for a new item; returns ``None`` if it would be too deep or take too many commands.

        Raises:
            _Full: The item is a goal, and the book has all its goals.
        """
        steps = 1 + sum(self._steps(i) for i in inputs)
        depth = 1 + max(self.depth[i.name] for i in inputs)
        if steps > LONGEST or depth > self.max_depth:
            return None
        if depth >= 2:
            if not self.left:
                raise _BookFull
            self.left -= 1
        if name is None and self.draw.chance(50):
            name = self.akin(inputs)
        name = name or self.phrase()
        self.taken.add(name)
        full = NAMESPACE + name
        self.recipes.append(CraftRecipe(full, count, tuple(inputs), None if group is None else group.name))
        self.depth[full] = depth
        self._cost[full] = (count, steps)
        return Ingredient(full, 1)

    def again(self, item: Ingredient, count: int, inputs: Sequence[Ingredient]) -> None:
        """Writes an alternative recipe of ``item`` that does not reduce its depth."""
        self.recipes.append(CraftRecipe(item.name, count, tuple(inputs)))

    def _steps(self, part: Ingredient) -> int:
        if part.name not in self._cost:
            return 1
        count, steps = self._cost[part.name]
        return steps * -(-part.count // count)

    def amount(self, item: Ingredient) -> Ingredient:
        """Draws an amount of ``item``."""
        return take(item, self.draw.choose_weighted(AMOUNTS))


def take(item: Ingredient, count: int) -> Ingredient:
    """Returns ``item`` with the amount ``count``."""
    return Ingredient(item.name, count, item.family)


@lru_cache(maxsize=8)
def generated_book(book_seed: int, goals: int, max_depth: int = 4) -> RecipeBook:
    """Generates a book with ``goals`` craftable items of depth 2 to ``max_depth``.

    Names consist of words in Minecraft's item names (:func:`~envsuite.textcraft.source.vocabulary`), and none is the
    name of an item that Minecraft has a recipe for.

    Args:
        book_seed: Determines the book, on every machine.
        goals: Number of items of depth 2 and more.
        max_depth: Maximum depth of an item.

    Raises:
        UsageError: ``goals`` is not positive, or ``max_depth`` is below 2.
    """
    if goals < 1 or max_depth < 2:
        raise UsageError(f"a generated book needs goals >= 1 and max_depth >= 2, got {goals} and {max_depth}")
    author = _Author(Draw(f"recipe book {EDITION} {book_seed} {goals} {max_depth}"), goals, max_depth)
    try:
        while True:
            _district(author)
    except _BookFull:
        return RecipeBook(f"generated-{EDITION}-{book_seed}-{goals}-{max_depth}", author.recipes)


def _district(author: _Author) -> None:
    draw = author.draw
    until = author.left - DISTRICT
    common = [author.base() for _ in range(13)]
    parts, rod = _wood(author, common)
    pool = [*common, *parts, rod]
    kinds: list[Callable[[_Author, list[Ingredient], Ingredient], list[Ingredient]]] = [_tools, _stone, _stone, _tools]
    if draw.chance(70):
        kinds.append(_colours)
    for kind in draw.sample(kinds, len(kinds)):
        pool += kind(author, common, rod)
    while author.left > until:
        _single(author, pool, common)


def _wood(author: _Author, common: list[Ingredient]) -> tuple[list[Ingredient], Ingredient]:
    """Writes a family, its members' products, and a rod with two recipes; returns the parts and the rod."""
    draw = author.draw
    stems = author.stems(3 + draw.below(6))
    raw_word, word = author.range_word(stems), author.range_word(stems)
    kind = word if word not in author.taken else author.phrase()
    count = draw.choose((4, 4, 3, 2, 1, 6))
    family = author.family(kind, 1, count, 2)
    members = []
    for stem in stems:
        raw = author.base(f"{stem}_{raw_word}" if f"{stem}_{raw_word}" not in author.taken else None)
        member = author.item(count, [raw], f"{stem}_{word}", family)
        if member is not None:
            members.append((stem, member))
    rod: Ingredient | None
    if draw.chance(70):
        rod = author.item(1, [take(draw.choose(common), 1 + draw.below(3))])
        if rod is not None:
            author.again(rod, 4, [take(family, 2)])
    else:
        rod = author.item(4, [take(family, 2)])
    rod = rod or common[0]
    for _ in range(2 + draw.below(3)):
        makes, takes = draw.choose(SHAPES)
        extra = [take(rod, 1 + draw.below(4))] if draw.chance(25) else []
        product = author.range_word([stem for stem, _ in members])
        for stem, member in members:
            author.item(makes, [*extra, take(member, takes)], f"{stem}_{product}")
    parts = [family]
    for _ in range(3 + draw.below(3)):
        extras = [author.amount(part) for part in draw.sample(common, draw.below(3))]
        assembly = author.item(1, draw.sample([author.amount(family), *extras], 3))
        if assembly is not None:
            parts.append(assembly)
    return parts, rod


def _colours(author: _Author, common: list[Ingredient], rod: Ingredient) -> list[Ingredient]:
    """Writes dyes, cloth in their colours (a family), and things made of or dyed with them."""
    draw = author.draw
    stems = author.stems(4 + draw.below(5))
    dye_word, cloth_word = author.range_word(stems), author.range_word(stems)
    dyes: dict[str, Ingredient] = {}
    for stem in stems:
        if len(dyes) >= 2 and draw.chance(40):
            pair = draw.sample(list(dyes.values()), 2)
            dye = author.item(2, pair, f"{stem}_{dye_word}")
        elif draw.chance(15):
            dye = author.base(f"{stem}_{dye_word}")
        else:
            dye = author.item(1 if draw.chance(70) else 2, [author.base()], f"{stem}_{dye_word}")
            while dye is not None and draw.chance(40):
                author.again(dye, 1 + draw.below(2), [author.base()])
        if dye is not None:
            dyes[stem] = dye
    pale, *colours = dyes
    cloth_family = author.family(author.phrase(), 1, 1, 2)
    plain = author.item(1, [take(draw.choose(common), 1 + draw.below(6))], f"{pale}_{cloth_word}", cloth_family)
    if plain is None:
        return []
    cloths = {pale: plain}
    for stem in colours:
        cloth = author.item(1, [dyes[stem], plain], f"{stem}_{cloth_word}", cloth_family)
        if cloth is not None:
            cloths[stem] = cloth
    for _ in range(2):
        makes, takes = draw.choose(((1, 3), (1, 6), (3, 2), (1, 4), (2, 2)))
        extra = draw.sample([take(rod, 1 + draw.below(3)), author.amount(draw.choose(common))], draw.below(2))
        product = author.range_word(list(cloths))
        for stem, cloth in cloths.items():
            author.item(makes, [take(cloth, takes), *extra], f"{stem}_{product}")
    for _ in range(1 + draw.below(2)):
        makes, takes = draw.choose(TINTS)
        ground = take(draw.choose(common), takes)
        product = author.range_word(list(dyes))
        for stem, dye in dyes.items():
            author.item(makes, draw.sample([ground, dye], 2), f"{stem}_{product}")
    return [cloth_family, *dyes.values()]


def _tools(author: _Author, common: list[Ingredient], rod: Ingredient) -> list[Ingredient]:
    """Writes materials, some made from a base item, and the same tools of each."""
    draw = author.draw
    materials = {}
    for stem in author.stems(1 + draw.below(4)):
        raw = f"{stem}_{author.range_word([stem])}" if draw.chance(60) else None
        material: Ingredient | None = author.base(raw)
        if draw.chance(65) and material is not None:
            parts = [take(material, draw.choose((1, 2, 4, 9)))]
            material = author.item(1, parts, f"{stem}_{author.range_word([stem])}")
        if material is not None:
            materials[stem] = material
    for _ in range(3 + draw.below(4)):
        word = author.range_word(list(materials))
        count = draw.choose_weighted(AMOUNTS)
        shaft = [take(rod, 1 + draw.below(2))] if draw.chance(85) else []
        for stem, material in materials.items():
            author.item(1, [*shaft, take(material, count)], f"{stem}_{word}")
    return list(materials.values())


def _stone(author: _Author, common: list[Ingredient], rod: Ingredient) -> list[Ingredient]:
    """Writes a material in stages (rough, cut, polished …), each with the same shapes."""
    draw = author.draw
    stem = draw.choose(author.words)
    stage: Ingredient | None = author.base(stem if author.free(stem) else None)
    if draw.chance(40):
        parts = [author.amount(part) for part in draw.sample(common, 1 + draw.below(2))]
        stage = author.item(draw.choose_weighted(OUTPUTS), parts, f"{stem}_{author.range_word([stem])}")
    shapes = [(draw.choose(author.words), *draw.choose(SHAPES)) for _ in range(2 + draw.below(2))]
    stages: list[Ingredient] = []
    prefix = stem
    while stage is not None and len(stages) < 3:
        stages.append(stage)
        if author.depth[stage.name]:
            for word, makes, takes in shapes:
                if author.free(f"{prefix}_{word}"):
                    author.item(makes, [take(stage, takes)], f"{prefix}_{word}")
        word = draw.choose(author.words)
        prefix = f"{word}_{stem}" if draw.chance(50) else f"{prefix}_{word}"
        if not author.free(prefix):
            break
        count = draw.choose((1, 4, 4, 9))
        stage = author.item(count if draw.chance(60) else 1, [take(stage, count)], prefix)
    return stages


def _single(author: _Author, pool: list[Ingredient], common: list[Ingredient]) -> None:
    """Writes a single item, from parts of its district."""
    draw = author.draw
    target = min(draw.choose_weighted(DEPTHS), author.max_depth)
    deepest = [part for part in pool if author.depth[part.name] == target - 1]
    if not deepest:
        deepest = [part for part in pool if author.depth[part.name] == 1]
    size = draw.choose_weighted(SIZES)
    parts = [draw.choose(deepest)]
    while len(parts) < size:
        extra = draw.choose(common) if draw.chance(55) else draw.choose(pool)
        if all(extra.name != part.name for part in parts):
            parts.append(extra)
    item = author.item(draw.choose_weighted(OUTPUTS), [author.amount(part) for part in draw.sample(parts, size)])
    if item is not None:
        pool.append(item)
