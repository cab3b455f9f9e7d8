"""Goals: the meaning of an instruction, written by a person or composed of a product's options.

Numbers are drawn as in the original with its generator seeded with 0 before it loads: first a price for each product
whose tag is a range, then for each goal two of the four next multiples of ten above the price, of which the higher is
the limit. The list is then shuffled with seed 233; the first 500 goals are ``dev``, the rest ``train``.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

PRICE_SEED = 0
ORDER_SEED = 233
DEV = 500
"""Number of goals of the split ``dev``."""
NO_LIMIT = 1_000_000.0
"""Limit in dollars of a goal whose product is more expensive than any limit that is drawn."""
_TENS = tuple(10.0 * i for i in range(1, 100))

Option = str | tuple[str, str]
"""An option that a goal asks for: the value (human goals), or name and value (composed goals)."""


@dataclass(frozen=True, slots=True)
class ShoppingGoal:
    """A goal: the purchase that an instruction describes."""

    asin: str
    """ASIN of the target product."""
    instruction: str
    attributes: tuple[str, ...]
    options: tuple[Option, ...]
    price_upper: float
    """Price limit in dollars."""
    query: str
    product_category: str
    category: str
    nouns: tuple[str, ...]
    """The nouns of the target's title."""


@dataclass(frozen=True, slots=True)
class Wish:
    """The common part of a product's goals; :func:`composed_wish` and :func:`human_wish` make it."""

    instruction: str
    attributes: tuple[str, ...]
    options: tuple[str, ...] | None
    """Values of options that a person asked for; ``None`` gives a goal for each combination of all options."""
    price_upper: float


def draw_price(prices: Sequence[float], rng: random.Random) -> float:
    """Returns the price of a product in dollars: its one price, or one drawn between the first two."""
    return prices[0] if len(prices) == 1 else rng.uniform(*prices[:2])


def draw_limit(price: float, rng: random.Random) -> float:
    """Draws the price limit of a goal, in dollars; :data:`NO_LIMIT` for products of 980 or more."""
    above = [ten for ten in _TENS if ten > price][:4]
    return max(rng.sample(above, 2)) if len(above) >= 2 else NO_LIMIT


def human_wish(entry: Mapping[str, Any], price: float, rng: random.Random) -> Wish | None:
    """Returns the wish of an entry of ``items_human_ins.json``; ``None`` where it names no attribute."""
    if not entry["instruction_attributes"]:
        return None
    limit = draw_limit(price, rng)
    text = entry["instruction"].strip(".") + _limit_text(limit)
    return Wish(text, tuple(entry["instruction_attributes"]), tuple(entry["instruction_options"]), limit)


def composed_wish(instruction: str | None, attributes: Sequence[str], price: float, rng: random.Random) -> Wish | None:
    """Returns the wish of the product's own instruction; ``None`` if it has none, or it names no attribute."""
    if instruction is None or not attributes:
        return None
    return Wish(instruction, tuple(attributes), None, draw_limit(price, rng))


def count(wish: Wish, options: Mapping[str, Sequence[str]]) -> int:
    """Returns the number of goals of ``wish`` for a product with these ``options``."""
    return 1 if wish.options is not None else prod(len(values) for values in options.values())


def choose(wish: Wish, options: Mapping[str, Sequence[str]], number: int) -> tuple[str, tuple[Option, ...]]:
    """Returns instruction and options of a wish's goal; goals are numbered as by nested loops over sorted names."""
    if wish.options is not None:
        return wish.instruction, wish.options
    choices: list[tuple[str, str]] = []
    for name in sorted(options, reverse=True):
        number, place = divmod(number, len(options[name]))
        choices.insert(0, (name, options[name][place]))
    text = ", and ".join(f"{name}: {value}" for name, value in choices)
    return f"{wish.instruction}{' with ' + text if text else ''}{_limit_text(wish.price_upper)}", tuple(choices)


def order(total: int) -> array[int]:
    """Returns the published order of ``total`` goals: element n is the number of the n-th goal before the shuffle."""
    numbers = array("I", range(total))  # there may be millions
    random.Random(ORDER_SEED).shuffle(numbers)
    return numbers


def _limit_text(limit: float) -> str:
    return "" if limit == NO_LIMIT else f", and price lower than {limit:.2f} dollars"
