"""What an instruction asks for: goals written by people, and goals composed of a product's options.

Numbers are drawn as the original draws them when its generator is seeded with 0 before it loads: first a price for each
product whose tag is a range, then for each goal two of the four next tens above the price, of which the higher is the
limit. The list is then shuffled with seed 233; the first 500 goals are ``dev``, the rest ``train``.
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
"""Goals of the split ``dev``."""
NO_LIMIT = 1_000_000.0
"""The limit of a goal whose product costs more than any limit that is drawn, in dollars."""
_TENS = tuple(10.0 * i for i in range(1, 100))

Option = str | tuple[str, str]
"""An option that a goal asks for: the value (goals of people), or name and value (composed goals)."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What is to be bought."""

    asin: str
    """The product that the instruction was written for."""
    instruction: str
    attributes: tuple[str, ...]
    options: tuple[Option, ...]
    price_upper: float
    """Dollars."""
    query: str
    product_category: str
    category: str
    nouns: tuple[str, ...]
    """The nouns of the product's title."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a product's goals have in common; :func:`composed` and :func:`written` make them."""

    instruction: str
    attributes: tuple[str, ...]
    options: tuple[str, ...] | None
    """Values of options that a person asked for; ``None``: one goal for each combination of the product's options."""
    price_upper: float


def draw_price(prices: Sequence[float], rng: random.Random) -> float:
    """The price of a product in dollars: its one price, or one drawn between the first two."""
    return prices[0] if len(prices) == 1 else rng.uniform(*prices[:2])


def draw_limit(price: float, rng: random.Random) -> float:
    """The most that a goal's product may cost, in dollars; :data:`NO_LIMIT` for what costs 980 or more."""
    above = [ten for ten in _TENS if ten > price][:4]
    return max(rng.sample(above, 2)) if len(above) >= 2 else NO_LIMIT


def written(entry: Mapping[str, Any], price: float, rng: random.Random) -> Wish | None:
    """The wish of a person, an entry of ``items_human_ins.json``; ``None`` where it names no attribute."""
    if not entry["instruction_attributes"]:
        return None
    limit = draw_limit(price, rng)
    text = entry["instruction"].strip(".") + _limit_text(limit)
    return Wish(text, tuple(entry["instruction_attributes"]), tuple(entry["instruction_options"]), limit)


def composed(instruction: str | None, attributes: Sequence[str], price: float, rng: random.Random) -> Wish | None:
    """The wish that the product's own instruction makes; ``None`` where it has none, or names no attribute."""
    if instruction is None or not attributes:
        return None
    return Wish(instruction, tuple(attributes), None, draw_limit(price, rng))


def count(wish: Wish, options: Mapping[str, Sequence[str]]) -> int:
    """How many goals ``wish`` makes of a product with these ``options``."""
    return 1 if wish.options is not None else prod(len(values) for values in options.values())


def choose(wish: Wish, options: Mapping[str, Sequence[str]], number: int) -> tuple[str, tuple[Option, ...]]:
    """Instruction and options of the ``number``-th goal of ``wish``, counted as loops over sorted names, nested."""
    if wish.options is not None:
        return wish.instruction, wish.options
    chosen: list[tuple[str, str]] = []
    for name in sorted(options, reverse=True):
        number, place = divmod(number, len(options[name]))
        chosen.insert(0, (name, options[name][place]))
    text = ", and ".join(f"{name}: {value}" for name, value in chosen)
    return f"{wish.instruction}{' with ' + text if text else ''}{_limit_text(wish.price_upper)}", tuple(chosen)


def order(total: int) -> array[int]:
    """The published order of ``total`` goals: the n-th goal is the one with this number before the shuffle."""
    numbers = array("I", range(total))  # there may be millions
    random.Random(ORDER_SEED).shuffle(numbers)
    return numbers


def _limit_text(limit: float) -> str:
    return "" if limit == NO_LIMIT else f", and price lower than {limit:.2f} dollars"
