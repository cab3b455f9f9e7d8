"""The reward of a purchase, part by part as in the original (Yao et al. 2022, section 3.2 and its code)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from envsuite.core.errors import require_extra
from envsuite.webshop.goals import Option, ShoppingGoal
from envsuite.webshop.products import Product

with require_extra("WebShop-v0 needs rapidfuzz", "webshop"):
    from rapidfuzz.fuzz import token_set_ratio
    from rapidfuzz.utils import default_process

ALIKE = 85
"""Token-set ratio, in whole percent, above which two texts match."""

COLOURS = tuple(
    """
    alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel camo
    caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry cream crystal
    dark denim eggplant elephant espresso fuchsia gold granite grape graphite grass gray green grey heather indigo ivory
    ivy khaki lavender lemon leopard light lilac lime magenta maroon mauve merlot midnight mint mocha multicolor
    mushroom mustard natural navy nude olive orange peach pewter pink plum purple rainbow red rose royal rust sand
    sapphire seashell silver skull slate steel stone stonewash sunflower tan taupe teal tiger turquoise violet walnut
    wheat white wine yellow
    """.split()
)
"""The colours that options are reduced to; the first that occurs in an option represents it."""

_LATIN_1 = dict.fromkeys(range(128, 256))


@dataclass(frozen=True, slots=True)
class Score:
    """The score of a purchase."""

    total: float
    """The reward, in [0, 1]."""
    r_type: float
    """1 for the right kind of product, down to 0."""
    r_att: float
    """Share of the goal's attributes that the product has."""
    r_option: float | None
    """Share of the goal's options that were chosen; ``None`` for a goal without options."""
    r_price: bool
    """Whether the price is within the limit."""
    query_match: bool
    """Whether product and target were found by the same query."""
    category_match: bool
    """Whether they share at least two categories."""
    title_score: float
    """Share of the nouns of the goal's title that are in the product's."""


def score(product: Product, goal: ShoppingGoal, chosen: Iterable[str]) -> Score:
    """Scores the purchase of ``product`` with the option values ``chosen``, for ``goal``."""
    query_match = product.query == goal.query
    category_match = len(categories(product.product_category) & categories(goal.product_category)) >= 2
    title_score = title_share(product.nouns, goal.nouns)
    r_type = type_reward(query_match or category_match, title_score)
    attributes = sum(has_attribute(product, attribute) for attribute in goal.attributes)
    options = options_matched(chosen, goal.options)
    r_price = product.price <= goal.price_upper
    return Score(
        total=total(r_type, attributes, options, r_price, len(goal.attributes) + len(goal.options)),
        r_type=r_type,
        r_att=attributes / len(goal.attributes),
        r_option=options / len(goal.options) if goal.options else None,
        r_price=r_price,
        query_match=query_match,
        category_match=category_match,
        title_score=title_score,
    )


def total(r_type: float, attributes: int, options: int, price: bool, asked: int) -> float:
    """Returns the reward: the share of matches among the ``asked`` attributes and options, times that of the type."""
    return (attributes + options + price) / (asked + 1) * r_type


def type_reward(match: bool, title_score: float) -> float:
    """Returns the reward of the type; ``match`` says whether query or categories match."""
    if title_score == 0.0:
        return 0.0
    if title_score < 0.1:
        return 0.1
    return 1.0 if match or title_score > 0.2 else 0.5


def title_share(nouns: tuple[str, ...], wanted: tuple[str, ...]) -> float:
    """Returns the share of ``wanted`` (with repetitions) that is in ``nouns``; 0.2 for an empty ``wanted``."""
    return len(set(nouns) & set(wanted)) / len(wanted) if wanted else 0.2


def options_matched(chosen: Iterable[str], wanted: Iterable[Option]) -> int:
    """Returns the number of ``wanted`` options that some ``chosen`` value matches."""
    values = [_colour(value) for value in chosen]
    return sum(any(alike(value, _compared_form(option)) for value in values) for option in wanted)


@lru_cache(maxsize=1 << 14)
def alike(first: str, second: str) -> bool:
    """Whether the words of one text are (nearly) among those of the other."""
    return round(token_set_ratio(_words(first), _words(second))) > ALIKE


def _words(text: str) -> str:
    return default_process(text.translate(_LATIN_1))


def _compared_form(option: Option) -> str:
    """Returns the form in which an option of a goal is compared: its colour, or the original's text of it.

    For a pair, the original looks for a colour that *equals* name or value, and otherwise compares the printed pair.
    """
    if isinstance(option, str):
        return _colour(option)
    return next((colour for colour in COLOURS if colour in option), str(option))


def _colour(value: str) -> str:
    return next((colour for colour in COLOURS if colour in value), value)


def has_attribute(product: Product, attribute: str) -> bool:
    """Whether a product has an attribute: one of its own is similar, or its text contains it."""
    if any(alike(own, attribute) for own in product.attributes):
        return True
    texts = (product.title, " ".join(product.bullets), product.description)
    return any(attribute in text.lower() for text in texts)


def categories(path: str) -> set[str]:
    """Returns the categories on a product's path."""
    return {part.strip() for part in path.split("\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}")}
