"""The built-in shop: generates products, goals and near misses from a seed, at any size.

Products come in families. The products of a family are of one kind and mostly agree; each differs from the family's
first in one deciding property: another value of an attribute that every goal asks for, other values of an option, or a
price above every limit. A search finds them all, and only reading distinguishes them.

All goals can be reached: the target product earns reward 1.

Every product is a function of seed, difficulty and number alone, so that a shop needs no memory and parts of it can be
generated in parallel.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

from envsuite.core.errors import UsageError
from envsuite.webshop import wording
from envsuite.webshop.assortment import Fact, ProductKind, kinds
from envsuite.webshop.dice import Dice
from envsuite.webshop.source import RawProduct

EDITION = 3
"""Edition of the shop; increased whenever a seed gives another shop than before."""
WISHES = 12_000
"""Maximum number of instructions in the style of people, about as many as in the official shop."""
WISHES_EACH = 2
"""Number of instructions for a product that has any."""
COMPOSED = 40
"""Percentage of the families with composed goals, about as in the official shop."""
RANGES = 20
"""Percentage of price ranges among the products that may have one, which are about half."""
BEYOND = 4_100
"""Cents above another product's price that no goal of that one allows: limits are at most 40 dollars above."""
MOST = 1 << 32
"""Maximum number of products."""
_BOUNDS = {"near_misses": (0, 20), "attributes": (1, 6), "options": (0, 3), "hidden": (0, 100), "vagueness": (0, 100)}
_PLAIN = str.maketrans("", "", "{}':")
ASIN_LETTERS = "BCDFGHKMNPRTVX"
"""Letters of an ASIN; no two of them form a word."""
_BITS = 36
_MASK = (1 << _BITS) - 1


@dataclass(frozen=True, slots=True)
class ShopDifficulty:
    """Difficulty of the goals.

    Raises:
        UsageError: A value is out of its range.
    """

    near_misses: int = 3
    """Number of near misses of each product, 0 to 20: they differ in one thing that its goals ask for."""
    attributes: int = 4
    """Number of attributes of a product, 1 to 6; a goal asks for up to three of them."""
    options: int = 2
    """Maximum number of options of a product, 0 to 3."""
    hidden: int = 40
    """Percentage of the families whose deciding attribute is on the page Features only, which is not indexed."""
    vagueness: int = 40
    """Percentage of attributes, and of sizes, for which instructions use other words than the shop."""

    def __post_init__(self) -> None:
        for field, (low, high) in _BOUNDS.items():
            value = asdict(self)[field]
            if type(value) is not int or not low <= value <= high:
                raise UsageError(f"ShopDifficulty.{field} must be a whole number from {low} to {high}, got {value!r}")


DEFAULT = ShopDifficulty()


@dataclass(frozen=True, slots=True)
class ProductPlan:
    """The properties of a product, before any text is written."""

    kind: ProductKind
    facts: tuple[Fact, ...]
    """Its attributes, the deciding one first."""
    options: tuple[tuple[str, tuple[str, ...]], ...]
    """Name and values of its options, the deciding option first."""
    cents: tuple[int, ...]
    """One price, or the ends of a range, in cents."""
    hidden: bool
    """Whether the deciding attribute is on the page Features only."""
    composed: bool
    """Whether it has composed goals."""


@dataclass(frozen=True)
class Shop:
    """A generated shop: a :class:`~envsuite.webshop.source.Stock`.

    Args:
        seed: Determines the shop.
        products: Number of products. A larger shop begins with the products of a smaller one.
        difficulty: Difficulty of its goals.

    Raises:
        UsageError: ``products`` or ``seed`` is out of range.
    """

    seed: int = 0
    products: int = 1000
    difficulty: ShopDifficulty = DEFAULT

    def __post_init__(self) -> None:
        if type(self.products) is not int or not 1 <= self.products <= MOST:
            raise UsageError(f"a shop has from 1 to {MOST:,} products, got {self.products!r}")
        if type(self.seed) is not int or self.seed < 0:
            raise UsageError(f"the seed of a shop is a whole number from 0, got {self.seed!r}")

    @property
    def title(self) -> str:
        """Title of the shop."""
        knobs = "" if self.difficulty == DEFAULT else f", {str(asdict(self.difficulty)).translate(_PLAIN)}"
        return f"built-in shop {EDITION}, seed {self.seed}{knobs}"

    @property
    def family(self) -> int:
        """Number of products in a family: neighbours that are nearly alike."""
        return self.difficulty.near_misses + 1

    def digest(self) -> str:
        """Returns the SHA-256 (hex) of everything that the content depends on."""
        facts = (EDITION, self.seed, self.products, sorted(asdict(self.difficulty).items()))
        return hashlib.sha256(repr(facts).encode()).hexdigest()

    def raw_products(self, skip: int = 0) -> Iterator[RawProduct]:
        """Yields the products from number ``skip`` on, in order."""
        for number, plan in self._plans(skip, self.products):
            yield self._write_product(number, plan)

    def known_attributes(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields ASIN and attributes of every product, with an instruction for composed goals."""
        for number, plan in self._plans(0, self.products):
            entry: dict[str, Any] = {"attributes": tuple(fact.attribute for fact in plan.facts)}
            if plan.composed:
                dice = Dice(f"composed {EDITION} {self.seed} {number}")
                facts = plan.facts[: 1 + dice.below(3)]
                entry["instruction"] = wording.compose_instruction(plan.kind, facts, dice)
                entry["instruction_attributes"] = tuple(fact.attribute for fact in facts)
            yield self.asin(number), entry

    def wishes_of_people(self) -> dict[str, list[dict[str, Any]]]:
        """Returns ASIN -> instructions in the style of people, at most :data:`WISHES`, spread over the shop."""
        wishes = {}
        families = -(-self.products // self.family)
        step = -(-self.products * WISHES_EACH // WISHES)
        for family in range(0, families, step):
            first = family * self.family
            for number, plan in self._plans(first, min(first + self.family, self.products)):
                dice = Dice(f"wishes {EDITION} {self.seed} {number}")
                wishes[self.asin(number)] = [self._wish(plan, dice) for _ in range(WISHES_EACH)]
        return wishes

    def _wish(self, plan: ProductPlan, dice: Dice) -> dict[str, Any]:
        facts = [*plan.facts[:1], *dice.sample(plan.facts[1:], dice.below(3))]
        options = [
            (name, dice.choose(values)) for at, (name, values) in enumerate(plan.options) if not at or dice.chance(60)
        ]
        return {
            "instruction": wording.wish(plan.kind, facts, options, self.difficulty.vagueness, dice),
            "instruction_attributes": tuple(fact.attribute for fact in facts),
            "instruction_options": tuple(value for _, value in options),
        }

    def asin(self, number: int) -> str:
        """Returns the unique id of product ``number``, e.g. ``GH42KD17PT``, which reveals nothing about it.

        Pairs of letters alternate with pairs of digits, because these are few tokens.
        """
        code = (number + _offset(self.seed)) & _MASK
        code = ((code ^ code >> 19) * 0x9E3779B97F5) & _MASK
        code = ((code ^ code >> 17) * 0x1B873593E6D5) & _MASK
        code ^= code >> 19
        pairs, parts = _pairs(), []
        for _ in range(2):
            code, letters = divmod(code, len(pairs))
            code, digits = divmod(code, 100)
            parts += [pairs[letters], f"{digits:02}"]
        return "".join((*parts, pairs[code]))

    def _plans(self, first: int, end: int) -> Iterator[tuple[int, ProductPlan]]:
        """Yields number and plan of the products from ``first`` up to, but without, ``end``."""
        size = self.family
        for family in range(first // size, -(-end // size)):
            dice = Dice(f"family {EDITION} {self.seed} {family}")
            model, spare_values = self._model(dice)
            start = family * size
            for number in range(max(start, first), min(start + size, end)):
                member = number - start
                yield number, _vary_model(model, spare_values, member, Dice(f"member {EDITION} {self.seed} {number}"))

    def _model(self, dice: Dice) -> tuple[ProductPlan, tuple[str, ...]]:
        """Draws the first product of a family, and the values of its deciding option in other products."""
        kind = dice.choose(kinds())
        facets = dice.sample(kind.facets, self.difficulty.attributes)
        facts = tuple(dice.choose(facet) for facet in facets)
        options: list[tuple[str, tuple[str, ...]]] = []
        spare_values: tuple[str, ...] = ()
        number = min(self.difficulty.options, len(kind.options))
        if number and not dice.chance(15):
            for name, values in kind.options[: 1 + dice.below(number)]:
                count = min(2 + dice.below(4), len(values) // 2)
                picks = frozenset(dice.sample(values, count))
                options.append((name, tuple(value for value in values if value in picks)))
                spare_values = spare_values or tuple(value for value in values if value not in picks)
        low, high = kind.cents
        # Many cheap products and few expensive ones: whole dollars, then the cents that shops like.
        share = dice.below(1000) * dice.below(1000)
        price = (low + (high - low) * share // 1_000_000) // 100 * 100 + dice.choose((99, 99, 95, 50, 0, 49, 88))
        hidden, composed = dice.chance(self.difficulty.hidden), dice.chance(COMPOSED)
        return ProductPlan(kind, facts, tuple(options), (price,), hidden, composed), spare_values

    def _write_product(self, number: int, plan: ProductPlan) -> RawProduct:
        dice = Dice(f"words {EDITION} {self.seed} {number}")
        kind = plan.kind
        maker = wording.brand(dice)
        facts = list(plan.facts[1:] if plan.hidden else plan.facts)
        hidden = plan.facts[:1] if plan.hidden else ()
        facts = dice.sample(facts, len(facts))
        title = wording.title(kind, maker, facts[: 1 + dice.below(3)], dice)
        rating, reviews = wording.reviews(kind, maker, dice)
        prices = tuple(cents / 100 for cents in plan.cents)
        asin = self.asin(number)
        return RawProduct(
            asin=asin,
            title=title,
            description=wording.description(kind, maker, facts, dice),
            bullets=wording.bullets(kind, maker, facts, hidden, dice),
            options=dict(plan.options),
            option_images={},
            category=kind.department,
            query=kind.query,
            product_category=kind.path,
            prices=prices,
            price_tag=" to ".join(f"${price}" for price in prices),
            image=f"/image/{asin}.svg",
            rating=rating,
            reviews=reviews,
        )


def _vary_model(model: ProductPlan, spare_values: tuple[str, ...], member: int, dice: Dice) -> ProductPlan:
    """Returns the ``member``-th product of the family of ``model``, which is itself the 0-th."""
    (price,) = model.cents
    if not member:
        return replace(model, cents=_range(price, dice))
    # Not more expensive than the family's first, so that the price does not distinguish it.
    around = price * (85 + dice.below(16)) // 10_000 * 100 + price % 100
    turn = (member - 1) % 3
    if turn == 1 and spare_values:
        name, values = model.options[0]
        picks = frozenset(dice.sample(spare_values, len(values)))
        options = ((name, tuple(value for value in spare_values if value in picks)), *model.options[1:])
        return replace(model, options=options, cents=(around,))
    if turn == 2:
        dearest = price + price // 5 // 100 * 100
        return replace(model, cents=_range(dearest + BEYOND + dice.below(30) * 100 + price // 3 // 100 * 100, dice))
    own = model.facts[0]
    facet = next(facet for facet in model.kind.facets if own in facet)
    alternatives = [fact for fact in facet if fact != own]
    facts = (alternatives[(member - 1) // 3 % len(alternatives)], *model.facts[1:])
    return replace(model, facts=facts, cents=(around,))


def _range(price: int, dice: Dice) -> tuple[int, ...]:
    """Returns ``price``, or a range that begins there and ends at most a fifth above."""
    if price < 1000 or not dice.chance(RANGES):
        return (price,)
    return price, price + price // 500 * 100


@cache
def _offset(seed: int) -> int:
    return int.from_bytes(hashlib.sha256(f"asin {EDITION} {seed}".encode()).digest()[:8], "big") & _MASK


@cache
def _pairs() -> tuple[str, ...]:
    return tuple(a + b for a in ASIN_LETTERS for b in ASIN_LETTERS)
